"""Weights of matrix products in 4 bits, a scale for each block of what is summed over.

Before → after, fused:   MatMul(A, W) → com.microsoft.MatMulNBits(A, packed, scales[, zero points])
Before → after, else:    MatMul(A, W) → MatMul(A, DequantizeLinear(int4, scales[, zero points]))
Symmetric weights are stored as the operator expects: 4 bits without sign, 8 standing for zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import UnsupportedError
from vermilion.ir.passes.rewrite import take_place
from vermilion.quantize.algorithms.compensate import round_compensated
from vermilion.quantize.algorithms.descend import descend
from vermilion.quantize.algorithms.moments import Moments
from vermilion.quantize.formats import WeightScheme
from vermilion.quantize.names import Names
from vermilion.quantize.one_thread import one_thread
from vermilion.quantize.options import BLOCKS
from vermilion.quantize.plan import excluded_nodes

Float32 = NDArray[np.float32]

BLOCKED_OPSET = 21  # DequantizeLinear-21: blocks, 4 bits
_BITS = 4
_MIDDLE = 8
_LEVELS = 15
# Parts of the covering scale that are tried for each block.
_PARTS = np.linspace(1.0, 0.7, 13, dtype=np.float32)


@dataclass(frozen=True)
class Blocked:
    """A weight (K, N) in 4 bits.

    Shapes: `codes` (N, K rounded up to whole blocks) from 0 to 15, `scales` and `zeros` (N, K ÷
    block).
    """

    codes: NDArray[np.uint8]
    scales: Float32
    zeros: NDArray[np.uint8]


def products_of(work: ir.Model, exclude: Sequence[str], block: int) -> list[ir.Node]:
    """Return the matrix products whose weight is a constant of at least one block."""
    skipped = excluded_nodes(work.graph, exclude)
    return [n for n in work.graph if n not in skipped and _is_product(n, block)]


def _is_product(node: ir.Node, block: int) -> bool:
    if node.op_type != "MatMul" or node.domain not in ("", "ai.onnx"):
        return False
    weight = node.inputs[1]
    if weight is None or weight.const_value is None or node.inputs[0] is None:
        return False
    tensor = weight.const_value
    return (
        node.inputs[0].const_value is None
        and tensor.dtype == ir.DataType.FLOAT
        and len(tensor.shape) == 2
        and tensor.shape.numpy()[0] >= block
    )


def write_weights(
    work: ir.Model,
    nodes: Sequence[ir.Node],
    scheme: WeightScheme,
    block: int,
    moments: Mapping[str, Moments],
) -> None:
    """Rewrite the products in place.

    Raises: UnsupportedError where there is none.
    """
    if not nodes:
        raise UnsupportedError(
            "no operator of this model can have its weights alone quantized",
            where=f"{sum(1 for _ in work.graph)} nodes",
            hint=f"a MatMul with a constant float32 matrix of {block} rows or more can",
        )
    names = Names(work.graph)
    done: dict[ir.Value, Blocked] = {}
    for node in nodes:
        weight = node.inputs[1]
        assert weight is not None, "products have a weight"
        array = _array(weight)
        own = block if scheme.fused else _dividing(array.shape[0], block)
        if weight not in done:
            seen = moments.get(str(weight.name))
            done[weight] = block_weight(array, own, scheme.number.is_signed, seen)
        write = _write_fused if scheme.fused else _write_dequantized
        write(work.graph, node, weight, done[weight], scheme, own, names)
    for weight in done:
        if not weight.uses() and not weight.is_graph_output():
            del work.graph.initializers[str(weight.name)]


def _dividing(width: int, block: int) -> int:
    """Return the largest block, up to `block`, that leaves no shorter one at the end.

    ONNX allows a shorter one, OpenVINO 2026.4 does not read it.
    """
    return next((b for b in reversed(BLOCKS) if b <= block and width % b == 0), block)


def _array(weight: ir.Value) -> Float32:
    assert weight.const_value is not None, "products have a constant weight"
    array: Float32 = weight.const_value.numpy()
    return array


@one_thread()
def block_weight(
    weight: Float32, block: int, symmetric: bool, seen: Moments | None = None
) -> Blocked:
    """Round a weight (K, N), with compensation where it is known what it is multiplied with."""
    width, outputs = weight.shape
    importance = np.ones(width, np.float32)
    if seen is not None and seen.count:
        gram = seen.shown_gram(centred=False)
        importance = np.diagonal(gram, axis1=1, axis2=2).reshape(-1)
    short = -width % block
    rows = np.pad(weight.T, [(0, 0), (0, short)]).reshape(outputs, -1, block)
    weighing = np.pad(importance, (0, short)).reshape(1, -1, block)
    scales, zeros = block_parameters(rows, weighing, symmetric=symmetric)
    if seen is None or not seen.count:
        codes = np.clip(np.rint(rows / scales) + zeros, 0, _LEVELS)
    else:
        layer = seen.layer
        spread = [
            layer.matrices(np.repeat(a[:, :, 0], block, axis=1)[:, :width].T)
            for a in (scales, zeros)
        ]
        matrices = layer.matrices(weight).astype(np.float32)
        rounded = round_compensated(matrices, gram, spread[0], (0, _LEVELS), spread[1])
        back = np.ascontiguousarray(layer.stored(rounded, weight.shape).T)
        if layer.width % block == 0 and seen.count >= layer.width:
            back, fine = _descended(weight, back, (scales[:, :, 0], zeros[:, :, 0]), gram)
            scales = fine[:, :, None]
        codes = np.pad(back, [(0, 0), (0, short)])
        codes[:, width:] = np.repeat(zeros[:, -1], short, axis=1) if short else 0
    return Blocked(
        codes.reshape(outputs, -1).astype(np.uint8),
        scales[:, :, 0].astype(np.float32),
        zeros[:, :, 0].astype(np.uint8),
    )


def _descended(
    weight: Float32, codes: Float32, given: tuple[Float32, Float32], gram: Float32
) -> tuple[Float32, Float32]:
    """Return better codes (N, K) and scales (N, K ÷ block), block of the row by block."""
    rows = np.ascontiguousarray(weight.T)
    columns = np.split(np.arange(rows.shape[1]), len(gram))
    parts = [np.split(array, len(gram), axis=1) for array in given]
    found = [
        descend(rows[:, at], codes[:, at], scales, zeros, matrix, (0, _LEVELS))
        for at, scales, zeros, matrix in zip(columns, *parts, gram, strict=True)
    ]
    return np.hstack([f[0] for f in found]), np.hstack([f[1] for f in found])


def block_parameters(
    rows: Float32, weighing: Float32, *, symmetric: bool
) -> tuple[Float32, Float32]:  # fmt: skip
    """Choose scale and zero point of each block by the least error, weighed by what is read.

    Shapes: rows (N, blocks, block), weighing (1, blocks, block), both results (N, blocks, 1).
    """
    if symmetric:
        index = np.abs(rows).argmax(axis=2)[:, :, None]
        extreme = np.take_along_axis(rows, index, axis=2)
        # The largest takes code 0, the only end that reaches 8; so the scale may be negative.
        covering = extreme / np.float32(-_MIDDLE)
        zeros = np.full_like(covering, _MIDDLE)
    else:
        low = np.minimum(rows.min(axis=2, keepdims=True), 0.0)
        high = np.maximum(rows.max(axis=2, keepdims=True), 0.0)
        covering = (high - low) / np.float32(_LEVELS)
        covering = np.where(covering == 0.0, np.float32(1.0), covering)
        zeros = np.clip(np.rint(-low / covering), 0, _LEVELS).astype(np.float32)
    covering = np.where(covering == 0.0, np.float32(1.0), covering)
    best, least = covering, np.full(covering.shape, np.inf, np.float32)
    for part in _PARTS:
        scales = covering * part
        codes = np.clip(np.rint(rows / scales) + zeros, 0, _LEVELS)
        off = rows - (codes - zeros) * scales
        error = (off * off * weighing).sum(axis=2, keepdims=True)
        best = np.where(error < least, scales, best)
        least = np.minimum(error, least)
    return best, zeros


def _packed(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Put two codes into a byte, the first into its lower half."""
    if codes.shape[-1] % 2:
        codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, 1)])
    upper: NDArray[np.uint8] = np.left_shift(codes[..., 1::2], np.uint8(_BITS))
    packed: NDArray[np.uint8] = codes[..., 0::2] | upper
    return packed


