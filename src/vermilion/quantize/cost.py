"""How much of a model's work is done on 8 bits."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from vermilion.ir.cost import node_cost
from vermilion.quantize.formats import Parameters
from vermilion.quantize.operators import data_inputs
from vermilion.quantize.plan import Plan

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

_EIGHT_BITS = 8


def eight_bit_share(plan: Plan, parameters: Mapping[str, Parameters]) -> float:
    """Return the part of all operations that are products of 8-bit numbers, before rewriting."""
    node = next(iter(plan.nodes))
    graph = node.graph
    assert graph is not None, "a planned node is in a graph"
    total = eight = 0
    for node in graph:
        if node.op_type == "Constant":
            continue
        operations = node_cost(node).operations
        total += operations
        if node in plan.nodes and node.op_type in PRODUCTS and _is_narrow(node, plan, parameters):
            eight += operations
    return eight / total if total else 0.0


def _is_narrow(node: ir.Node, plan: Plan, parameters: Mapping[str, Parameters]) -> bool:
    read = (parameters.get(str(v.name)) for v in data_inputs(node, plan.operators[node.op_type]))
    return all(
        given is not None and given.number.data_type.bitwidth <= _EIGHT_BITS for given in read
    )
