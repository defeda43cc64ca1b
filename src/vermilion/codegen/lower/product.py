"""Convolutions and matrix products with constant weights → product kernels with their epilogue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.map import map_step
from vermilion.codegen.lower.attention import emit_attention
from vermilion.codegen.lower.context import Border, Lowering, converted
from vermilion.codegen.lower.elementwise import GroupExpression
from vermilion.codegen.lower.geometry import (
    ConvGeometry,
    as_image,
    channels_last_order,
    conv_geometry,
    conv_shape,
)
from vermilion.codegen.lower.grouped import depthwise_step, group_steps, is_depthwise
from vermilion.codegen.lower.groups import Group
from vermilion.codegen.lower.matmul import emit_gemm, emit_matmul
from vermilion.codegen.lower.strassen import halved_axis, is_cheaper, strassen_steps
from vermilion.codegen.lower.transposed import transposed_border, transposed_steps
from vermilion.codegen.lower.winograd import Shape, choose_scheme, needed_border, winograd_steps
from vermilion.codegen.numeric import Numeric, multiplied_storage, numeric_for, stored_weights
from vermilion.codegen.tensor import Storage, View
from vermilion.ir.expression import Constant, Expression, Operand, apply
from vermilion.ir.opset import constant_of, static_shape
from vermilion.ir.symbolic import is_known

Array = NDArray[Any]


def emit_product(lowering: Lowering, group: Group) -> None:
    """Write the group's product with all of the group in its epilogue."""
    node = group.anchor
    assert node is not None
    attention = lowering.attentions.get(node)
    if attention is not None:
        emit_attention(lowering, group, attention)
        return
    lower = {
        "Conv": _emit_conv,
        "ConvTranspose": _emit_transposed,
        "Gemm": emit_gemm,
        "MatMul": emit_matmul,
    }[node.op_type]
    lower(lowering, group, node)


def epilogue(
    lowering: Lowering, group: Group, start: Expression, first: Sequence[View]
) -> tuple[Expression, list[View]]:
    """Return the group's expression over the accumulator, and the tensors that it reads.

    `start` is the product itself: operand 0 is the accumulator, the next are `first`.
    """
    build = GroupExpression(lowering, group, start)
    build.views.extend(first)
    return build.of(group.root.outputs[0]), build.views


def _emit_conv(lowering: Lowering, group: Group, node: ir.Node) -> None:
    geometry = conv_geometry(node)
    data, kernel = node.inputs[0], node.inputs[1]
    assert data is not None
    assert kernel is not None
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    weights = _constant(kernel)
    weights = weights.reshape(*weights.shape[:2], *geometry.kernel)
    taps, key = weights.transpose(0, 2, 3, 1), (str(kernel.name), "conv")
    scheme = winograd_scheme(lowering, node)
    has_own_kernels = is_depthwise(geometry, taps, (static_shape(data) or (0, 0))[1])
    # The depthwise kernel and Winograd's transforms read any type.
    storage = lowering.storage(data)
    if not has_own_kernels and not (scheme and storage == "bf16"):
        storage = multiplied_storage(storage, lowering.isa)
    source = _source_of(lowering, node, geometry, scheme, storage)
    if not has_own_kernels:
        taps = stored_weights(taps, lowering.storage(data))
    start, first = _biased(lowering, bias)
    expression, views = epilogue(lowering, group, start, first)
    root = group.root.outputs[0]
    rank = len(data.shape or ())
    result = lowering.output(root, channels_last_order(rank))
    output = as_image(result)
    operands = [_as_operand(lowering, view, result) for view in views]
    members = group.nodes
    if scheme:
        for step in winograd_steps(
            lowering, scheme, source, taps, key, geometry, output, operands, expression, members
        ):
            lowering.add(step)
        return
    if has_own_kernels:
        lowering.add(
            depthwise_step(
                lowering, source, taps, key, geometry, output, operands, expression, members
            )
        )
        return
    numeric = numeric_for(source.storage, lowering.isa)
    assert numeric is not None, f"no product on {source.storage}"
    if _has_seven_products(lowering, geometry, numeric, source, output):
        matrix = taps.reshape(taps.shape[0], taps.shape[3]).T
        left, target, *mine = (_pixels_first(v) for v in (source, output, *operands))
        strassen_steps(lowering, left, matrix, "/".join(key), target, mine, expression, members)
        return
    for step in group_steps(
        lowering, source, taps, key, geometry, output, operands, expression, members, numeric,
        skips=True,
    ):  # fmt: skip
        lowering.add(step)


def _source_of(
    lowering: Lowering, node: ir.Node, geometry: ConvGeometry, scheme: int, storage: Storage
) -> View:
    """Return what a convolution reads, in this type, with the border that it needs."""
    data = node.inputs[0]
    assert data is not None
    if len(data.shape or ()) != 4:
        return _image_of(lowering, data, geometry.border, storage)
    border = geometry.border
    if scheme:
        border = needed_border(geometry, Shape(*conv_shape(node)), scheme)
    return lowering.channels_last(data, border, storage)


