"""Products of 8-bit integers → product kernels that requantize in their epilogue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.grouped import GroupedSpec
from vermilion.codegen.emit.map import map_step
from vermilion.codegen.emit.product import ProductSpec
from vermilion.codegen.kernel import Spec, Step
from vermilion.codegen.lower import product
from vermilion.codegen.lower.affine import Affine, Term
from vermilion.codegen.lower.context import Border, Lowering, identity
from vermilion.codegen.lower.elementwise import GroupExpression
from vermilion.codegen.lower.geometry import (
    ConvGeometry,
    as_image,
    as_rows,
    channels_last_order,
    conv_geometry,
)
from vermilion.codegen.lower.grouped import (
    depthwise_step,
    group_steps,
    is_depthwise,
)
from vermilion.codegen.lower.groups import Group
from vermilion.codegen.lower.product_step import plan_product, product_step
from vermilion.codegen.lower.quantized import IntegerProduct, channel_axis
from vermilion.codegen.lower.small_groups import is_of_small_groups
from vermilion.codegen.numeric import integer_numeric
from vermilion.codegen.tensor import Storage, View, allocate
from vermilion.ir.expression import Convert, Expression, Operand, apply
from vermilion.ir.opset import static_shape

Array = NDArray[Any]


def emit_integer_product(lowering: Lowering, group: Group, integer: IntegerProduct) -> None:
    """Write the product with all of its group in the epilogue."""
    if integer.node.op_type == "Conv":
        _emit_conv(lowering, group, integer)
    else:
        _emit_rows(lowering, group, integer)


def _emit_conv(lowering: Lowering, group: Group, integer: IntegerProduct) -> None:
    node = integer.node
    geometry = conv_geometry(node)
    border = replace(geometry.border, byte=integer.grid.zero)
    rank = len(integer.data.shape or ())
    if rank == 4:
        source = lowering.channels_last(integer.data, border)
    else:
        source = _line_of(lowering, integer.data, border)
    taps = integer.weights
    taps = taps.reshape(*taps.shape[:2], *geometry.kernel).transpose(0, 2, 3, 1)
    by_channel = is_depthwise(geometry, taps, source.shape[1])
    counted = 0
    if not by_channel:
        counted = _counted_taps(lowering, integer, geometry, taps, source)
    build = (
        _depthwise_start(lowering, group, integer)
        if by_channel
        else _start(lowering, group, integer, counted)
    )
    expression = build.of(group.root.outputs[0])
    result = lowering.output(group.root.outputs[0], channels_last_order(rank))
    output = as_image(result)
    operands = [product._as_operand(lowering, view, result) for view in build.views]
    key, members = _key(integer), group.nodes
    if by_channel:
        lowering.add(
            depthwise_step(
                lowering, source, taps, key, geometry, output, operands, expression, members
            )
        )
        return
    row = _row_of_sums(integer) if counted else 0
    for step in group_steps(
        lowering, source, taps, key, geometry, output, operands, expression, members,
        integer_numeric(lowering.isa), skips=counted > 0,
    ):  # fmt: skip
        lowering.add(with_initial(step, row))


def _line_of(lowering: Lowering, value: ir.Value, border: Border) -> View:
    """Return a (N, C, W) tensor as an image of one row with the border that is needed."""
    view = as_image(lowering.demand(value))
    if border.is_empty and view.strides[1] == 1:
        return view
    copy = lowering.bordered(f"{value.name} image", view.storage, view.shape, border)
    lowering.add(map_step([view], [copy], [identity(view)], [f"copy of {value.name}"]))
    return copy


def _emit_rows(lowering: Lowering, group: Group, integer: IntegerProduct) -> None:
    """Write a matrix product as a 1×1 convolution over rows: (…, K) → (…, N)."""
    outputs, width = integer.weights.shape
    source = as_rows(lowering.contiguous(integer.data), width)
    build = _start(lowering, group, integer)
    expression = build.of(group.root.outputs[0])
    result = lowering.output(group.root.outputs[0])
    target = result if result.is_contiguous else allocate("rows", result.storage, result.shape)
    operands = [operand_rows(lowering, view, result.shape, outputs) for view in build.views]
    geometry = ConvGeometry((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1)
    step = product_step(
        lowering, source, integer.weights[:, None, None, :], _key(integer), geometry,
        as_rows(target, outputs), operands, expression, group.nodes,
        integer_numeric(lowering.isa),
    )  # fmt: skip
    lowering.add(with_initial(step))
    if target is not result:
        lowering.add(map_step([target], [result], [identity(target)], [str(integer.node.name)]))


def operand_rows(lowering: Lowering, view: View, shape: tuple[int, ...], width: int) -> View:
    """Return an epilogue operand that broadcasts to (…, width) as an image like `as_rows`."""
    wide = view.broadcast(shape)
    rows = wide.elements // width if wide.elements else 0
    outer = wide.strides[:-1]
    if all(stride == 0 or size == 1 for stride, size in zip(outer, shape[:-1], strict=True)):
        return replace(view, shape=(1, width, 1, rows), strides=(0, wide.strides[-1], 0, 0))
    if wide.strides[-1] == 0 or width == 1:  # one number for each row
        column = replace(wide, shape=wide.shape[:-1], strides=outer).reshaped((rows,))
        if column is not None:
            return replace(column, shape=(1, width, 1, rows), strides=(0, 0, 0, column.strides[0]))
    flat = wide.reshaped((rows, width)) if wide.strides[-1] == 1 else None
    if flat is None:
        flat = lowering.copied(wide).reshaped((rows, width))
        assert flat is not None
    return replace(
        flat, shape=(1, width, 1, rows), strides=(0, flat.strides[1], 0, flat.strides[0])
    )


def _start(
    lowering: Lowering, group: Group, integer: IntegerProduct, counted: int = 0
) -> GroupExpression:
    """Start a group's expression from the accumulator, whose start is the first operand.

    `counted` taps have first sums of their own, 0 where one set stands for all.
    """
    form = Affine((Term(Operand(0), integer.factor),), integer.constant)
    build = GroupExpression(lowering, group, Operand(0), form)
    name = _name(integer, "i32")
    if counted:
        key = (*name, f"of {counted} taps")
        sums = lowering.weight(key, lambda: _of_taps(integer, counted), "i32", by_channel=True)
        build.views.append(replace(sums, shape=(integer.initial.size,), strides=(1,)))
    else:
        build.views.append(lowering.weight(name, lambda: integer.initial, "i32", by_channel=True))
    return build


def _counted_taps(
    lowering: Lowering, integer: IntegerProduct, geometry: ConvGeometry, taps: Array, source: View
) -> int:
    """Return how many taps, or rows of them, are counted for each patch: 0 where all are done."""
    numeric = integer_numeric(lowering.isa)
    if is_of_small_groups(geometry, taps, numeric, lowering.isa):
        return 0
    shape = static_shape(integer.node.outputs[0])
    assert shape is not None
    n, rows, columns = shape[0], *(shape[2:] if len(shape) == 4 else (1, shape[2]))
    outputs = taps.shape[0] // geometry.group
    inputs = taps.shape[3]
    result = allocate("result", "u8", (n, outputs, rows, columns), (0, 2, 3, 1))
    plan = plan_product(source, inputs, geometry, result, numeric, lowering.isa, skips=True)
    return geometry.kernel[0] * plan.taps_x if any(plan.windows) else 0


def _row_of_sums(integer: IntegerProduct) -> int:
    """Return the numbers from one tap's sums to the next's: whole vectors of channels."""
    return -(-integer.initial.size // 16) * 16


def _of_taps(integer: IntegerProduct, counted: int) -> Array:
    """Return the first sums that all pixels have, and below them those of each tap, or row of taps.

    A border holds the zero point, which the sums of all taps take away; of a tap that is left out
    nothing is taken away.
    """
    channels = integer.initial.size
    wide = integer.weights.astype(np.int64).reshape(channels, integer.weights.shape[1], counted, -1)
    sums = np.zeros((1 + counted, _row_of_sums(integer)), np.int64)
    sums[1:, :channels] = -integer.grid.zero * wide.sum(axis=(1, 3)).T
    sums[0, :channels] = integer.initial - sums[1:, :channels].sum(axis=0)
    return sums.astype(np.int32)


def _depthwise_start(lowering: Lowering, group: Group, integer: IntegerProduct) -> GroupExpression:
    """Start a group's expression from a sum of few products, which is exact in float32 too."""
    sums = np.abs(integer.weights.astype(np.int64)).sum(axis=(1, 2, 3)[: integer.weights.ndim - 1])
    storage: Storage = "f32"
    total: Expression = apply("add", Operand(0), Operand(1))
    if (sums * 255 + np.abs(integer.initial.astype(np.int64)) >= 2**24).any():
        storage = "i32"
        whole = apply("add", Convert(Operand(0), "int"), Operand(1, "int"))
        total = Convert(whole, "float")
    form = Affine((Term(total, integer.factor),), integer.constant)
    build = GroupExpression(lowering, group, Operand(0), form)
    kind = np.float32 if storage == "f32" else np.int32
    initial = integer.initial.astype(kind)
    build.views.append(
        lowering.weight(_name(integer, storage), lambda: initial, storage, by_channel=True)
    )
    return build


def _name(integer: IntegerProduct, storage: str) -> tuple[str, ...]:
    return (str(integer.node.name), str(integer.node.outputs[0].name), "initial", storage)


def with_initial(step: Step, row: int = 0) -> Step:
    """Let the accumulators start from the first operand; `row`: from sums of taps, so far apart."""
    assert isinstance(step.spec, ProductSpec | GroupedSpec)
    spec: Spec = replace(step.spec, has_initial=True)
    if row:
        assert isinstance(spec, ProductSpec), "only products leave taps out"
        spec = replace(spec, initial_row=row)
    return replace(step, spec=spec)


def _key(integer: IntegerProduct) -> tuple[str, ...]:
    kernel = integer.node.inputs[1]
    assert kernel is not None
    axis = channel_axis(integer.node)
    return (str(kernel.name), integer.node.op_type, f"channels at {axis}", "integer")
