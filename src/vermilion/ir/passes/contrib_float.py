"""Products, activations and normalizations of `com.microsoft` in ONNX's own operators."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from vermilion.ir.attributes import integer, number, text
from vermilion.ir.passes.contrib_writer import Definition, Left, Writer, given, rank_of, required

_SKIP_EPSILON = float(np.float32(1e-12))


# Products ---------------------------------------------------------------------------------------


def _activated(w: Writer, node: ir.Node, x: ir.Value) -> ir.Value:
    """Write the activation that a product ends with."""
    name = text(node, "activation", "")
    written = node.attributes.get("activation_params")
    params = [] if written is None else [*written.as_floats()]
    first = params[0] if params else number(node, "activation_alpha", 0.01)
    second = params[1] if len(params) > 1 else number(node, "activation_beta", 0.0)
    match name:
        case "":
            return x
        case "Relu" | "Tanh" | "Sigmoid":
            return w(name, x)
        case "LeakyRelu":
            return w(name, x, alpha=first)
        case "HardSigmoid":
            return w(name, x, alpha=first, beta=second)
        case "Clip":
            return w(name, x, w.number(first), w.number(second))
    raise Left(f"{node.op_type} with the activation `{name}`")


def _turned(w: Writer, node: ir.Node, at: int, side: str) -> ir.Value:
    """Return an operand as its attributes lay it out."""
    x = required(node, at)
    turns, batch = integer(node, f"trans{side}", 0), integer(node, f"transBatch{side}", 0)
    if not turns and not batch:
        return x
    rank = rank_of(x)
    order = list(range(rank))
    if batch and rank > 2:
        order = [*order[1:-1], 0, order[-1]]
    if turns and rank > 1:
        order[-2:] = order[:-3:-1]
    return x if order == list(range(rank)) else w("Transpose", x, perm=order)


def _scaled(w: Writer, x: ir.Value, factor: float) -> ir.Value:
    return x if factor == 1.0 else w("Mul", x, w.number(factor))


def _fused_matmul(w: Writer, node: ir.Node) -> list[ir.Value]:
    result = w("MatMul", _turned(w, node, 0, "A"), _turned(w, node, 1, "B"))
    return [_scaled(w, result, number(node, "alpha", 1.0))]


_GEMM = ("alpha", "beta", "transA", "transB")
_CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")


def _fused_gemm(w: Writer, node: ir.Node) -> list[ir.Value]:
    return [_activated(w, node, _same(w, node, "Gemm", _GEMM, 3))]


def _fused_conv(w: Writer, node: ir.Node) -> list[ir.Value]:
    result = _same(w, node, "Conv", _CONV, 3)
    other = given(node, 3)
    return [_activated(w, node, result if other is None else w("Add", result, other))]


def _same(w: Writer, node: ir.Node, op_type: str, names: tuple[str, ...], count: int) -> ir.Value:
    """Write the plain operator that a fused one begins with."""
    inputs = [given(node, at) for at in range(count)]
    result = w(op_type, *(inputs if inputs[-1] is not None else inputs[:-1]))
    made = result.producer()
    assert made is not None, "it was written just now"
    for name in names:
        if (attribute := node.attributes.get(name)) is not None:
            made.attributes.add(attribute)
    return result


# Activations ------------------------------------------------------------------------------------


def _erf_gelu(w: Writer, x: ir.Value) -> ir.Value:
    whole = w("Add", w("Erf", w("Div", x, w.number(math.sqrt(2.0)))), w.number(1.0))
    return w("Mul", w("Mul", x, whole), w.number(0.5))


def _gelu(w: Writer, node: ir.Node) -> list[ir.Value]:
    return [_erf_gelu(w, required(node, 0))]


def _bias_gelu(w: Writer, node: ir.Node) -> list[ir.Value]:
    return [_erf_gelu(w, w("Add", required(node, 0), required(node, 1)))]


def _fast_gelu(w: Writer, node: ir.Node) -> list[ir.Value]:
    x, bias = required(node, 0), given(node, 1)
    x = x if bias is None else w("Add", x, bias)
    cube = w("Mul", w("Mul", x, x), x)
    inner = w("Add", x, w("Mul", cube, w.number(0.044715)))
    turn = w("Tanh", w("Mul", inner, w.number(math.sqrt(2.0 / math.pi))))
    return [w("Mul", w("Mul", x, w("Add", turn, w.number(1.0))), w.number(0.5))]


def _quick_gelu(w: Writer, node: ir.Node) -> list[ir.Value]:
    x = required(node, 0)
    factor = number(node, "alpha", float(np.float32(1.702)))
    return [w("Mul", x, w("Sigmoid", w("Mul", x, w.number(factor))))]


def _bias_add(w: Writer, node: ir.Node) -> list[ir.Value]:
    return [w("Add", w("Add", required(node, 0), required(node, 1)), required(node, 2))]


# Normalizations ---------------------------------------------------------------------------------


def normalized(
    w: Writer, x: ir.Value, scale: ir.Value, shift: ir.Value | None, epsilon: float
) -> ir.Value:
    """Return LayerNormalization over the last axis, by the operator where the opset has it."""
    if w.opset >= 17:
        more = [] if shift is None else [shift]
        return w("LayerNormalization", x, scale, *more, axis=-1, epsilon=epsilon)
    rest = w("Sub", x, w.mean(x, -1))
    variance = w.mean(w("Mul", rest, rest), -1)
    root = w("Sqrt", w("Add", variance, w.number(epsilon)))
    result = w("Mul", w("Div", rest, root), scale)
    return result if shift is None else w("Add", result, shift)


def root_mean_square(w: Writer, x: ir.Value, scale: ir.Value, epsilon: float) -> ir.Value:
    """Return RMSNormalization over the last axis."""
    squares = w.mean(w("Mul", x, x), -1)
    root = w("Sqrt", w("Add", squares, w.number(epsilon)))
    return w("Mul", w("Div", x, root), scale)


def _skip_sum(w: Writer, node: ir.Node, bias_at: int) -> ir.Value:
    total = w("Add", required(node, 0), required(node, 1))
    bias = given(node, bias_at)
    return total if bias is None else w("Add", total, bias)


def _with_sum(node: ir.Node, result: ir.Value, total: ir.Value) -> list[ir.Value]:
    """Return the results: the sum is the fourth; statistics are written by nobody."""
    if any(out.uses() or out.is_graph_output() for out in node.outputs[1:3]):
        raise Left(f"{node.op_type} whose mean or deviation is read")
    return [result, total, total, total] if len(node.outputs) > 3 else [result]


def _skip_layer(w: Writer, node: ir.Node) -> list[ir.Value]:
    total = _skip_sum(w, node, 4)
    epsilon = number(node, "epsilon", _SKIP_EPSILON)
    result = normalized(w, total, required(node, 2), given(node, 3), epsilon)
    return _with_sum(node, result, total)


def _skip_simplified(w: Writer, node: ir.Node) -> list[ir.Value]:
    total = _skip_sum(w, node, 3)
    epsilon = number(node, "epsilon", _SKIP_EPSILON)
    return _with_sum(node, root_mean_square(w, total, required(node, 2), epsilon), total)


def _simplified(w: Writer, node: ir.Node) -> list[ir.Value]:
    x = required(node, 0)
    if integer(node, "axis", -1) not in (-1, rank_of(x) - 1):
        raise Left(f"{node.op_type} over more than the last axis")
    return [root_mean_square(w, x, required(node, 1), number(node, "epsilon", 1e-5))]


def _embed_layer(w: Writer, node: ir.Node) -> list[ir.Value]:
    ids = required(node, 0)
    total = w("Gather", required(node, 2), ids, axis=0)
    places = given(node, 8)
    if places is None:
        zero, one = (w.constant(np.array(value, np.int64)) for value in (0, 1))
        places = w.unsqueezed(w("Range", zero, w.axis_sizes(ids, 1), one), 0)
    total = w("Add", total, w("Gather", required(node, 3), places, axis=0))
    segments, table = given(node, 1), given(node, 4)
    if segments is not None and table is not None:
        total = w("Add", total, w("Gather", table, segments, axis=0))
    epsilon = number(node, "epsilon", _SKIP_EPSILON)
    result = normalized(w, total, required(node, 5), required(node, 6), epsilon)
    return [result, _lengths(w, node, ids), total][: max(1, len(node.outputs))]


def _lengths(w: Writer, node: ir.Node, ids: ir.Value) -> ir.Value:
    """Return how many tokens of each row are no padding, 0 where no mask is given."""
    mask = given(node, 7)
    if mask is None:
        rows = w.cast(w.part(ids, 1, 0, 1), ir.DataType.INT32)
        mask = w("Mul", rows, w.constant(np.array(0, np.int32)))
    if w.opset >= 13:
        return w("ReduceSum", mask, w.integers(1), keepdims=0)
    return w("ReduceSum", mask, axes=[1], keepdims=0)


DEFINITIONS: Mapping[str, Definition] = {
    "FusedMatMul": _fused_matmul,
    "FusedGemm": _fused_gemm,
    "FusedConv": _fused_conv,
    "Gelu": _gelu,
    "BiasGelu": _bias_gelu,
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "BiasAdd": _bias_add,
    "SkipLayerNormalization": _skip_layer,
    "SkipSimplifiedLayerNormalization": _skip_simplified,
    "SimplifiedLayerNormalization": _simplified,
    "EmbedLayerNormalization": _embed_layer,
}
