"""Products of 8-bit integers → product kernels that requantize in their epilogue."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx_ir as ir

from vermilion.codegen.emit.map import map_step
from vermilion.codegen.kernel import Step
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
from vermilion.codegen.lower.grouped import depthwise_step, group_slices, is_depthwise
from vermilion.codegen.lower.groups import Group
from vermilion.codegen.lower.product_step import product_step
from vermilion.codegen.lower.quantized import IntegerProduct
from vermilion.codegen.numeric import integer_numeric
from vermilion.codegen.tensor import Storage, View, allocate
from vermilion.ir.expression import Convert, Expression, Operand, apply


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
    build = (
        _depthwise_start(lowering, group, integer)
        if by_channel
        else _start(lowering, group, integer)
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
    for number, (one, kernels, part, mine) in enumerate(
        group_slices(geometry, source, taps, output, operands)
    ):
        step = product_step(
            lowering, one, kernels, (*key, f"{number} of {geometry.group}"), geometry,
            part, mine, expression, members, integer_numeric(lowering.isa),
        )  # fmt: skip
        lowering.add(_with_initial(step if number == 0 else replace(step, operations=0)))


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
    operands = [_operand_rows(lowering, view, result.shape, outputs) for view in build.views]
    geometry = ConvGeometry((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1)
    step = product_step(
        lowering, source, integer.weights[:, None, None, :], _key(integer), geometry,
        as_rows(target, outputs), operands, expression, group.nodes,
        integer_numeric(lowering.isa),
    )  # fmt: skip
    lowering.add(_with_initial(step))
    if target is not result:
        lowering.add(map_step([target], [result], [identity(target)], [str(integer.node.name)]))


def _operand_rows(lowering: Lowering, view: View, shape: tuple[int, ...], width: int) -> View:
    """Return an epilogue operand that broadcasts to (…, width) as an image like `as_rows`."""
    wide = view.broadcast(shape)
    rows = wide.elements // width if wide.elements else 0
    outer = wide.strides[:-1]
    if all(stride == 0 or size == 1 for stride, size in zip(outer, shape[:-1], strict=True)):
        return replace(view, shape=(1, width, 1, rows), strides=(0, wide.strides[-1], 0, 0))
    flat = wide.reshaped((rows, width)) if wide.strides[-1] == 1 else None
    if flat is None:
        flat = lowering.copied(wide).reshaped((rows, width))
        assert flat is not None
    return replace(
        flat, shape=(1, width, 1, rows), strides=(0, flat.strides[1], 0, flat.strides[0])
    )


def _start(lowering: Lowering, group: Group, integer: IntegerProduct) -> GroupExpression:
    """Start a group's expression from the accumulator, whose start is the first operand."""
    form = Affine((Term(Operand(0), integer.factor),), integer.constant)
    build = GroupExpression(lowering, group, Operand(0), form)
    build.views.append(lowering.weight(_name(integer, "i32"), lambda: integer.initial, "i32"))
    return build


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
    build.views.append(lowering.weight(_name(integer, storage), lambda: initial, storage))
    return build


def _name(integer: IntegerProduct, storage: str) -> tuple[str, ...]:
    return (str(integer.node.name), str(integer.node.outputs[0].name), "initial", storage, "bias")


def _with_initial(step: Step) -> Step:
    return replace(step, spec=replace(step.spec, has_initial=True))  # type: ignore[type-var]


def _key(integer: IntegerProduct) -> tuple[str, ...]:
    kernel = integer.node.inputs[1]
    assert kernel is not None
    return (str(kernel.name), integer.node.op_type, "integer")
