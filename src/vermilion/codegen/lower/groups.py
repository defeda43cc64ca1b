"""Which elementwise nodes are computed together, and in which product's epilogue.

A group has one exit, its root: every other result in it is used inside only. Its anchor, if it has
one, is the product (convolution, matrix product) whose accumulators the group starts from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from vermilion.ir.opset import constant_of, is_operator, static_shape
from vermilion.ir.symbolic import alike

# Tensors that one kernel reads; beyond it, pointers no longer fit in registers.
_MOST_INPUTS = 10
# Nodes of one kernel; operations of its expression written out as a tree, in which a result that
# is read twice stands twice; and its levels: what walks expressions goes as deep as they are.
# A kernel of so many operations gains nothing by joining the next ones.
_MOST_MEMBERS = 48
_MOST_OPERATIONS = 384
_MOST_LEVELS = 80


@dataclass(frozen=True)
class Extent:
    """A node's own expression: how often each input stands in it, its operations and levels."""

    copies: tuple[int, ...]
    operations: int
    levels: int


@dataclass
class Group:
    """Nodes that become one kernel: their places in the graph, by node."""

    root: ir.Node
    members: dict[ir.Node, int] = field(default_factory=dict)
    anchor: ir.Node | None = None
    # How often each member's result stands in the expression, and down to which level its own
    # operations go; all operations together.
    copies: dict[ir.Node, int] = field(default_factory=dict)
    levels: dict[ir.Node, int] = field(default_factory=dict)
    operations: int = 0
    # Tensors that the kernel reads from memory, numbers apart.
    reads: set[ir.Value] = field(default_factory=set)

    @property
    def nodes(self) -> list[ir.Node]:
        """The members in the order of the graph."""
        return sorted(self.members, key=self.members.__getitem__)


@dataclass(frozen=True)
class Attention:
    """Softmax between two products: the scores' group, the softmax, the product with the values.

    `weights` is what is done to the softmax's results before that product.
    """

    scores: Group
    softmax: ir.Node
    context: ir.Node
    weights: Group | None = None


def find_groups(
    graph: ir.Graph,
    is_elementwise: Callable[[ir.Node], bool],
    is_product: Callable[[ir.Node], bool],
    extent_of: Callable[[ir.Node], Extent],
) -> Mapping[ir.Node, Group]:
    """Return the group of every elementwise node and every product."""
    groups: dict[ir.Node, Group] = {}
    extents: dict[ir.Node, Extent] = {}
    nodes = list(graph)
    for place, node in reversed(list(enumerate(nodes))):
        product = is_product(node)
        if not (is_elementwise(node) or product):
            continue
        extents[node] = Extent((), 1, 1) if product else extent_of(node)
        target = _only_group(node, groups)
        if target is not None and _join(node, place, target, extents, is_product=product):
            groups[node] = target
            continue
        own = extents[node]
        group = Group(
            node, {node: place}, None, {node: 1}, {node: own.levels}, own.operations, _tensors(node)
        )
        if product and target is not None:
            group = _split_at_quantization(node, place, target, groups) or group
        if product:
            group.anchor = node
        groups[node] = group
    return groups


def _only_group(node: ir.Node, groups: Mapping[ir.Node, Group]) -> Group | None:
    """Return the one group that uses every result of `node`, None if there is no such group."""
    value = node.outputs[0]
    if len(node.outputs) != 1 or value.is_graph_output() or is_divisor(value):
        return None
    users = {use.node for use in value.uses()}
    found = {id(groups[user]) for user in users if user in groups}
    if len(found) != 1 or any(user not in groups for user in users):
        return None
    group = groups[next(iter(users))]
    # Who reads a dequantized tensor reads its integers: they are the result to keep.
    if is_operator(group.root, "DequantizeLinear"):
        return None
    # A product reads its inputs whole: it can end a group and never stand inside one.
    return None if any(user is group.anchor for user in users) else group


def _join(
    node: ir.Node,
    place: int,
    group: Group,
    extents: Mapping[ir.Node, Extent],
    *,
    is_product: bool,
) -> bool:
    """Add a node to the one group that reads it, if the kernel stays small enough."""
    if not alike(static_shape(node.outputs[0]), static_shape(group.root.outputs[0])):
        return False
    if is_product and group.anchor is not None:
        return False
    uses = node.outputs[0].uses()
    copies = sum(group.copies[use.node] * extents[use.node].copies[use.idx] for use in uses)
    operations = group.operations + copies * extents[node].operations
    levels = max(group.levels[use.node] for use in uses) + extents[node].levels
    reads = (group.reads - {node.outputs[0]}) | _tensors(node)
    if (
        len(reads) > _MOST_INPUTS
        or len(group.members) >= _MOST_MEMBERS
        or operations > _MOST_OPERATIONS
        or levels > _MOST_LEVELS
    ):
        return False
    group.members[node] = place
    group.copies[node], group.levels[node] = copies, levels
    group.operations, group.reads = operations, reads
    if is_product:
        group.anchor = node
    return True


def _tensors(node: ir.Node) -> set[ir.Value]:
    return {value for value in node.inputs if value is not None and not _is_number(value)}


def is_divisor(value: ir.Value) -> bool:
    """Say whether whole numbers are divided by a value: looked at in a run, it lies in memory."""
    if value.dtype is None or not value.dtype.is_integer():
        return False
    return any(is_operator(use.node, "Div", "Mod") and use.idx == 1 for use in value.uses())


def _is_number(value: ir.Value) -> bool:
    constant = constant_of(value)
    return constant is not None and constant.size == 1


def _split_at_quantization(
    product: ir.Node, place: int, group: Group, groups: dict[ir.Node, Group]
) -> Group | None:
    """Move what lies between a product and the QuantizeLinear of its result to a group of its own.

    The group has another product as its anchor: this one's result is better written in 8 bits than
    as floats. None where there is no such QuantizeLinear on a straight way.
    """
    moved = {product}
    node = product
    while not is_operator(node, "QuantizeLinear"):
        users = {use.node for use in node.outputs[0].uses()}
        if len(users) != 1 or node is group.root:
            return None
        (node,) = users
        moved.add(node)
    if node is group.root:
        return None
    # What else only these nodes read comes along; a DequantizeLinear is written where it is read.
    pending = list(moved)
    while pending:
        for value in pending.pop().inputs:
            maker = None if value is None else value.producer()
            if maker is None or maker not in group.members or maker in moved:
                continue
            if {use.node for use in maker.outputs[0].uses()} <= moved:
                moved.add(maker)
                pending.append(maker)
            elif not is_operator(maker, "DequantizeLinear"):
                return None
    if group.anchor in moved:
        return None
    places = {**group.members, product: place}
    group.members = {node: at for node, at in group.members.items() if node not in moved}
    made = {one.outputs[0] for one in moved}
    # What it copies and how deep it goes is less than before; that is all that has to be known.
    split = Group(
        node, {one: places[one] for one in moved}, None, {**group.copies, product: 1},
        {**group.levels, product: 1}, group.operations,
        {value for one in moved for value in _tensors(one)} - made,
    )  # fmt: skip
    kept = {one.outputs[0] for one in group.members}
    group.reads = {v for one in group.members for v in _tensors(one)} - kept
    groups |= dict.fromkeys(moved, split)
    return split
