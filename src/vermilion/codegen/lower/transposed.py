"""Transposed convolution: one small convolution for each phase of the output's pixels.

Output pixel q·stride + r reads the taps t, t + stride, … of the kernel, backwards along the input;
so the pixels of one phase r are an ordinary convolution, stored with a stride. With dilations, the
taps of a phase are those that fall on pixels of the input, and may themselves be some pixels apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Border, Lowering, key_of
from vermilion.codegen.lower.dequantized import is_constant
from vermilion.codegen.lower.geometry import ConvGeometry
from vermilion.codegen.lower.grouped import depthwise_step, group_steps, is_depthwise
from vermilion.codegen.numeric import multiplied_storage, numeric_for
from vermilion.codegen.tensor import View
from vermilion.ir.attributes import integer, integers
from vermilion.ir.expression import Expression
from vermilion.ir.opset import static_shape
from vermilion.ir.symbolic import is_known

Array = NDArray[Any]


@dataclass(frozen=True)
class Phase:
    """The output positions r, r + stride, … along one axis.

    `taps` are kernel indices in the order in which the input is read, `step` pixels apart; `before`
    and `after` are the border that reading needs; `count` is the number of positions.
    """

    start: int
    taps: tuple[int, ...]
    before: int
    after: int
    count: int
    step: int = 1


# Height of a signal of one dimension, which is an image of one row.
_ONE_ROW = Phase(0, (0,), 0, 0, 1)


def phases(
    stride: int, kernel: int, pad: int, source: int, target: int, dilation: int = 1
) -> list[Phase]:
    """Return the phases of one axis."""
    step = dilation // math.gcd(stride, dilation)
    found = []
    # Of a size that a run has, those phases count 0 places that it leaves out.
    for r in range(min(stride, target) if is_known(target) else stride):
        hits = [t for t in range(kernel) if (r + pad - t * dilation) % stride == 0]
        taps = tuple(reversed(hits))
        base = (r + pad - taps[0] * dilation) // stride if taps else 0
        count = -(-(target - r) // stride)
        last = base + count - 1 + (len(taps) - 1) * step
        found.append(Phase(r, taps, -base, last - (source - 1), count, step))
    return found


def check_transposed(node: ir.Node) -> str:
    """Say why a ConvTranspose is not generated, empty if it is."""
    kernel = static_shape(node.inputs[1])
    if not is_constant(node.inputs[1]) or kernel is None or len(kernel) not in (3, 4):
        return "ConvTranspose that is not over signals or images with constant weights"
    if len(node.inputs) > 2 and node.inputs[2] is not None and not is_constant(node.inputs[2]):
        return "ConvTranspose with a bias that is not constant"
    if "auto_pad" in node.attributes and node.attributes["auto_pad"].as_string() != "NOTSET":
        return "ConvTranspose with auto_pad"
    rank = len(kernel) - 2
    strides, dilations = (integers(node, name, [1] * rank) for name in ("strides", "dilations"))
    for size, stride, dilation in zip(kernel[2:], strides, dilations, strict=True):
        if math.gcd(stride, dilation) > 1 or size < stride:
            return "ConvTranspose that leaves holes between its results"
    return ""


def axes_of(node: ir.Node) -> tuple[list[Phase], list[Phase]]:
    """Return the phases of height and width."""
    data, result = static_shape(node.inputs[0]), static_shape(node.outputs[0])
    kernel = static_shape(node.inputs[1])
    assert data is not None
    assert result is not None
    assert kernel is not None
    rank = len(kernel) - 2
    strides, dilations = (integers(node, name, [1] * rank) for name in ("strides", "dilations"))
    before = _before(node, data[2:], kernel[2:], strides, dilations, result[2:])
    axes = [
        phases(strides[at], kernel[2 + at], before[at], data[2 + at], result[2 + at], dilations[at])
        for at in range(rank)
    ]
    return (axes[0], axes[1]) if rank == 2 else ([_ONE_ROW], axes[0])


def _before(
    node: ir.Node, data: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], result: Sequence[int],
) -> Sequence[int]:  # fmt: skip
    """Return what is cut off at the begin of each axis.

    Source: ONNX ConvTranspose-11: with `output_shape` the pads are what is over, the odd one first.
    """
    rank = len(kernel)
    if "output_shape" not in node.attributes:
        return integers(node, "pads", [0] * 2 * rank)[:rank]
    extra = integers(node, "output_padding", [0] * rank)
    full = [
        s * (i - 1) + e + (k - 1) * d + 1
        for s, i, e, k, d in zip(strides, data, extra, kernel, dilations, strict=True)
    ]
    return [max(0, f - r + 1) // 2 for f, r in zip(full, result, strict=True)]


def transposed_border(node: ir.Node) -> Border:
    """Return the border that all phases together need."""
    rows, columns = axes_of(node)
    return Border(
        max(0, *(p.before for p in rows)),
        max(0, *(p.before for p in columns)),
        max(0, *(p.after for p in rows)),
        max(0, *(p.after for p in columns)),
    )


def _read_from(source: View, y: Phase, x: Phase) -> View:
    """Return the image from the first pixel on that a phase reads, where that is not the first."""
    for axis, phase in ((2, y), (3, x)):
        start = max(0, -phase.before)
        # Behind the last pixel is the border, which is all that a phase may read.
        shape = list(source.shape)
        shape[axis] = max(1, shape[axis] - start)
        offset = source.offset + start * source.strides[axis]
        source = replace(source, shape=tuple(shape), offset=offset)
    return source


def transposed_steps(
    lowering: Lowering,
    node: ir.Node,
    source: View,
    weights: Array,
    output: View,
    operands: Sequence[View],
    expression: Expression,
    members: Sequence[ir.Node],
) -> Iterator[Step]:
    """Yield a step for each phase. Shapes: weights (C in, C out, kernel height, kernel width)."""
    strides = integers(node, "strides", [1])
    row_stride, column_stride = strides if len(strides) == 2 else (1, strides[-1])
    group = integer(node, "group", 1)
    numeric = numeric_for(multiplied_storage(source.storage, lowering.isa), lowering.isa)
    assert numeric is not None
    wide = weights.reshape(
        group, weights.shape[0] // group, weights.shape[1], -1, weights.shape[-1]
    )
    rows, columns = axes_of(node)
    for y in rows:
        for x in columns:
            # (group, channels out of it, height, width, channels in)
            taps = wide[:, :, :, y.taps, :][..., x.taps].transpose(0, 2, 3, 4, 1)
            taps = np.ascontiguousarray(taps.reshape(-1, *taps.shape[2:]))
            pads = (max(0, y.before), max(0, x.before), 0, 0)
            size = (len(y.taps), len(x.taps))
            geometry = ConvGeometry(size, (1, 1), (y.step, x.step), pads, group)

            def cut(view: View, y: Phase = y, x: Phase = x) -> View:
                for axis, phase, stride in ((2, y, row_stride), (3, x, column_stride)):
                    if view.shape[axis] != 1:
                        view = view.sliced(axis, phase.start, phase.count, stride)
                return view

            key = (key_of(node), "transposed", str(y.start), str(x.start))
            what = (lowering, _read_from(source, y, x), taps, key, geometry, cut(output))
            mine = [cut(view) for view in operands]
            if is_depthwise(geometry, taps, source.shape[1]):
                steps = [depthwise_step(*what, mine, expression, members)]
            else:
                steps = group_steps(*what, mine, expression, members, numeric)
            is_first = y.start == x.start == 0
            for number, step in enumerate(steps):
                yield step if is_first and number == 0 else replace(step, operations=0)
