"""Softmax and normalizations."""

from __future__ import annotations

import math

import onnx_ir as ir

from vermilion.codegen.emit.map import collapse
from vermilion.codegen.emit.normalize import NormalizeSpec
from vermilion.codegen.emit.softmax import SoftmaxSpec
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering, operations_of
from vermilion.codegen.lower.elementwise import layout_like
from vermilion.codegen.tensor import View, allocate
from vermilion.ir.attributes import integer, number
from vermilion.ir.opset import constant_of, static_shape


def lower_softmax(lowering: Lowering, node: ir.Node) -> None:
    """Softmax and LogSoftmax: the result lies as its input does."""
    data = node.inputs[0]
    assert data is not None
    source = lowering.demand(data)
    rank = len(source.shape)
    axis = integer(node, "axis", -1) % rank
    result = node.outputs[0]
    target = lowering.output(result, layout_like([source], rank), lowering.result_storage(result))
    kept = collapse(
        [size for at, size in enumerate(source.shape) if at != axis],
        [
            tuple(stride for at, stride in enumerate(view.strides) if at != axis)
            for view in (target, source)
        ],
        0,
    )
    spec = SoftmaxSpec(
        source.storage, target.storage, tuple((size, (come, go)) for size, (go, come) in kept),
        source.shape[axis], source.strides[axis], target.strides[axis],
        node.op_type == "LogSoftmax", lowering.isa.lanes,
    )  # fmt: skip
    lowering.add(Step(spec, (source, target), (target,), (str(node.name),), operations_of([node])))


def check_normalization(node: ir.Node) -> str:
    """Say why a LayerNormalization or RMSNormalization is not generated, empty if it is."""
    shape = static_shape(node.inputs[0])
    assert shape is not None
    inner = shape[integer(node, "axis", -1) % len(shape) :]
    for value in node.inputs[1:]:
        if value is not None and static_shape(value) != inner:
            return f"{node.op_type} with a scale or shift of another shape than what is normalized"
    if any(v.name and (v.uses() or v.is_graph_output()) for v in node.outputs[1:]):
        return f"{node.op_type} that also gives mean or deviation"
    return ""


def lower_normalization(lowering: Lowering, node: ir.Node) -> None:
    """LayerNormalization and RMSNormalization over the last dimensions."""
    data = node.inputs[0]
    assert data is not None
    shape = static_shape(data) or ()
    axis = integer(node, "axis", -1) % len(shape)
    size = math.prod(shape[axis:])
    rows_shape = (*shape[:axis], size)
    source = lowering.demand(data).reshaped(rows_shape)
    if source is None or (source.strides[-1] != 1 and size > 1):
        source = lowering.contiguous(data).reshaped(rows_shape)
        assert source is not None, "a row-major tensor takes any shape"
    result = lowering.output(node.outputs[0], None, lowering.result_storage(node.outputs[0]))
    target = result.reshaped(rows_shape)
    if target is None or (target.strides[-1] != 1 and size > 1):
        target = allocate(f"{node.outputs[0].name} in rows", result.storage, rows_shape)
    others = [_row(lowering, value) for value in node.inputs[1:3]]
    scale, shift = (*others, None, None)[:2]
    rows = collapse(shape[:axis], [target.strides[:-1], source.strides[:-1]], 0)
    spec = NormalizeSpec(
        "layer" if node.op_type == "LayerNormalization" else "root_mean_square",
        source.storage, target.storage, tuple((n, (come, go)) for n, (go, come) in rows),
        size, number(node, "epsilon", 1e-5),
        scale.storage if scale is not None else None,
        shift.storage if shift is not None else None,
    )  # fmt: skip
    read = [view for view in (scale, shift) if view is not None]
    lowering.add(
        Step(
            spec, (source, target, *read), (target,), (str(node.name),), operations_of([node])
        )
    )  # fmt: skip
    if target.buffer is not result.buffer:
        whole = target.reshaped(shape)
        assert whole is not None, "a row-major tensor takes any shape"
        lowering.copy_into(whole, result, node)


def _row(lowering: Lowering, value: ir.Value | None) -> View | None:
    """Return a scale or shift side by side; a constant stays in float32."""
    if value is None:
        return None
    constant = constant_of(value)
    if constant is None:
        return lowering.contiguous(value)
    array = constant.numpy()
    return lowering.weight((str(value.name), "row"), lambda: array.astype("float32"), "f32")
