"""Convolutions in groups: depthwise, several groups in a vector, or one product a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.depthwise import DepthwiseSpec
from vermilion.codegen.emit.packed_weights import pack_weights
from vermilion.codegen.emit.product import ProductSpec
from vermilion.codegen.emit.walk import Access
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering, operations_of
from vermilion.codegen.lower.geometry import ConvGeometry, access
from vermilion.codegen.lower.product_step import product_step, windows_of
from vermilion.codegen.lower.small_groups import is_of_small_groups, small_groups_step
from vermilion.codegen.numeric import Numeric
from vermilion.codegen.tensor import View
from vermilion.ir.expression import Expression
from vermilion.ir.symbolic import is_one

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
    if spec.is_large and source.storage in ("f32", "bf16", "f16") and np.isfinite(weights).all():
        y, x = windows_of(geometry, source, output)
        spec = replace(spec, window_y=y, window_x=x)
    packed = lowering.weight(
        (*key, "depthwise", str(spec.is_large)),
        lambda: _packed_depthwise(weights[..., 0], lowering.isa.lanes if spec.is_large else 0),
        "f32",
    )
    start = geometry.first_window(source)
    return Step(
        spec, (start, packed, output, *operands), (output,),
        tuple(str(node.name) for node in nodes), operations_of(list(nodes)),
    )  # fmt: skip


def _packed_depthwise(weights: Array, lanes: int) -> Array:
    """Return (C, height, width) as [tap][c], or as [vector][tap][lane] for vectors of `lanes`."""
    floats = weights.astype(np.float32)
    if not lanes:
        return np.ascontiguousarray(floats.transpose(1, 2, 0))
    channels = weights.shape[0]
    wide = np.zeros((-(-channels // lanes) * lanes, *weights.shape[1:]), np.float32)
    wide[:channels] = floats
    return np.ascontiguousarray(wide.reshape(-1, lanes, *weights.shape[1:]).transpose(0, 2, 3, 1))


def group_steps(
    lowering: Lowering,
    source: View,
    weights: Array,
    key: tuple[str, ...],
    geometry: ConvGeometry,
    output: View,
    operands: Sequence[View],
    expression: Expression,
    nodes: Sequence[ir.Node],
    numeric: Numeric,
    *,
    skips: bool = False,
) -> list[Step]:
    """Return the steps of a convolution in any number of groups. Shapes as in `product_step`."""
    if is_of_small_groups(geometry, weights, numeric, lowering.isa):
        return [
            small_groups_step(
                lowering, source, weights, key, geometry, output, operands, expression, nodes,
                numeric,
            )
        ]  # fmt: skip
    slices = group_slices(geometry, source, weights, output, operands)
    steps = []
    for number, (one, kernels, result, mine) in enumerate(slices):
        step = product_step(
            lowering, one, kernels, (*key, f"{number} of {geometry.group}"), geometry,
            result, mine, expression, nodes, numeric, skips=skips,
        )  # fmt: skip
        if geometry.group > 1 and is_one(output.shape[0]):
            sets = [kernels for _, kernels, _, _ in slices]
            return [_as_images(lowering, step, sets, key, numeric, (source, output, operands))]
        steps.append(step if number == 0 else replace(step, operations=0))
    return steps


def _as_images(
    lowering: Lowering,
    first: Step,
    sets: Sequence[Array],
    key: tuple[str, ...],
    numeric: Numeric,
    views: tuple[View, View, Sequence[View]],
) -> Step:
    """Return one step for all groups of one picture: a group is an image with weights of its own.

    `first` is the step of the first group; `views` are source, output and operands of all.
    """
    spec = first.spec
    assert isinstance(spec, ProductSpec)
    source, output, operands = views
    outputs = sets[0].shape[0]

    def moved(access: Access) -> Access:
        step = outputs if access.strides[-1] else 0
        return Access(access.storage, (step, *access.strides[1:]))

    whole = replace(
        spec, images=len(sets), in_image=sets[0].shape[3], output=moved(spec.output),
        operands=tuple(map(moved, spec.operands)), weights_per_image=True,
    )  # fmt: skip
    shape = (outputs, spec.taps_y, spec.taps_x, spec.run)
    start, packed = first.arguments[:2]
    packed = lowering.weight(
        (*key, f"{len(sets)} groups", numeric.name, str(spec.tile.vectors), str(spec.taps_x)),
        lambda: np.concatenate(
            [
                pack_weights(one.reshape(shape), numeric, spec.tile.vectors, lowering.isa.lanes)
                for one in sets
            ]
        ),
        packed.storage,
    )
    start = replace(start, shape=(1, source.shape[1], *start.shape[2:]))
    return replace(
        first, spec=whole, arguments=(start, packed, output, *operands), writes=(output,)
    )


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
