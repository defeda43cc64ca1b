"""Normalizations and softmaxes that an exporter has spelled out in small operators.

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


def _producer(node: ir.Node, index: int) -> ir.Node | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return None if value is None else value.producer()


def _is_constant(node: ir.Node, index: int) -> bool:
    value = node.inputs[index] if index < len(node.inputs) else None
    return value is not None and value.const_value is not None
