"""What the first NPU generations compute instead of some operators, as AMD Quark writes it.

AveragePool, ReduceMean   the sum times k ÷ 2ⁿ, which is not quite 1 ÷ count: a factor behind it
LeakyRelu                 a slope in steps of 1 ÷ 256
Sigmoid                   HardSigmoid with 2731 ÷ 16384 for a sixth

Source: AMD Quark for ONNX 0.13, simulation of the DPU, which its XINT8 configurations turn on.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from vermilion.ir.attributes import integers, number
from vermilion.ir.passes.rewrite import read_instead
from vermilion.quantize.names import Names
from vermilion.quantize.plan import Plan

# Of square windows by their side: (k, 2ⁿ).
_FACTORS = {3: (7, 64), 5: (10, 256), 6: (7, 256), 7: (21, 1024), 14: (21, 4096)}
_LARGEST_SIDE = 255
_SIXTH = 2731.0 / 16384.0 * 6.0


def factor_of(count: int) -> float:
    """Return count · k ÷ 2ⁿ for the k and n that come nearest to 1 ÷ count."""
    powers = [2**n for n in range(7 + math.ceil(math.log2(count)))]
    nearest = min(powers, key=lambda power: abs(round(power / count) / power - 1.0 / count))
    return float(round(nearest / count) / nearest * count)


def window_factor(side: int) -> float:
    """Return the factor of an average over a square window."""
    if side in _FACTORS:
        times, power = _FACTORS[side]
        return float(side * side * times / power)
    return 1.0 if side > _LARGEST_SIDE or side == 1 else factor_of(side * side)


def hard_sigmoids(work: ir.Model) -> None:
    """Before → after: Sigmoid → HardSigmoid(alpha = 1 ÷ 6); change `work` in place."""
    for node in work.graph:
        if node.op_type == "Sigmoid" and node.domain in ("", "ai.onnx"):
            node.op_type = "HardSigmoid"
            node.attributes["alpha"] = ir.AttrFloat32("alpha", 1.0 / 6.0)
            node.attributes["beta"] = ir.AttrFloat32("beta", 0.5)


def write_dpu(work: ir.Model, plan: Plan) -> None:
    """Let the plan's nodes compute so, once the plan is written."""
    names = Names(work.graph)
    for node in [node for node in work.graph if node in plan.nodes]:
        if node.op_type == "LeakyRelu":
            slope = round(number(node, "alpha", 0.01) * 256.0) / 256.0
            node.attributes["alpha"] = ir.AttrFloat32("alpha", slope)
        factor = _factor(node)
        if factor != 1.0:
            _multiply(work.graph, node, factor, names)


def _factor(node: ir.Node) -> float:
    if node.op_type == "HardSigmoid":
        is_sixth = math.isclose(number(node, "alpha", 0.2), 1.0 / 6.0, rel_tol=1e-5)
        return _SIXTH if is_sixth and number(node, "beta", 0.5) == 0.5 else 1.0
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    if node.op_type == "AveragePool":
        sides = integers(node, "kernel_shape", ())
        return window_factor(sides[0]) if len(sides) == 2 and sides[0] == sides[1] else 1.0
    if shape is None or not shape.is_static():
        return 1.0
    lengths = shape.numpy()
    if node.op_type == "GlobalAveragePool":
        is_square = len(lengths) == 4 and lengths[2] == lengths[3]
        return window_factor(lengths[2]) if is_square else 1.0
    if node.op_type == "ReduceMean":
        axes = _axes(node)
        count = math.prod(lengths[axis] for axis in axes)
        return factor_of(count) if axes and count > 1 else 1.0
    return 1.0


def _axes(node: ir.Node) -> tuple[int, ...]:
    given = node.inputs[1] if len(node.inputs) > 1 else None
    if given is not None and given.const_value is not None:
        return tuple(int(axis) for axis in given.const_value.numpy())
    return tuple(integers(node, "axes", ())) if "axes" in node.attributes else ()


def _multiply(graph: ir.Graph, node: ir.Node, factor: float, names: Names) -> None:
    """Before → after: node → X, then node → Mul → X."""
    result = node.outputs[0]
    scale = names.constant(f"{result.name}_Scale", np.asarray(factor, np.float32))
    times = ir.node("Mul", [result, scale], name=names.free(f"{node.name}_Mul"))
    made = times.outputs[0]
    made.type, made.shape = result.type, result.shape
    read_instead(graph, result, made, times)
    made.name, result.name = result.name, names.free(f"{result.name}_average")
    graph.insert_after(node, times)
