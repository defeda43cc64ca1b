"""Convolutions in groups of a few channels as one step: weights, and each lane's place in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.grouped import GroupedSpec
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering, operations_of
from vermilion.codegen.lower.geometry import ConvGeometry, access
from vermilion.codegen.numeric import Numeric
from vermilion.codegen.tensor import View
from vermilion.codegen.workers import aligned_bytes
from vermilion.ir.expression import Expression

Array = NDArray[Any]


def is_of_small_groups(geometry: ConvGeometry, weights: Array, numeric: Numeric, isa: Isa) -> bool:
    """Say whether groups are so small that several in a vector are faster than one alone."""
    outputs = weights.shape[0] // geometry.group
    if geometry.group == 1 or outputs * 2 > isa.lanes:
        return False
    if numeric.name == "bf16" and weights.shape[3] % 2:
        return False  # a pair would hold another group's number: 0 times an infinity is no number
    return _span(weights.shape[0], outputs, weights.shape[3], numeric, isa) <= isa.lanes


def _lanes(
    channels: int, outputs: int, inputs: int, numeric: Numeric, isa: Isa
) -> tuple[Array, int]:
    """Return the first word of each lane from its vector's first on, and the words of a group."""
    channel = np.arange(-(-channels // isa.lanes) * isa.lanes)
    first = np.minimum(channel, channels - 1) // outputs * inputs
    word = first // numeric.group
    last = (first + inputs - 1) // numeric.group
    lanes = word.reshape(-1, isa.lanes)
    return (lanes - lanes[:, :1]).astype(np.int32), int((last - word).max()) + 1


def _span(channels: int, outputs: int, inputs: int, numeric: Numeric, isa: Isa) -> int:
    """Return the words that a vector's groups lie within, as a power of two."""
    lanes, words = _lanes(channels, outputs, inputs, numeric, isa)
    return 1 << (int(lanes.max()) + words - 1).bit_length()


def small_groups_step(
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
) -> Step:
    """Make the step. Shapes: weights (O, height, width, channels of a group)."""
    isa = lowering.isa
    n, channels, rows, columns = output.shape
    outputs, inputs = weights.shape[0] // geometry.group, weights.shape[3]
    lanes, words = _lanes(channels, outputs, inputs, numeric, isa)
    stride_n, _, stride_h, stride_w = source.strides
    spec = GroupedSpec(
        numeric=numeric.name,
        images=n, rows=rows, columns=columns, channels=channels,
        inputs=inputs, outputs=outputs, words=words,
        span=_span(channels, outputs, inputs, numeric, isa),
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
    name = (*key, numeric.name, f"in {geometry.group} groups", str(isa.lanes))
    packed = lowering.weight(
        name, lambda: _packed(weights, spec, numeric, isa),
        numeric.weight,
    )  # fmt: skip
    places = lowering.weight((*name, "lanes"), lambda: lanes, "i32")
    start = geometry.first_window(source)
    return Step(
        spec, (start, packed, places, output, *operands), (output,),
        tuple(str(node.name) for node in nodes), operations_of(list(nodes)),
    )  # fmt: skip


def _packed(weights: Array, spec: GroupedSpec, numeric: Numeric, isa: Isa) -> Array:
    """Return weights as [vector][tap_y][part of a row][word][tap][part][lane][of part]."""
    typed = np.dtype(numeric.weight_type)
    rounded = weights if weights.dtype == typed else numeric.to_weights(weights)
    channels, taps_y, taps_x, inputs = weights.shape
    vectors = -(-channels // isa.lanes)
    wide = np.zeros((vectors * isa.lanes, taps_y, taps_x, spec.words * numeric.group), typed)
    for channel in range(channels):  # a group may begin inside of a word
        begin = channel // spec.outputs * inputs % numeric.group
        wide[channel, :, :, begin : begin + inputs] = rounded[channel]
    of_part = numeric.group // numeric.parts
    items = wide.reshape(
        vectors, isa.lanes, taps_y, taps_x // spec.part, spec.part, spec.words, of_part,
        numeric.parts,
    )  # fmt: skip
    packed = aligned_bytes(items.nbytes).view(typed)
    moved = items.transpose(0, 2, 3, 5, 4, 7, 1, 6)
    packed.reshape(moved.shape)[...] = moved
    return packed
