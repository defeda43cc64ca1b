"""Where a graph is rounded: which nodes, which tensors, and which of them share one scale."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from vermilion.errors import OptionError, UnsupportedError
from vermilion.quantize.float_subgraphs import float_subgraphs
from vermilion.quantize.formats import Scheme, scheme_named
from vermilion.quantize.masks import find_masks
from vermilion.quantize.observe import are_finite
from vermilion.quantize.operators import (
    ELEMENTWISE,
    FUSED_PRODUCERS,
    WRITES_INTEGERS,
    Operator,
    bias_input,
    data_inputs,
    fuses_into_producer,
    operators_of,
    rounded_indices,
)

Operators = Mapping[str, Operator]


@dataclass(frozen=True)
class Step:
    """What one quantized node reads and writes, by the names of the scales.

    `writes` is the scale of the first rounded tensor after the node: where an activation is
    computed together with the node, that is the activation's output and `activation` its name.
    """

    node_name: str
    op_type: str
    reads: tuple[str, ...]
    bias: str | None
    writes: str | None
    activation: str = ""


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before a single sample has been seen."""

    scheme: Scheme
    operators: Operators
    nodes: frozenset[ir.Node]
    activations: tuple[ir.Value, ...]  # rounded between nodes, in graph order
    weights: tuple[ir.Value, ...]  # constants rounded ahead of time
    biases: tuple[ir.Value, ...]
    observed: tuple[str, ...]  # activations whose values must be seen
    scales: Mapping[str, str]  # tensor → name of its scale; tensors that share one agree
    steps: tuple[Step, ...]
    scores: Mapping[str, int] = field(default_factory=dict)  # what a Softmax reads → its axis

    def rounds(self, node: ir.Node, index: int) -> bool:
        """Say whether the input at `index` is read rounded, if it is a tensor that is rounded."""
        if node not in self.nodes:
            return False
        return index in rounded_indices(node, self.operators[node.op_type])


def make_plan(
    model: ir.Model,
    types: Mapping[str, ir.DataType],
    exclude: Sequence[str] = (),
    scheme: Scheme | None = None,
    masked: Collection[str] = (),
) -> Plan:
    """Decide where `model` is rounded.

    Shapes: `types` holds the element type of every computed tensor and input of the main graph;
    `masked` names inputs that hold masks.
    Raises: OptionError for an excluded name that matches no node; UnsupportedError where no node
    is left to quantize.
    """
    graph = model.graph
    scheme = scheme_named("xint8") if scheme is None else scheme
    plan = plan_graph(graph, types, excluded_nodes(graph, exclude), scheme, masked)
    if not plan.nodes:
        raise UnsupportedError(
            "no operator of this model can be quantized",
            where=f"{sum(1 for _ in graph)} nodes",
            hint="Conv, MatMul and Add of float numbers are, among others",
        )
    return plan


def plan_graph(
    graph: ir.Graph,
    types: Mapping[str, ir.DataType],
    excluded: frozenset[ir.Node],
    scheme: Scheme,
    masked: Collection[str] = (),
) -> Plan:
    """Decide where one graph is rounded, its branches and bodies aside; it may be nowhere."""
    operators = operators_of(scheme)
    subgraphs = float_subgraphs(graph)
    masks = find_masks(graph, masked)
    left_out = excluded | subgraphs | masks.nodes
    taken = [n for n in graph if n not in left_out and _is_quantizable(n, types, operators)]
    if scheme.power_of_two and not scheme.all_tensors:
        taken = _drop_followers(taken, excluded, operators)
    nodes = frozenset(_drop_idle_moves(taken, operators))
    fused = {n: user for n in taken if n in nodes and (user := _fused_user(n, nodes)) is not None}
    find = _activations if scheme.rounds_between else _borders
    activations = find(graph, nodes, fused, operators)
    weights, biases = _constants(graph, nodes, operators, scheme)
    names = {value.name for value in (*activations, *weights, *biases) if value.name}
    scales = _share_scales(graph, nodes, fused, names, operators)
    moved = {
        output.name
        for node in nodes
        if operators[node.op_type].role == "move" and _source_name(node) in names
        for output in node.outputs
    }
    return Plan(
        scheme=scheme,
        operators=operators,
        nodes=nodes,
        activations=activations,
        weights=weights,
        biases=biases,
        observed=tuple(str(v.name) for v in activations if v.name not in moved),
        scales=scales,
        steps=tuple(_step(node, fused, scales, operators) for node in graph if node in nodes),
        scores=masks.scores,
    )


