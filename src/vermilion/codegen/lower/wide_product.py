"""Products of 16-bit activations and 8-bit weights, exact in 64 bits.

    q - zero = 256·high + low - (zero + offset)      high and low without a sign, 8 bits each
    Σ (q - zero)·w = 256·Σ high·w + Σ low·w - (zero + offset)·Σ w

Two products of 8-bit integers, each exact in int32, are joined in int64 together with the bias
where it lies on the accumulator's grid, and rounded to float32 once. What follows is as for 8 bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.map import map_step
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.affine import Affine, Factor, Term
from vermilion.codegen.lower.context import CHANNELS_LAST, Border, Lowering, operations_of
from vermilion.codegen.lower.dequantized import quantized_constant
from vermilion.codegen.lower.elementwise import GroupExpression
from vermilion.codegen.lower.geometry import ConvGeometry, as_image, as_rows, conv_geometry
from vermilion.codegen.lower.grouped import depthwise_step, group_steps, is_depthwise
from vermilion.codegen.lower.groups import Group
from vermilion.codegen.lower.product_step import product_step
from vermilion.codegen.lower.quantized import (
    Grid,
    bias_on_grid,
    channel_axis,
    grid_of,
)
from vermilion.codegen.numeric import integer_numeric
from vermilion.codegen.tensor import View, allocate
from vermilion.ir.expression import Constant, Convert, Expression, Operand, apply
from vermilion.ir.opset import constant_of, is_operator, static_shape

Array = NDArray[Any]

_OFFSETS = {"u16": 0, "s16": 32768}
# Sums of few products are exact in float32 too.
_EXACT_FLOAT = 2**24
_POINT = ConvGeometry((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1)


@dataclass(frozen=True, eq=False)
class WideProduct:
    """A product of 16-bit data; its result is `(Σ data·weights + initial)·factor + constant`.

    Shapes: weights (O, …), initial (O,), in int64.
    """

    node: ir.Node
    data: ir.Value
    grid: Grid
    weights: Array
    initial: Array
    factor: Factor
    constant: Factor


def wide_product(node: ir.Node) -> WideProduct | None:
    """Match DQ(16-bit), DQ(constant 8-bit weights) → Conv, Gemm, MatMul; None where it is not."""
    if not is_operator(node, "Conv", "Gemm", "MatMul") or node.inputs[1] is None:
        return None
    producer = None if node.inputs[0] is None else node.inputs[0].producer()
    grid = grid_of(producer) if is_operator(producer, "DequantizeLinear") else None
    parts = quantized_constant(node.inputs[1])
    if grid is None or producer is None or parts is None or grid.storage not in _OFFSETS:
        return None
    weights, scale, axis = parts
    channels = channel_axis(node)
    source = producer.inputs[0]
    if channels is None or weights.min() < -128 or weights.max() > 127 or source is None:
        return None
    if constant_of(source) is not None:
        return None
    if scale.size > 1 and axis != channels:
        return None
    first = np.moveaxis(weights, channels, 0)
    factor = np.float64(grid.scale) * scale.reshape(-1).astype(np.float64)
    factor = np.broadcast_to(factor, (first.shape[0],))
    found = bias_on_grid(node, factor)
    if found is None:
        return None
    on_grid, constant = found
    sums = first.reshape(first.shape[0], -1).sum(axis=1)
    initial = on_grid - (grid.zero + _OFFSETS[grid.storage]) * sums
    if np.unique(factor).size == 1:
        factor = factor[0]
    return WideProduct(
        node, source, grid, first.astype(np.int8), initial, np.asarray(factor), constant
    )


def emit_wide_product(lowering: Lowering, group: Group, product: WideProduct) -> None:
    """Write both products, and one loop over their sums with all of the group."""
    root = group.root.outputs[0]
    shape = static_shape(product.node.outputs[0])
    assert shape is not None
    is_image = product.node.op_type == "Conv"
    rank = len(shape)
    order = (CHANNELS_LAST if rank == 4 else (0, 2, 1)) if is_image else None
    high, low = (
        allocate(f"{root.name} {word} sums", "i32", shape, order) for word in ("high", "low")
    )
    add_sums = _conv_sums if is_image else _row_sums
    add_sums(lowering, product, (high, low))
    build = GroupExpression(lowering, group, Operand(0, "int"), _form(product))
    build.views.append(low)
    name = (str(product.node.name), str(product.node.outputs[0].name), "initial", "i64")
    build.views.append(lowering.weight(name, lambda: product.initial, "i64", by_channel=True))
    expression = build.of(root)
    result = lowering.output(root, order)
    channels = (1, shape[1], *(1 for _ in shape[2:])) if is_image else None
    views = [_along_channels(view, channels) for view in build.views]
    names = [str(node.name) for node in group.nodes]
    lowering.add(map_step([high, *views], [result], [expression], names))


def _form(product: WideProduct) -> Affine:
    """Return what both sums stand for: operand 0 is the high one, then the low one, the initial."""
    high = apply("mul", Convert(Operand(0, "int"), "long"), Constant(256, "long"))
    total = apply("add", high, Convert(Operand(1, "int"), "long"))
    whole = Convert(apply("add", total, Operand(2, "long")), "float")
    return Affine((Term(whole, product.factor),), product.constant)


def _along_channels(view: View, shape: tuple[int, ...] | None) -> View:
    """Return what has one number a channel so that it broadcasts over images."""
    if shape is None or len(view.shape) != 1 or not view.buffer.by_channel:
        return view
    fitted = view.reshaped(shape)
    assert fitted is not None, "one dimension of more than one element needs no copy"
    return fitted


def _bytes_of(
    lowering: Lowering, product: WideProduct, source: View, targets: tuple[View, View]
) -> None:
    """Write the upper and the lower byte of every number, both without a sign."""
    offset = _OFFSETS[product.grid.storage]
    whole: Expression = Operand(0, "int")
    if offset:
        whole = apply("add", whole, Constant(offset, "int"))
    low = apply("and", whole, Constant(255, "int"))
    upper = Convert(apply("sub", whole, low), "float")
    high = Convert(apply("mul", upper, Constant(1.0 / 256.0)), "int")
    label = f"bytes of {product.data.name}"
    lowering.add(map_step([source], list(targets), [high, low], [label]))


def _conv_sums(lowering: Lowering, product: WideProduct, sums: tuple[View, View]) -> None:
    geometry = conv_geometry(product.node)
    taps = product.weights
    taps = taps.reshape(*taps.shape[:2], *geometry.kernel).transpose(0, 2, 3, 1)
    source = as_image(lowering.demand(product.data))
    zero = product.grid.zero + _OFFSETS[product.grid.storage]
    high, low = (
        _image(lowering, f"{product.data.name} {word}", source, geometry.border, byte)
        for word, byte in (("high", zero >> 8), ("low", zero & 255))
    )
    _bytes_of(lowering, product, source, (high, low))
    for part, total, word in ((high, sums[0], "high"), (low, sums[1], "low")):
        target = as_image(total)
        key = (*_key(product), word)
        if is_depthwise(geometry, taps, part.shape[1]) and _is_exact_in_float(taps):
            whole = Convert(Operand(0), "int")
            step = depthwise_step(lowering, part, taps, key, geometry, target, [], whole, [])
            lowering.add(_counted(step, product, word))
            continue
        steps = group_steps(
            lowering, part, taps, key[:-1], geometry, target, [], Operand(0, "int"), [],
            integer_numeric(lowering.isa),
        )  # fmt: skip
        lowering.add(_counted(steps[0], product, word))
        for step in steps[1:]:
            lowering.add(step)


def _image(lowering: Lowering, name: str, like: View, border: Border, byte: int) -> View:
    return lowering.bordered(name, "u8", like.shape, replace(border, byte=byte))


def _row_sums(lowering: Lowering, product: WideProduct, sums: tuple[View, View]) -> None:
    """A matrix product is a 1×1 convolution over rows: (…, K) → (…, N)."""
    outputs, width = product.weights.shape
    source = lowering.contiguous(product.data)
    high, low = (
        allocate(f"{product.data.name} {word}", "u8", source.shape) for word in ("high", "low")
    )
    _bytes_of(lowering, product, source, (high, low))
    weights = product.weights[:, None, None, :]
    for part, total, word in ((high, sums[0], "high"), (low, sums[1], "low")):
        one, target = as_rows(part, width), as_rows(total, outputs)
        step = _sums_step(lowering, one, weights, _key(product), _POINT, target)
        lowering.add(_counted(step, product, word))


def _sums_step(
    lowering: Lowering,
    source: View,
    weights: Array,
    key: tuple[str, ...],
    geometry: ConvGeometry,
    target: View,
) -> Step:
    """Return a product whose sums are kept as they are, in int32."""
    return product_step(
        lowering, source, weights, key, geometry, target, [], Operand(0, "int"), [],
        integer_numeric(lowering.isa),
    )  # fmt: skip


def _counted(step: Step, product: WideProduct, word: str) -> Step:
    """Name the step after its node; the operator's work counts once."""
    operations = operations_of([product.node]) if word == "high" else 0
    return replace(step, nodes=(str(product.node.name),), operations=operations)


def _is_exact_in_float(taps: Array) -> bool:
    sums = np.abs(taps.astype(np.int64)).sum(axis=(1, 2, 3))
    return bool((sums * 255 < _EXACT_FLOAT).all())


def _key(product: WideProduct) -> tuple[str, ...]:
    kernel = product.node.inputs[1]
    assert kernel is not None
    axis = channel_axis(product.node)
    return (str(kernel.name), product.node.op_type, f"channels at {axis}", "integer")
