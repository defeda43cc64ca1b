"""Convolutions in groups: depthwise as a kernel of its own, others as one product a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.depthwise import DepthwiseSpec
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering, operations_of
from vermilion.codegen.lower.geometry import ConvGeometry, access
from vermilion.codegen.tensor import View
from vermilion.ir.expression import Expression

Array = NDArray[Any]


def is_depthwise(geometry: ConvGeometry, weights: Array, channels: int) -> bool:
    """Say whether each channel has one kernel of its own."""
    return geometry.group == channels == int(weights.shape[0]) and weights.shape[3] == 1


def depthwise_step(
    lowering: Lowering,
    source: View,
    weights: Array,
    key: tuple[str, ...],
    geometry: ConvGeometry,
    output: View,
    operands: Sequence[View],
    expression: Expression,
    nodes: Sequence[ir.Node],
) -> Step:
    """Make the step of a depthwise convolution. Shapes: weights (C, height, width, 1)."""
    n, channels, rows, columns = output.shape
    stride_n, _, stride_h, stride_w = source.strides
    spec = DepthwiseSpec(
        storage=source.storage,
        images=n, rows=rows, columns=columns, channels=channels,
        taps_y=geometry.kernel[0], taps_x=geometry.kernel[1],
        in_image=stride_n,
        in_row=stride_h * geometry.strides[0],
        in_column=stride_w * geometry.strides[1],
        in_tap_y=stride_h * geometry.dilations[0],
        in_tap_x=stride_w * geometry.dilations[1],
        output=access(output, output),
        operands=tuple(access(view, output) for view in operands),
        expression=expression,
    )  # fmt: skip
    packed = lowering.weight(
        (*key, "depthwise"),
        lambda: np.ascontiguousarray(weights[..., 0].transpose(1, 2, 0)).astype(np.float32),
        "f32",
    )
    top, left, _, _ = geometry.pads
    start = replace(source, offset=source.offset - top * stride_h - left * stride_w)
    return Step(
        spec, (start, packed, output, *operands), (output,),
        tuple(str(node.name) for node in nodes), operations_of(list(nodes)),
    )  # fmt: skip


def group_slices(
    geometry: ConvGeometry, source: View, weights: Array, output: View, operands: Sequence[View]
) -> list[tuple[View, Array, View, list[View]]]:
    """Cut a grouped convolution into one for each group."""
    inputs = source.shape[1] // geometry.group
    outputs = weights.shape[0] // geometry.group
    cut = []
    for g in range(geometry.group):
        mine = [
            view if view.shape[1] == 1 or view.strides[1] == 0
            else view.sliced(1, g * outputs, outputs)
            for view in operands
        ]  # fmt: skip
        repeated = [
            replace(view, shape=(view.shape[0], 1, *view.shape[2:]))
            if view.strides[1] == 0 else view
            for view in mine
        ]  # fmt: skip
        cut.append(
            (
                source.sliced(1, g * inputs, inputs),
                weights[g * outputs : (g + 1) * outputs],
                output.sliced(1, g * outputs, outputs),
                repeated,
            )
        )
    return cut
