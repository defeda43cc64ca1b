"""Pooling and reductions."""

from __future__ import annotations

import math

import onnx_ir as ir

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE
from vermilion.codegen.emit.map import collapse
from vermilion.codegen.emit.pool import PoolSpec
from vermilion.codegen.emit.reduce import ReduceSpec, mean_of
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import CHANNELS_LAST, Border, Lowering, operations_of
from vermilion.codegen.lower.geometry import as_image, channels_last_order, pads_of
from vermilion.codegen.lower.shapes import constant_ints
from vermilion.codegen.tensor import View, allocate
from vermilion.ir.attributes import flag, integer, integers, text, window_of
from vermilion.ir.expression import Convert, Expression, Operand, apply
from vermilion.ir.opset import static_shape
from vermilion.ir.symbolic import is_known

_REDUCTIONS = {
    "ReduceMean": ("add", "mean"),
    "ReduceSum": ("add", ""),
    "ReduceMax": ("max", ""),
    "ReduceMin": ("min", ""),
    "ReduceProd": ("mul", ""),
    "ReduceSumSquare": ("add", "square"),
    "ReduceL2": ("add", "norm"),
}


def check_pool(node: ir.Node) -> str:
    """Say why a MaxPool or AveragePool is not generated, empty if it is."""
    shape = static_shape(node.inputs[0]) or ()
    if len(shape) not in (3, 4):
        return f"{node.op_type} that is not over images"
    if len(node.outputs) > 1 and node.outputs[1].name:
        return "MaxPool that also gives indices"
    if not text(node, "auto_pad", "NOTSET").startswith("SAME"):
        return ""
    # ONNX Runtime leaves dilations out of the pads that it chooses, against the standard, and
    # begins behind the first pixel where strides are longer than the window.
    kernel = integers(node, "kernel_shape", [])
    if any(dilation != 1 for dilation in integers(node, "dilations", [])):
        return f"{node.op_type} that chooses its pads, with dilations"
    for size, length, stride in zip(
        shape[2:], kernel, integers(node, "strides", [1] * len(kernel)), strict=True
    ):
        if (-(-size // stride) - 1) * stride + length < size:
            return f"{node.op_type} that chooses its pads, with strides beyond the window"
    return ""


def lower_pool(lowering: Lowering, node: ir.Node) -> None:
    """MaxPool and AveragePool over images."""
    data = node.inputs[0]
    assert data is not None
    result = lowering.output(node.outputs[0], channels_last_order(len(static_shape(data) or ())))
    source, target = image_of(lowering, data), as_image(result)
    # A row of pixels is an image one pixel high.
    kernel, strides, dilations = (
        (1, *found)[-2:]
        for found in (
            integers(node, "kernel_shape", []),
            integers(node, "strides", [1, 1]),
            integers(node, "dilations", [1, 1]),
        )
    )
    pads = _image_pads(node)
    n, c, h, w = source.shape
    spec = PoolSpec(
        operation="max" if node.op_type == "MaxPool" else "average",
        storage=source.storage, out_storage=target.storage,
        images=n, channels=c, in_rows=h, in_columns=w,
        rows=target.shape[2], columns=target.shape[3],
        kernel=(kernel[0], kernel[1]), strides=(strides[0], strides[1]),
        dilations=(dilations[0], dilations[1]), pads=pads,
        source=(source.strides[0], source.strides[2], source.strides[3]),
        target=(target.strides[0], target.strides[2], target.strides[3]),
        counts_pads=flag(node, "count_include_pad"),
    )  # fmt: skip
    lowering.add(Step(spec, (source, target), (target,), (str(node.name),), operations_of([node])))


def _image_pads(node: ir.Node) -> tuple[int, int, int, int]:
    kernel = integers(node, "kernel_shape", [])
    pads = pads_of(node, window_of(node, kernel))
    return (pads[0], pads[1], pads[2], pads[3]) if len(kernel) == 2 else (0, pads[0], 0, pads[1])


def image_of(lowering: Lowering, value: ir.Value) -> View:
    """Return images, or rows of pixels, with channels side by side."""
    if len(static_shape(value) or ()) == 4:
        return lowering.channels_last(value, Border())
    view = lowering.demand(value)
    return as_image(view if view.strides[1] == 1 else lowering.copied(view, (0, 2, 1)))


def terms_of(node: ir.Node) -> int:
    """Return how many numbers a reduction makes one of."""
    shape = static_shape(node.inputs[0]) or ()
    return math.prod(shape[axis] for axis in _axes(node, len(shape))[0])


def lower_reduce(lowering: Lowering, node: ir.Node) -> None:
    """GlobalAveragePool, GlobalMaxPool and the Reduce operators."""
    data = node.inputs[0]
    assert data is not None
    source = lowering.demand(data)
    axes, keep = _axes(node, len(source.shape))
    combine, form = {
        "GlobalAveragePool": ("add", "mean"), "GlobalMaxPool": ("max", ""), **_REDUCTIONS,
    }[node.op_type]  # fmt: skip
    count = math.prod(source.shape[axis] for axis in axes)
    value = node.outputs[0]
    order = CHANNELS_LAST if len(static_shape(value) or ()) == 4 else None
    target = lowering.output(value, order)
    wide = _kept_view(target, source, axes, keep)
    kept_axes = [a for a in range(len(source.shape)) if a not in axes]
    kept = _dims(source, wide, kept_axes)
    reduced = collapse([source.shape[a] for a in axes], [tuple(source.strides[a] for a in axes)], 0)
    squared = apply("mul", Operand(0), Operand(0))
    prepare: Expression = squared if form in ("square", "norm") else Operand(0)
    endings = {"mean": mean_of(count), "norm": apply("sqrt", Operand(0))}
    finish: Expression = endings.get(form, Operand(0))
    if KIND_OF_STORAGE[source.storage] == "int":  # of a quantized tensor: exact in float32
        prepare, finish = Convert(Operand(0, "int"), "float"), Convert(finish, "int")
    spec = ReduceSpec(
        combine, source.storage, target.storage, kept,  # type: ignore[arg-type]
        tuple((size, strides[0]) for size, strides in reduced), prepare, finish,
        count if form == "mean" and not is_known(count) else 1,
    )  # fmt: skip
    lowering.add(Step(spec, (source, wide), (target,), (str(node.name),), operations_of([node])))


def integer_sums(lowering: Lowering, view: View, axis: int) -> View:
    """Return the sums of 8-bit integers along one axis, which is kept, in int32.

    They are exact: of so few numbers as float32 adds up exactly.
    """
    at = axis % len(view.shape)
    shape = [1 if other == at else size for other, size in enumerate(view.shape)]
    label = f"sums of {view.buffer.name}"
    target = allocate(label, "i32", shape)
    kept = _dims(view, target, [other for other in range(len(shape)) if other != at])
    spec = ReduceSpec(
        "add", view.storage, "i32", kept, ((view.shape[at], view.strides[at]),),
        Convert(Operand(0, "int"), "float"), Convert(Operand(0), "int"),
    )  # fmt: skip
    lowering.add(Step(spec, (view, target), (target,), (label,)))
    return target


def _axes(node: ir.Node, rank: int) -> tuple[list[int], bool]:
    if node.op_type.startswith("Global"):
        return list(range(2, rank)), True
    axes = constant_ints(node, 1)
    if not axes:  # an empty list means all of them too
        axes = list(integers(node, "axes", range(rank)))
    return sorted(axis % rank for axis in axes), bool(integer(node, "keepdims", 1))


def _kept_view(target: View, source: View, axes: list[int], keep: bool) -> View:
    """Return the result with one entry for each reduced axis."""
    if keep:
        return target
    shape = [1 if axis in axes else size for axis, size in enumerate(source.shape)]
    wide = target.reshaped(shape)
    assert wide is not None, "adding dimensions of one element needs no copy"
    return wide


def _dims(source: View, target: View, axes: list[int]) -> tuple[tuple[int, int, int], ...]:
    """Return the kept dimensions, merged; the target's densest comes last."""
    dims = collapse(
        [source.shape[a] for a in axes],
        [tuple(target.strides[a] for a in axes), tuple(source.strides[a] for a in axes)],
        0,
    )
    return tuple((size, strides[1], strides[0]) for size, strides in dims)