def _write_fused(
    graph: ir.Graph,
    node: ir.Node,
    weight: ir.Value,
    blocked: Blocked,
    scheme: WeightScheme,
    block: int,
    names: Names,
) -> None:
    width, outputs = _array(weight).shape
    bytes_ = _packed(blocked.codes.reshape(outputs, -1, block))
    inputs = [
        node.inputs[0],
        names.constant(f"{weight.name}_packed", bytes_),
        names.constant(f"{weight.name}_scales", blocked.scales),
    ]
    if not scheme.number.is_signed:
        inputs.append(names.constant(f"{weight.name}_zero_points", _packed(blocked.zeros)))
    attributes = {"K": width, "N": outputs, "bits": _BITS, "block_size": block}
    fused = ir.node("MatMulNBits", inputs, attributes, domain="com.microsoft", name=str(node.name))
    graph.opset_imports["com.microsoft"] = 1
    graph.insert_after(node, fused)
    take_place(graph, node, fused.outputs[0])


def _write_dequantized(
    graph: ir.Graph,
    node: ir.Node,
    weight: ir.Value,
    blocked: Blocked,
    scheme: WeightScheme,
    block: int,
    names: Names,
) -> None:
    width = _array(weight).shape[0]
    codes = blocked.codes[:, :width].T
    scales = names.constant(f"{weight.name}_scales", blocked.scales.T)
    inputs: list[ir.Value]
    if scheme.number.is_signed:
        signed = (codes.astype(np.int8) - _MIDDLE).astype(ml_dtypes.int4)
        inputs = [names.constant(f"{weight.name}_quantized", signed), scales]
    else:
        stored = names.constant(f"{weight.name}_quantized", codes.astype(ml_dtypes.uint4))
        zeros = blocked.zeros.T.astype(ml_dtypes.uint4)
        inputs = [stored, scales, names.constant(f"{weight.name}_zero_points", zeros)]
    dequantize = ir.node(
        "DequantizeLinear",
        inputs,
        {"axis": 0, "block_size": block},
        name=names.free(f"{weight.name}_DequantizeLinear"),
    )
    result = dequantize.outputs[0]
    result.name = names.free(f"{weight.name}_dequantized")
    result.type, result.shape = ir.TensorType(ir.DataType.FLOAT), weight.shape
    graph.insert_before(node, dequantize)
    node.replace_input_with(1, result)
