"""How much of a model's work is done on 8 bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from vermilion.ir.cost import node_cost
from vermilion.quantize.formats import Parameters
from vermilion.quantize.operators import data_inputs
from vermilion.quantize.plan import Plan, excluded_nodes

PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

_EIGHT_BITS = 8


def eight_bit_share(graph: ir.Graph, plan: Plan, parameters: Mapping[str, Parameters]) -> float:
    """Return the part of all operations that are products of 8-bit numbers, before rewriting."""
    total = eight = 0
    for node in graph:
        if node.op_type == "Constant":
            continue
        operations = node_cost(node).operations
        total += operations
        if node in plan.nodes and node.op_type in PRODUCTS and _is_narrow(node, plan, parameters):
            eight += operations
    return eight / total if total else 0.0


# Multiply-adds of a cycle of a core: 256 of int8 × int8, 128 of int16 × int8 and of bfloat16.
# Source: AMD AM020, AIE-ML architecture manual. What stays in float runs on the CPU, for which 16
# stands: a twentieth to a tenth of the rate of such an NPU.
_PRICES = {"eight": 1.0, "wide": 2.0, "bfloat": 2.0, "float": 16.0}


def relative_cost(
    graph: ir.Graph, plan: Plan, parameters: Mapping[str, Parameters], bfloat: Sequence[str]
) -> float:
    """Return the modelled cost of all products, before rewriting; 1 where all are of 8 bits."""
    narrow = excluded_nodes(graph, bfloat)
    total = paid = 0.0
    for node in graph:
        if node.op_type not in PRODUCTS:
            continue
        operations = node_cost(node).operations
        if node in narrow:
            kind = "bfloat"
        elif node not in plan.nodes:
            kind = "float"
        else:
            kind = "eight" if _is_narrow(node, plan, parameters) else "wide"
        total += operations
        paid += operations * _PRICES[kind]
    return paid / total if total else 1.0


def _is_narrow(node: ir.Node, plan: Plan, parameters: Mapping[str, Parameters]) -> bool:
    read = (parameters.get(str(v.name)) for v in data_inputs(node, plan.operators[node.op_type]))
    return all(
        given is not None and given.number.data_type.bitwidth <= _EIGHT_BITS for given in read
    )