def excluded_nodes(graph: ir.Graph, exclude: Sequence[str]) -> frozenset[ir.Node]:
    """Return the nodes that patterns name; `:Softmax` names all of that kind, `:!Conv` all others.

    Raises: OptionError for a pattern that names none.
    """
    by_name = {str(node.name): node for node in graph.all_nodes()}
    found: set[ir.Node] = set()
    for pattern in exclude:
        if pattern.startswith(":"):
            kinds = frozenset(pattern.lstrip(":!").split(","))
            others = pattern.startswith(":!")
            found |= {node for node in by_name.values() if (node.op_type in kinds) != others}
            continue
        matches = [name for name in by_name if fnmatch.fnmatchcase(name, pattern)]
        if not matches:
            near = difflib.get_close_matches(pattern, by_name, n=3, cutoff=0.4)
            listed = ", ".join(f"`{name}`" for name in near)
            raise OptionError(
                f"no node is called `{pattern}`, so it cannot be left out of quantization",
                hint=f"close names: {listed}" if near else "`vermilion inspect` lists the nodes",
            )
        found |= {by_name[name] for name in matches}
    return frozenset(found)


def _source_name(node: ir.Node) -> str:
    return "" if node.inputs[0] is None else str(node.inputs[0].name)


def _is_quantizable(node: ir.Node, types: Mapping[str, ir.DataType], operators: Operators) -> bool:
    operator = operators.get(node.op_type)
    if node.domain not in ("", "ai.onnx") or operator is None:
        return False
    data = data_inputs(node, operator)
    if not any(value.const_value is None for value in data):
        return False
    if not operator.takes(node) or types.get(str(node.outputs[0].name)) != ir.DataType.FLOAT:
        return False
    bias = bias_input(node, operator)
    return all(_is_float32(value, types) for value in (*data, *([bias] if bias else [])))


def _is_float32(value: ir.Value, types: Mapping[str, ir.DataType]) -> bool:
    tensor = value.const_value
    if tensor is None:
        return types.get(str(value.name)) == ir.DataType.FLOAT
    # Masks hold -inf: no scale covers that.
    return tensor.dtype == ir.DataType.FLOAT and are_finite(tensor.numpy())


def _drop_idle_moves(taken: Sequence[ir.Node], operators: Operators) -> set[ir.Node]:
    """Keep operators that only move data where a neighbour computes on rounded values."""
    moves = {node for node in taken if operators[node.op_type].role == "move"}
    kept = {node for node in taken if node not in moves}
    # Rounded data flows down from its producer, in graph order, then the wish for it flows up.
    for node in taken:
        source = node.inputs[0].producer() if node.inputs[0] is not None else None
        if node in moves and source in kept:
            kept.add(node)
    for node in reversed(taken):
        if node in moves and any(u.node in kept for out in node.outputs for u in out.uses()):
            kept.add(node)
    return kept


def _drop_followers(
    taken: list[ir.Node], excluded: Collection[ir.Node], operators: Operators
) -> list[ir.Node]:
    """Drop elementwise nodes that read what operators without an 8-bit form make, and nothing else.

    Numbers that are there in float would be rounded once more, for an operator of no cost. What
    was `excluded` stays alone: whoever did that can exclude more.
    """
    kept = {*taken, *excluded}
    for node in taken:
        if node.op_type not in ELEMENTWISE:
            continue
        read = [v for v in data_inputs(node, operators[node.op_type]) if v.const_value is None]
        makers = [value.producer() for value in read]
        if all(m is not None and m not in kept and m.graph is node.graph for m in makers):
            kept.discard(node)
    return [node for node in taken if node in kept]


def _fused_user(node: ir.Node, nodes: frozenset[ir.Node]) -> ir.Node | None:
    """Return the activation that the NPU computes together with `node`."""
    output = node.outputs[0]
    uses = tuple(output.uses())
    if node.op_type not in FUSED_PRODUCERS or output.is_graph_output() or len(uses) != 1:
        return None
    user = uses[0].node
    return user if user in nodes and fuses_into_producer(user) else None


def _activations(
    graph: ir.Graph,
    nodes: frozenset[ir.Node],
    fused: Mapping[ir.Node, ir.Node],
    operators: Operators,
) -> tuple[ir.Value, ...]:
    """Return every tensor that a quantized node reads or writes."""
    found: dict[ir.Value, None] = {}
    read = {value for node in nodes for value in data_inputs(node, operators[node.op_type])}
    for value in _given(graph, read):
        found[value] = None
    for node in graph:
        if node in fused:
            continue
        for index, value in enumerate(node.outputs):
            written = node in nodes and (index == 0 or node.op_type == "Split")
            if written or value in read:
                found[value] = None
    return tuple(found)