def _has_seven_products(
    lowering: Lowering, geometry: ConvGeometry, numeric: Numeric, source: View, output: View
) -> bool:
    """Say whether a convolution is a matrix product that Strassen's algorithm does faster."""
    pixels = _pixels_first(output).shape[:-1]
    return (
        lowering.winograd
        and numeric.name == "f32"
        and geometry.kernel == (1, 1)
        and geometry.strides == (1, 1)
        and geometry.group == 1
        and geometry.border.is_empty
        and all(map(is_known, pixels))
        and halved_axis((*pixels, 1)) is not None
        and is_cheaper(math.prod(pixels), source.shape[1], output.shape[1], lowering.isa)
    )


def _pixels_first(view: View) -> View:
    return view.permuted((0, 2, 3, 1))


def _emit_transposed(lowering: Lowering, group: Group, node: ir.Node) -> None:
    data, kernel = node.inputs[0], node.inputs[1]
    assert data is not None
    assert kernel is not None
    storage = multiplied_storage(lowering.storage(data), lowering.isa)
    rank = len(data.shape or ())
    border = transposed_border(node)
    if rank == 4:
        source = lowering.channels_last(data, border, storage)
    else:
        source = _image_of(lowering, data, border, storage)
    start, first = _biased(lowering, node.inputs[2] if len(node.inputs) > 2 else None)
    expression, views = epilogue(lowering, group, start, first)
    result = lowering.output(group.root.outputs[0], channels_last_order(rank))
    operands = [_as_operand(lowering, view, result) for view in views]
    members = group.nodes
    weights = stored_weights(_constant(kernel), lowering.storage(data))
    for step in transposed_steps(
        lowering, node, source, weights, as_image(result), operands, expression, members
    ):
        lowering.add(step)


def winograd_scheme(lowering: Lowering, node: ir.Node) -> int:
    """Return the tile of the Winograd scheme that a convolution uses, 0 for none."""
    if not lowering.winograd or len(node.outputs[0].shape or ()) != 4:
        return 0
    geometry, shape = conv_geometry(node), Shape(*conv_shape(node))
    if geometry.dilations != (1, 1) and not all(map(is_known, astuple(shape))):
        return 0
    is_half = lowering.float_storage == "bf16" and lowering.isa.has_bf16
    return choose_scheme(geometry, shape, lowering.isa, is_half=is_half)


def _image_of(lowering: Lowering, value: ir.Value, border: Border, storage: Storage) -> View:
    """Return a (N, C, W) tensor as an image of one row with the border that is needed."""
    view = as_image(lowering.demand(value))
    n, c, h, w = view.shape
    if border.is_empty and view.strides[1] == 1 and view.storage == storage:
        return view
    copy = lowering.bordered(f"{value.name} image", storage, (n, c, h, w), border)
    lowering.add(map_step([view], [copy], [converted(view, copy)], [f"copy of {value.name}"]))
    return copy


def _constant(value: ir.Value) -> Array:
    constant = constant_of(value)
    assert constant is not None, "a claimed product has constant weights"
    array: Array = constant.numpy()
    is_half = constant.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return array.astype(np.float32) if is_half else array


def _biased(lowering: Lowering, bias: ir.Value | None) -> tuple[Expression, list[View]]:
    """Return the product plus its bias, and the bias as a tensor of one number a channel."""
    if bias is None:
        return Operand(0), []
    array = _constant(bias).astype(np.float32)
    if array.size == 1:
        return apply("add", Operand(0), Constant(float(array.reshape(-1)[0]))), []
    view = lowering.weight((str(bias.name),), lambda: array.reshape(-1), "f32", by_channel=True)
    return apply("add", Operand(0), Operand(1)), [view]


def _as_operand(lowering: Lowering, view: View, result: View) -> View:
    """Return an epilogue operand as an image that broadcasts to the result's, channels dense."""
    if len(view.shape) == 1 and view.buffer.by_channel:
        return replace(view, shape=(1, view.shape[0], 1, 1), strides=(0, 1, 0, 0))
    wide = view.broadcast(result.shape)
    channels = wide.strides[1]
    if channels not in (0, 1) and wide.shape[1] != 1:
        missing = len(result.shape) - len(view.shape)
        view = replace(
            view, shape=(1,) * missing + view.shape, strides=(0,) * missing + view.strides
        )
        view = lowering.copied(view, channels_last_order(len(view.shape)))
        wide = view.broadcast(result.shape)
    if wide.shape[1] == 1:
        wide = replace(wide, strides=(wide.strides[0], 0, *wide.strides[2:]))
    return as_image(wide)
