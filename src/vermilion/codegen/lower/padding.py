"""Pad: the tensor copied into a larger one, and each axis's edges from what is already there."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE
from vermilion.codegen.emit.map import map_step
from vermilion.codegen.lower.context import Lowering, identity
from vermilion.codegen.lower.elementwise import layout_like
from vermilion.codegen.lower.shapes import constant_ints, given_input
from vermilion.codegen.lower.window_shapes import whole_numbers
from vermilion.codegen.tensor import View
from vermilion.ir.attributes import text
from vermilion.ir.expression import Constant
from vermilion.ir.opset import constant_of, static_shape
from vermilion.ir.symbolic import is_known, larger, lesser

_MODES = ("constant", "reflect", "edge", "wrap")


def check_pad(node: ir.Node) -> str:
    """Say why a Pad is not generated, empty if it is."""
    mode = text(node, "mode", "constant")
    if mode not in _MODES:
        return f"Pad with mode {mode}"
    for index, what in ((1, "amounts"), (3, "axes")):
        value = given_input(node, index)
        if value is not None and whole_numbers(value) is None:
            return f"Pad with {what} that are not known"
    filling = given_input(node, 2)
    if filling is not None and constant_of(filling) is None:
        return "Pad with a value that is not constant"
    shape = static_shape(node.inputs[0])
    assert shape is not None
    for size, (before, after) in zip(shape, _amounts(node, len(shape)), strict=True):
        kept = size + lesser(before, 0) + lesser(after, 0)
        most = kept - 1 if mode == "reflect" else kept
        if mode in ("reflect", "wrap") and max(before, after) > most:
            return f"Pad with mode {mode} by more than there is"
        # What repeats needs something to repeat; zeros stand beside nothing as well.
        least = 0 if mode == "constant" or before == after == 0 else 1
        if kept < least:
            return "Pad that cuts all away"
    return ""


def _amounts(node: ir.Node, rank: int) -> list[tuple[int, int]]:
    """Return (before, after) of each axis; what is negative is cut off."""
    pads = constant_ints(node, 1) or []
    axes = constant_ints(node, 3)
    axes = list(range(rank)) if axes is None else [axis % rank for axis in axes]
    amounts = [(0, 0)] * rank
    for number, axis in enumerate(axes):
        amounts[axis] = (pads[number], pads[number + len(axes)])
    return amounts


def lower_pad(lowering: Lowering, node: ir.Node) -> None:
    """Copy the inside, then fill axis by axis: later axes repeat what earlier ones filled."""
    data = node.inputs[0]
    assert data is not None
    source = lowering.demand(data)
    target = lowering.output(node.outputs[0], layout_like([source], len(source.shape)))
    amounts = _amounts(node, len(source.shape))
    inside = target
    for axis, (before, after) in enumerate(amounts):
        kept = source.shape[axis] + lesser(before, 0) + lesser(after, 0)
        source = source.sliced(axis, larger(0, -before), kept)
        inside = inside.sliced(axis, larger(0, before), source.shape[axis])
    lowering.copy_into(source, inside, node)
    mode = text(node, "mode", "constant")
    filled = inside
    for axis, (before, after) in enumerate(amounts):
        grown = filled
        size = filled.shape[axis]
        # What follows from sizes may be nothing in one run and something in another.
        before, after = (
            amount if is_known(amount) else larger(0, amount) for amount in (before, after)
        )
        if not is_known(before) or before > 0:
            grown = grown.sliced(axis, -before, before + size)
            _fill(lowering, node, mode, grown.sliced(axis, 0, before), (filled, axis, True))
        if not is_known(after) or after > 0:
            grown = grown.sliced(axis, 0, grown.shape[axis] + after)
            start = grown.shape[axis] - after
            _fill(lowering, node, mode, grown.sliced(axis, start, after), (filled, axis, False))
        filled = grown


def _fill(
    lowering: Lowering, node: ir.Node, mode: str, slab: View, of: tuple[View, int, bool]
) -> None:
    """Fill the slab before or after `filled` along `axis`."""
    filled, axis, is_before = of
    size, count = filled.shape[axis], slab.shape[axis]
    if mode == "constant":
        expression = Constant(_value(node), KIND_OF_STORAGE[slab.storage])
        lowering.add(map_step([], [slab], [expression], [str(node.name)]))
        return
    if mode == "edge":
        one = filled.sliced(axis, 0 if is_before else size - 1, 1)
        source = one.broadcast(slab.shape)
    elif mode == "wrap":
        source = filled.sliced(axis, size - count if is_before else 0, count)
    else:
        source = filled.sliced(axis, count if is_before else size - 2, count, -1)
    lowering.add(map_step([source], [slab], [identity(source)], [str(node.name)]))


def _value(node: ir.Node) -> float:
    constant = constant_of(given_input(node, 2))
    return 0.0 if constant is None or not constant.size else constant.numpy().reshape(-1)[0].item()