def _given(graph: ir.Graph, read: Collection[ir.Value]) -> list[ir.Value]:
    """Return what is read and not made here: inputs, and in a body what is of a graph around it."""
    outer: dict[ir.Value, None] = {}
    for node in graph:
        for value in node.inputs:
            if value is not None and value in read and value.const_value is None:
                maker = value.producer()
                is_outer = value.graph is not graph if maker is None else maker.graph is not graph
                if is_outer:
                    outer[value] = None
    return [*(value for value in graph.inputs if value in read), *outer]


def _borders(
    graph: ir.Graph,
    nodes: frozenset[ir.Node],
    fused: Mapping[ir.Node, ir.Node],
    operators: Operators,
) -> tuple[ir.Value, ...]:
    """Return the tensors that integer kernels read or write; elementwise chains stay whole.

    Data that only moves is rounded where what it was moved from is, so that it can be shared.
    """
    read = _read_by_kernels(graph, nodes, operators)
    ends = {fused[n] for n in fused if n.op_type in WRITES_INTEGERS}
    found = dict.fromkeys(_given(graph, read))
    for node in graph:
        moves = node in nodes and operators[node.op_type].role == "move"
        moved = moves and node.inputs[0] in found
        writes = node in ends or (
            node in nodes and node.op_type in WRITES_INTEGERS and node not in fused
        )
        for value in node.outputs:
            if value in read or writes or (moved and not value.is_graph_output()):
                found[value] = None
    return tuple(found)


def _read_by_kernels(
    graph: ir.Graph, nodes: frozenset[ir.Node], operators: Operators
) -> set[ir.Value]:
    """Return what operators read that are not elementwise, directly or after moving it."""
    read: set[ir.Value] = set()
    for node in reversed(list(graph)):
        if node not in nodes or node.op_type in ELEMENTWISE:
            continue
        operator = operators[node.op_type]
        if operator.role != "move" or any(value in read for value in node.outputs):
            read |= set(data_inputs(node, operator))
    return read


def _constants(
    graph: ir.Graph, nodes: frozenset[ir.Node], operators: Operators, scheme: Scheme
) -> tuple[tuple[ir.Value, ...], tuple[ir.Value, ...]]:
    weights: dict[ir.Value, None] = {}
    biases: dict[ir.Value, None] = {}
    for node in graph:
        if node not in nodes:
            continue
        if not scheme.rounds_between and node.op_type in ELEMENTWISE:
            continue
        operator = operators[node.op_type]
        for value in data_inputs(node, operator):
            if value.const_value is not None:
                weights[value] = None
        bias = bias_input(node, operator)
        if bias is not None and bias.const_value is not None:
            biases[bias] = None
    return tuple(weights), tuple(value for value in biases if value not in weights)


def _share_scales(
    graph: ir.Graph,
    nodes: frozenset[ir.Node],
    fused: Mapping[ir.Node, ir.Node],
    names: set[str],
    operators: Operators,
) -> dict[str, str]:
    """Return each tensor the name of its scale: the first tensor, in graph order, that has it."""
    parent = {name: name for name in names}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for node in graph:
        if node not in nodes or operators[node.op_type].role == "compute":
            continue
        values = [*data_inputs(node, operators[node.op_type]), *_written(node, fused)]
        tied = [str(value.name) for value in values if value.name in names]
        for other in tied[1:]:
            parent[root(other)] = root(tied[0])
    return {name: root(name) for name in names}


def _written(node: ir.Node, fused: Mapping[ir.Node, ir.Node]) -> tuple[ir.Value, ...]:
    if node in fused:
        # An activation changes values, so the scale after it is its own.
        return ()
    return tuple(node.outputs) if node.op_type == "Split" else (node.outputs[0],)


def _step(
    node: ir.Node,
    fused: Mapping[ir.Node, ir.Node],
    scales: Mapping[str, str],
    operators: Operators,
) -> Step:
    operator = operators[node.op_type]
    read = (scales.get(str(value.name)) for value in data_inputs(node, operator))
    bias = bias_input(node, operator)
    user = fused.get(node)
    return Step(
        node_name=str(node.name),
        op_type=node.op_type,
        reads=tuple(name for name in read if name is not None),
        bias=None if bias is None else scales.get(str(bias.name)),
        writes=scales.get(str((user or node).outputs[0].name)),
        activation="" if user is None else user.op_type,
    )
