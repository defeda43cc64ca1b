"""Which elementwise nodes are computed together, and in which product's epilogue.

A group has one exit, its root: every other result in it is used inside only. Its anchor, if it has
one, is the product (convolution, matrix product) whose accumulators the group starts from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from vermilion.ir.opset import constant_of, is_operator, static_shape

# Tensors that one kernel reads; beyond it, pointers no longer fit in registers.
_MOST_INPUTS = 10


@dataclass
class Group:
    """Nodes that become one kernel. `members` are in no particular order."""

    root: ir.Node
    members: set[ir.Node] = field(default_factory=set)
    anchor: ir.Node | None = None


def find_groups(
    graph: ir.Graph,
    is_elementwise: Callable[[ir.Node], bool],
    is_product: Callable[[ir.Node], bool],
) -> Mapping[ir.Node, Group]:
    """Give the group of every elementwise node and every product."""
    groups: dict[ir.Node, Group] = {}
    nodes = list(graph)
    position = {node: at for at, node in enumerate(nodes)}
    for node in reversed(nodes):
        if not (is_elementwise(node) or is_product(node)):
            continue
        target = _only_group(node, groups)
        if target is not None and _may_join(node, target, is_product(node), position):
            target.members.add(node)
            if is_product(node):
                target.anchor = node
            groups[node] = target
            continue
        group = Group(node, {node})
        if is_product(node) and target is not None:
            group = _split_at_quantization(node, target, groups) or group
        if is_product(node):
            group.anchor = node
        groups[node] = group
    return groups


def _only_group(node: ir.Node, groups: Mapping[ir.Node, Group]) -> Group | None:
    """Give the one group that uses every result of `node`, None if there is no such group."""
    value = node.outputs[0]
    if len(node.outputs) != 1 or value.is_graph_output():
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


def _may_join(
    node: ir.Node, group: Group, is_product: bool, position: Mapping[ir.Node, int]
) -> bool:
    shape = static_shape(node.outputs[0])
    if shape is None or shape != static_shape(group.root.outputs[0]):
        return False
    if is_product and group.anchor is not None:
        return False
    inputs = {
        value
        for member in (*group.members, node)
        for value in member.inputs
        if value is not None and value.producer() not in group.members and not _is_number(value)
    }
    return len(inputs) <= _MOST_INPUTS


def _is_number(value: ir.Value) -> bool:
    constant = constant_of(value)
    return constant is not None and constant.size == 1


def _split_at_quantization(
    product: ir.Node, group: Group, groups: dict[ir.Node, Group]
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
    group.members -= moved
    split = Group(node, moved)
    groups |= dict.fromkeys(moved, split)
    return split
