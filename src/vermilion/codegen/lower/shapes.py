"""Operators that only move or rename data: views where that is enough, copies where not."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from vermilion.codegen.lower.context import CHANNELS_LAST, Lowering
from vermilion.codegen.lower.data_movement_shapes import slice_bounds
from vermilion.codegen.lower.window_shapes import whole_numbers
from vermilion.codegen.tensor import View, allocate
from vermilion.ir.attributes import integer, integers
from vermilion.ir.opset import static_shape
from vermilion.ir.symbolic import typical


def given_input(node: ir.Node, index: int) -> ir.Value | None:
    """Return an input, None where it is left out."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return value if value is not None and value.name else None


def constant_ints(node: ir.Node, index: int) -> list[int] | None:
    """Return the integers of a constant input, None where it is absent."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return whole_numbers(value)


def _name(lowering: Lowering, value: ir.Value, view: View) -> None:
    lowering.views[str(value.name)] = view


def lower_reshape(lowering: Lowering, node: ir.Node) -> None:
    """Reshape, Flatten, Squeeze, Unsqueeze: another shape of the same memory."""
    data = node.inputs[0]
    assert data is not None
    shape = static_shape(node.outputs[0])
    assert shape is not None
    view = lowering.demand(data).reshaped(shape)
    if view is None:
        view = lowering.contiguous(data).reshaped(shape)
        assert view is not None, "a row-major tensor takes any shape"
    _name(lowering, node.outputs[0], view)


def lower_identity(lowering: Lowering, node: ir.Node) -> None:
    """Identity: the same view under another name."""
    data = node.inputs[0]
    assert data is not None
    _name(lowering, node.outputs[0], lowering.demand(data))


def lower_transpose(lowering: Lowering, node: ir.Node) -> None:
    """Transpose: the same memory with its dimensions in another order."""
    data = node.inputs[0]
    assert data is not None
    view = lowering.demand(data)
    order = integers(node, "perm", list(reversed(range(len(view.shape)))))
    _name(lowering, node.outputs[0], view.permuted(order))


def lower_slice(lowering: Lowering, node: ir.Node) -> None:
    """Slice with constant bounds: a view with an offset and steps.

    What runs backwards is a copy: no kernel but that of the copy reads memory backwards.
    """
    data = node.inputs[0]
    assert data is not None
    view = lowering.demand(data)
    starts, ends = constant_ints(node, 1), constant_ints(node, 2)
    assert starts is not None and ends is not None  # noqa: PT018
    axes = constant_ints(node, 3) or list(range(len(starts)))
    steps = constant_ints(node, 4) or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        at = axis % len(view.shape)
        first, count = slice_bounds(start, end, step, view.shape[at])
        view = view.sliced(at, first, count, step)
    _name(lowering, node.outputs[0], lowering.copied(view) if min(steps, default=1) < 0 else view)


def lower_split(lowering: Lowering, node: ir.Node) -> None:
    """Split: one view for each piece."""
    data = node.inputs[0]
    assert data is not None
    view = lowering.demand(data)
    axis = integer(node, "axis", 0) % len(view.shape)
    start = 0
    for output in node.outputs:
        shape = static_shape(output)
        assert shape is not None
        _name(lowering, output, view.sliced(axis, start, shape[axis]))
        start += shape[axis]


def lower_concat(lowering: Lowering, node: ir.Node) -> None:
    """Concat: pieces copied side by side, channels last where the pieces lie so."""
    axis = integer(node, "axis", 0)
    output = node.outputs[0]
    shape = static_shape(output)
    assert shape is not None
    axis %= len(shape)
    pieces = [lowering.demand(value) for value in node.inputs if value is not None]
    order = CHANNELS_LAST if len(shape) == 4 and _mostly_channels_last(pieces) else None
    target = lowering.output(output, order)
    start = 0
    for piece in pieces:
        size = piece.shape[axis]
        if size:
            lowering.copy_into(piece, target.sliced(axis, start, size), node)
        start += size


def _mostly_channels_last(pieces: Sequence[View]) -> bool:
    def is_last(view: View) -> bool:
        return view.strides[1] == 1 and view.shape[1] > 1

    sizes = [typical(piece.elements) for piece in pieces]
    last = sum(size for size, piece in zip(sizes, pieces, strict=True) if is_last(piece))
    return 2 * last > sum(sizes)


def lower_expand(lowering: Lowering, node: ir.Node) -> None:
    """Expand: a view that repeats with stride 0."""
    data = node.inputs[0]
    shape = static_shape(node.outputs[0])
    assert data is not None
    assert shape is not None
    _name(lowering, node.outputs[0], lowering.demand(data).broadcast(shape))


def lower_gather(lowering: Lowering, node: ir.Node) -> None:
    """Gather at one constant place: a view."""
    data = node.inputs[0]
    shape = static_shape(node.outputs[0])
    index = constant_ints(node, 1)
    assert data is not None
    assert shape is not None
    assert index is not None
    view = lowering.demand(data)
    axis = integer(node, "axis", 0) % len(view.shape)
    picked = view.sliced(axis, index[0] % view.shape[axis], 1).reshaped(shape)
    if picked is None:
        copy = allocate(str(node.outputs[0].name), view.storage, view.shape)
        picked = copy.reshaped(shape)
        assert picked is not None
    _name(lowering, node.outputs[0], picked)
