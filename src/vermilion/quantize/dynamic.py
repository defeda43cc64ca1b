"""Matrix products on 8-bit integers whose activations find their range while the model runs.

Nothing of the activations is decided ahead of time, so no calibration data can mislead: what is
read is rounded with the range that it has in this run.

Before → after:
    MatMul(A, W)  →  a, s, z = DynamicQuantizeLinear(A)
                     Mul(Cast(MatMulInteger(a, w, z)), s · S)       W ≈ w · S
    Gemm(A, W, C) →  the same, then Add(·, C)
Products that read the same tensor share its rounding. Operators: ONNX opset 11.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import UnsupportedError
from vermilion.ir.attributes import flag, number
from vermilion.ir.passes.rewrite import take_place
from vermilion.quantize.algorithms.compensate import round_compensated
from vermilion.quantize.algorithms.layers import layers_of
from vermilion.quantize.algorithms.moments import Moments
from vermilion.quantize.formats import DynamicScheme
from vermilion.quantize.names import Names
from vermilion.quantize.one_thread import one_thread
from vermilion.quantize.plan import excluded_nodes

Float32 = NDArray[np.float32]


def dynamic_products(work: ir.Model, exclude: Sequence[str]) -> list[ir.Node]:
    """Return MatMul and Gemm nodes with a constant float32 matrix of their own."""
    skipped = excluded_nodes(work.graph, exclude)
    layers = layers_of(n for n in work.graph if n not in skipped and n.op_type != "Conv")
    return [
        layer.node
        for layer in layers
        if layer.weight.const_value is not None
        and layer.weight.const_value.dtype == ir.DataType.FLOAT
        and len(layer.weight.const_value.shape) == 2
        and (layer.bias is None or _adds_bias_once(layer.node))
    ]


def _adds_bias_once(node: ir.Node) -> bool:
    return number(node, "beta", 1.0) == 1.0


@one_thread()
def write_dynamic(
    work: ir.Model,
    nodes: Sequence[ir.Node],
    scheme: DynamicScheme,
    moments: Mapping[str, Moments],
    *,
    per_channel: bool = True,
) -> None:
    """Rewrite the products in place; those with moments are rounded with compensation.

    Raises: UnsupportedError where there is none.
    """
    if not nodes:
        raise UnsupportedError(
            "no operator of this model can be quantized while it runs",
            where=f"{sum(1 for _ in work.graph)} nodes",
            hint="a MatMul or Gemm with a constant float32 matrix can; take `a8w8` for Conv",
        )
    names = Names(work.graph)
    rounded: dict[ir.Value, tuple[ir.Value, ir.Value, ir.Value]] = {}
    for node in nodes:
        weight, read = node.inputs[1], node.inputs[0]
        assert weight is not None, "products have a weight"
        assert read is not None, "products read something"
        matrix, scales = _integers(node, weight, scheme, moments.get(str(weight.name)), per_channel)
        if read not in rounded:
            rounded[read] = _round_read(work.graph, node, read, names)
        stored = names.constant(f"{weight.name}_quantized", matrix)
        _replace(work.graph, node, rounded[read], stored, scales, names)
        if not weight.uses() and not weight.is_graph_output():
            del work.graph.initializers[str(weight.name)]


def _integers(
    node: ir.Node,
    weight: ir.Value,
    scheme: DynamicScheme,
    seen: Moments | None,
    per_channel: bool,
) -> tuple[NDArray[np.int8], Float32]:
    """Return a weight (K, N) as integers, and the scale of each column or of all."""
    assert weight.const_value is not None, "products have a constant weight"
    array: Float32 = weight.const_value.numpy()
    number = scheme.number
    turned = flag(node, "transB")
    columns = array.T if turned else array
    largest = np.abs(columns).max(axis=0, initial=0.0) if per_channel else np.abs(columns).max()
    scales = np.asarray(np.where(largest > 0.0, largest / number.high, 1.0), np.float32)
    if seen is None or not seen.count:
        integers = np.rint(columns / scales)
    else:
        layer = seen.layer
        spread = np.broadcast_to(scales, (columns.shape[1],))[None, :, None]
        matrices = layer.matrices(array).astype(np.float32)
        limits = (-number.high, number.high)
        found = layer.stored(
            round_compensated(matrices, seen.shown_gram(centred=False), spread, limits), array.shape
        )
        integers = found.T if turned else found
    clipped = np.clip(integers, -number.high, number.high)
    return np.ascontiguousarray(clipped.astype(np.int8)), scales


def _round_read(
    graph: ir.Graph, before: ir.Node, read: ir.Value, names: Names
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Add the rounding of what is read; give integers, scale and zero point."""
    name = names.free(f"{read.name}_DynamicQuantizeLinear")
    node = ir.node("DynamicQuantizeLinear", [read], num_outputs=3, name=name)
    kinds = (ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8)
    for value, kind, word in zip(
        node.outputs, kinds, ("quantized", "scale", "zero_point"), strict=True
    ):
        value.name = names.free(f"{read.name}_{word}")
        value.type = ir.TensorType(kind)
        value.shape = read.shape if word == "quantized" else ir.Shape([])
    graph.insert_before(before, node)
    return node.outputs[0], node.outputs[1], node.outputs[2]


def _replace(
    graph: ir.Graph,
    node: ir.Node,
    read: tuple[ir.Value, ir.Value, ir.Value],
    weight: ir.Value,
    scales: Float32,
    names: Names,
) -> None:
    integers, scale, zero_point = read
    base = str(node.outputs[0].name)

    def added(op_type: str, inputs: list[ir.Value], kind: ir.DataType, **given: int) -> ir.Value:
        name = names.free(f"{base}_{op_type}")
        made = ir.node(op_type, inputs, given, name=name)
        made.outputs[0].name = name
        made.outputs[0].type = ir.TensorType(kind)
        graph.insert_before(node, made)
        return made.outputs[0]

    real = ir.DataType.FLOAT
    summed = added("MatMulInteger", [integers, weight, zero_point], ir.DataType.INT32)
    product = added("Cast", [summed], real, to=int(real))
    columns = names.constant(f"{weight.name}_scales", scales)
    result = added("Mul", [product, added("Mul", [scale, columns], real)], real)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        result = added("Add", [result, node.inputs[2]], real)
    take_place(graph, node, result)
