"""Products of 8-bit integers → product kernels that requantize in their epilogue."""

from __future__ import annotations

from dataclasses import replace

from vermilion.codegen.expression import Operand
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower import product
from vermilion.codegen.lower.affine import Affine, Term
from vermilion.codegen.lower.context import Lowering
from vermilion.codegen.lower.elementwise import GroupExpression
from vermilion.codegen.lower.groups import Group
from vermilion.codegen.lower.quantized import IntegerProduct
from vermilion.codegen.numeric import Numeric, numeric_for


def emit_integer_product(lowering: Lowering, group: Group, integer: IntegerProduct) -> None:
    """Write the product with all of its group in the epilogue."""
    if integer.node.op_type == "Conv":
        _emit_conv(lowering, group, integer)
    else:
        _emit_rows(lowering, group, integer)


def _emit_conv(lowering: Lowering, group: Group, integer: IntegerProduct) -> None:
    node = integer.node
    geometry = product.conv_geometry(node)
    border = replace(geometry.border, byte=integer.grid.zero)
    rank = len(integer.data.shape or ())
    if rank == 4:
        source = lowering.channels_last(integer.data, border)
    else:
        source = product._image_of(lowering, integer.data, geometry, integer.grid.zero)
    kernel = integer.weights
    kernel = kernel.reshape(*kernel.shape[:2], *geometry.kernel).transpose(0, 2, 3, 1)
    build = _expression(lowering, group, integer)
    expression = build.of(group.root.outputs[0])
    result = lowering.output(group.root.outputs[0], product._channels_last_order(rank))
    operands = [product._as_operand(lowering, view, result) for view in build.views]
    step = product.product_step(
        lowering, source, kernel, _key(integer), geometry, product.as_image(result), operands,
        expression, list(group.members), _numeric(lowering),
    )  # fmt: skip
    lowering.add(_with_initial(step))


def _emit_rows(lowering: Lowering, group: Group, integer: IntegerProduct) -> None:
    """Write a matrix product as a 1×1 convolution over rows: (…, K) → (…, N)."""
    outputs, width = integer.weights.shape
    source = product._rows_of(lowering.contiguous(integer.data), width)
    build = _expression(lowering, group, integer)
    expression = build.of(group.root.outputs[0])
    result = lowering.output(group.root.outputs[0])
    operands = [
        product._operand_rows(lowering, view, result.shape, outputs) for view in build.views
    ]
    geometry = product.ConvGeometry((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1)
    step = product.product_step(
        lowering, source, integer.weights[:, None, None, :], _key(integer), geometry,
        product._rows_of(result, outputs), operands, expression, list(group.members),
        _numeric(lowering),
    )  # fmt: skip
    lowering.add(_with_initial(step))


def _expression(
    lowering: Lowering, group: Group, integer: IntegerProduct
) -> GroupExpression:
    """Start a group's expression from the accumulator, whose start is the first operand."""
    term = Term(Operand(0), integer.factor)
    build = GroupExpression(
        lowering, group, Operand(0), Affine((term,), integer.constant)
    )
    name = (str(integer.node.name), str(integer.node.outputs[0].name), "initial", "bias")
    # The kernel reads whole vectors: the last may reach beyond the channels.
    initial = lowering.weight(name, lambda: integer.initial, "i32")
    build.views.append(initial)
    return build


def _with_initial(step: Step) -> Step:
    return replace(step, spec=replace(step.spec, has_initial=True))  # type: ignore[type-var]


def _key(integer: IntegerProduct) -> tuple[str, ...]:
    kernel = integer.node.inputs[1]
    assert kernel is not None
    return (str(kernel.name), integer.node.op_type, "integer")


def _numeric(lowering: Lowering) -> Numeric:
    numeric = numeric_for("u8", lowering.isa)
    assert numeric is not None, "products of 8-bit integers exist everywhere"
    return numeric

