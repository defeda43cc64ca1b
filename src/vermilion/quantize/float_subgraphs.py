"""Normalizations, softmaxes and GELUs that an exporter has spelled out in small operators.

Whole, they are one operator of the table: rounded at their borders, computed in float within.
Spelled out, each small step would be rounded, and squares and variances do not survive eight
bits: where one row's variance is a thousandth of another's it becomes zero. So the steps are
recognised and left in float, which gives the same numbers as the whole operator would.
"""

from __future__ import annotations

import onnx_ir as ir

_SQUARES = frozenset({"ReduceMean", "ReduceSum", "Add", "Max", "Clip", "Pow", "Mul", "Abs"})
_ROOTS = frozenset({"Sqrt", "Reciprocal"})


def float_subgraphs(graph: ir.Graph) -> frozenset[ir.Node]:
    """Return the nodes inside spelled-out normalizations and softmaxes."""
    found: set[ir.Node] = set()
    for node in graph:
        if node.op_type == "Sqrt":
            found |= _normalization(node)
        elif node.op_type == "Div":
            found |= _softmax(node)
        elif node.op_type == "Erf":
            found |= _gelu(node)
    return frozenset(found)


def _normalization(root: ir.Node) -> set[ir.Node]:
    """Before → after: the steps from x to (x - mean) ÷ √(mean of squares + ε), found from the √."""
    steps = {root}
    reduced = False
    source = _producer(root, 0)
    while source is not None and source.op_type in _SQUARES:
        if source.op_type == "Mul" and source.inputs[0] is not source.inputs[1]:
            break
        reduced |= source.op_type in {"ReduceMean", "ReduceSum"}
        steps.add(source)
        source = _producer(source, 1 if _is_constant(source, 0) else 0)
    if not reduced:
        return set()  # a square root of something else
    if source is not None and source.op_type == "Sub":
        mean = _producer(source, 1)
        if mean is not None and mean.op_type == "ReduceMean":
            steps |= {source, mean}
    return steps | _quotients(root)


def _quotients(root: ir.Node) -> set[ir.Node]:
    """Return what divides by the root, directly or through its reciprocal."""
    quotients: set[ir.Node] = set()
    found: set[ir.Node] = set()
    for use in root.outputs[0].uses():
        if use.node.op_type == "Div":
            quotients.add(use.node)
        elif use.node.op_type in _ROOTS:
            found.add(use.node)
            users = (inner.node for inner in use.node.outputs[0].uses())
            quotients |= {user for user in users if user.op_type == "Mul"}
    for quotient in quotients:
        found |= {quotient} | _scale_and_shift(quotient)
    return found


def _scale_and_shift(quotient: ir.Node) -> set[ir.Node]:
    """Return the multiplication by γ and the addition of β that end a normalization."""
    found: set[ir.Node] = set()
    node = quotient
    for op_type in ("Mul", "Add"):
        uses = tuple(node.outputs[0].uses())
        if len(uses) != 1 or node.outputs[0].is_graph_output():
            break
        node = uses[0].node
        if node.op_type != op_type or not (_is_constant(node, 0) or _is_constant(node, 1)):
            break
        found.add(node)
    return found


def _softmax(quotient: ir.Node) -> set[ir.Node]:
    """Before → after: the steps of exp(x - max) ÷ Σ exp(x - max), found from the ÷."""
    above, below = _producer(quotient, 0), _producer(quotient, 1)
    if above is None or below is None or above.op_type != "Exp" or below.op_type != "ReduceSum":
        return set()
    if _producer(below, 0) is not above:
        return set()
    steps = {quotient, above, below}
    shifted = _producer(above, 0)
    if shifted is not None and shifted.op_type == "Sub":
        largest = _producer(shifted, 1)
        if largest is not None and largest.op_type == "ReduceMax":
            steps |= {shifted, largest}
    return steps


def _gelu(erf: ir.Node) -> set[ir.Node]:
    """Before → after: the steps of x ÷ 2 · (1 + erf(x ÷ √2)), in any order, found from the erf."""
    scaled = _producer(erf, 0)
    if scaled is None or scaled.op_type not in {"Div", "Mul"} or not _has_constant(scaled):
        return set()
    source = _computed(scaled)
    steps = {scaled, erf}
    shifted = _only_user(erf)
    if shifted is None or shifted.op_type != "Add" or not _has_constant(shifted):
        return set()
    steps.add(shifted)
    node, met = _only_user(shifted), False
    while node is not None and node.op_type == "Mul":
        if not _has_constant(node):
            others = [v for v in node.inputs if v is not None and v.producer() not in steps]
            if met or len(others) != 1:
                break
            half = others[0].producer()
            if others[0] is not source:
                if half is None or half.op_type != "Mul" or _computed(half) is not source:
                    break
                steps.add(half)
            met = True
        steps.add(node)
        node = _only_user(node)
    return steps if met else set()


def _only_user(node: ir.Node) -> ir.Node | None:
    uses = tuple(node.outputs[0].uses())
    return uses[0].node if len(uses) == 1 and not node.outputs[0].is_graph_output() else None


def _has_constant(node: ir.Node) -> bool:
    """Say whether one of two inputs is a single constant number."""
    return any(
        value is not None and value.const_value is not None and value.const_value.size == 1
        for value in node.inputs
    )


def _computed(node: ir.Node) -> ir.Value | None:
    """Return the input that is no constant, where the other one is."""
    values = [v for v in node.inputs if v is not None and v.const_value is None]
    return values[0] if len(values) == 1 else None


def _producer(node: ir.Node, index: int) -> ir.Node | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else value.producer()


def _is_constant(node: ir.Node, index: int) -> bool:
    value = node.inputs[index] if index < len(node.inputs) else None
    return value is not None and value.const_value is not None
