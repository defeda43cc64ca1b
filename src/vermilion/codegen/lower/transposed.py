"""Transposed convolution: one small convolution for each phase of the output's pixels.

Output pixel q·stride + r reads the taps t, t + stride, … of the kernel, backwards along the input;
so the pixels of one phase r are an ordinary convolution, stored with a stride.
"""

from __future__ import annotations

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
from vermilion.codegen.lower.product_step import product_step
from vermilion.codegen.numeric import numeric_for
from vermilion.codegen.tensor import View
from vermilion.ir.attributes import integer, integers
from vermilion.ir.expression import Expression
from vermilion.ir.opset import static_shape

Array = NDArray[Any]


@dataclass(frozen=True)
class Phase:
    """The output positions r, r + stride, … along one axis.

    `taps` are kernel indices in the order in which the input is read; `before` and `after` are the
    border that reading needs; `count` is the number of positions.
    """

    start: int
    taps: tuple[int, ...]
    before: int
    after: int
    count: int


def phases(stride: int, kernel: int, pad: int, source: int, target: int) -> list[Phase]:
    """Return the phases of one axis."""
    found = []
    for r in range(min(stride, target)):
        first = (r + pad) % stride
        taps = tuple(range(first, kernel, stride))[::-1]
        base = (r + pad - first) // stride - (len(taps) - 1)
        count = -(-(target - r) // stride)
        last = base + count - 1 + len(taps) - 1
        found.append(Phase(r, taps, -base, last - (source - 1), count))
    return found


def check_transposed(node: ir.Node) -> str:
    """Say why a ConvTranspose is not generated, empty if it is."""
    kernel = static_shape(node.inputs[1])
    if not is_constant(node.inputs[1]) or kernel is None or len(kernel) != 4:
        return "ConvTranspose that is not over images with constant weights"
    if len(node.inputs) > 2 and node.inputs[2] is not None and not is_constant(node.inputs[2]):
        return "ConvTranspose with a bias that is not constant"
    if integer(node, "group", 1) != 1 or any(d != 1 for d in integers(node, "dilations", [1, 1])):
        return "ConvTranspose with groups or dilations"
    if "auto_pad" in node.attributes and node.attributes["auto_pad"].as_string() != "NOTSET":
        return "ConvTranspose with auto_pad"
    strides = integers(node, "strides", [1, 1])
    if any(size < stride for size, stride in zip(kernel[2:], strides, strict=True)):
        return "ConvTranspose whose kernel is smaller than its stride"
    return ""


def axes_of(node: ir.Node) -> tuple[list[Phase], list[Phase]]:
    """Return the phases of height and width."""
    data, result = static_shape(node.inputs[0]), static_shape(node.outputs[0])
    kernel = static_shape(node.inputs[1])
    assert data is not None
    assert result is not None
    assert kernel is not None
    strides = integers(node, "strides", [1, 1])
    before = _before(node, data[2:], kernel[2:], strides, result[2:])
    return (
        phases(strides[0], kernel[2], before[0], data[2], result[2]),
        phases(strides[1], kernel[3], before[1], data[3], result[3]),
    )


def _before(
    node: ir.Node, data: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    result: Sequence[int],
) -> Sequence[int]:  # fmt: skip
    """Return what is cut off above and on the left.

    Source: ONNX ConvTranspose-11: with `output_shape` the pads are what is over, the odd one first.
    """
    if "output_shape" not in node.attributes:
        return integers(node, "pads", [0, 0, 0, 0])[:2]
    extra = integers(node, "output_padding", [0, 0])
    full = [s * (i - 1) + e + k for s, i, e, k in zip(strides, data, extra, kernel, strict=True)]
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
    strides = integers(node, "strides", [1, 1])
    numeric = numeric_for(source.storage, lowering.isa)
    assert numeric is not None, f"no product on {source.storage}"
    rows, columns = axes_of(node)
    for y in rows:
        for x in columns:
            taps = np.ascontiguousarray(weights[:, :, y.taps, :][:, :, :, x.taps])
            pads = (max(0, y.before), max(0, x.before), 0, 0)
            geometry = ConvGeometry((len(y.taps), len(x.taps)), (1, 1), (1, 1), pads, 1)

            def cut(view: View, y: Phase = y, x: Phase = x) -> View:
                for axis, phase, stride in ((2, y, strides[0]), (3, x, strides[1])):
                    if view.shape[axis] != 1:
                        view = view.sliced(axis, phase.start, phase.count, stride)
                return view

            step = product_step(
                lowering, _read_from(source, y, x), taps.transpose(1, 2, 3, 0),
                (key_of(node), "transposed", str(y.start), str(x.start)), geometry,
                cut(output), [cut(view) for view in operands], expression, members, numeric,
            )  # fmt: skip
            is_first = y.start == x.start == 0
            yield step if is_first else replace(step, operations=0)
