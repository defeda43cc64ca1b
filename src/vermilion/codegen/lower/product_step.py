"""One product with packed weights as a step: tile, strides, weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.product import ProductSpec, pack_weights
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering, operations_of
from vermilion.codegen.lower.geometry import ConvGeometry, access
from vermilion.codegen.numeric import Numeric
from vermilion.codegen.tensor import View
from vermilion.codegen.tile import choose_tile
from vermilion.ir.expression import Expression
from vermilion.ir.symbolic import is_known, larger, typical

Array = NDArray[Any]


# Of an image whose height only a run has, patches are one row high: rows of this length let the
# choice of a tile weigh nothing else.
_LONG_ROW = 1024


def image_of_choice(rows: int, columns: int) -> tuple[int, int]:
    """Return rows and columns to choose a tile by."""
    if is_known(rows) and is_known(columns):
        return rows, columns
    return typical(rows), _LONG_ROW


def product_step(
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
    """Make the step of one product.

    Shapes: source and output (N, C, H, W) views with channels side by side, the source's border
    around it; weights (O, kernel height, kernel width, C).
    """
    isa = lowering.isa
    n, channels, rows, columns = output.shape
    kernel_y, kernel_x = geometry.kernel
    stride_n, _, stride_h, stride_w = source.strides
    inputs = weights.shape[3]
    # Neighbouring taps of a row are one run where pixels lie side by side without a hole.
    merged = geometry.dilations[1] == 1 and (stride_w == inputs or kernel_x == 1)
    taps_x, run = (1, kernel_x * inputs) if merged else (kernel_x, inputs)
    groups = -(-run // numeric.group)
    tile = choose_tile(*image_of_choice(rows, columns), channels, kernel_y * taps_x * groups, isa)
    spec = ProductSpec(
        numeric=numeric.name,
        images=n, rows=rows, columns=columns, channels=channels,
        taps_y=kernel_y, taps_x=taps_x, run=run,
        in_image=stride_n,
        in_row=stride_h * geometry.strides[0],
        in_column=stride_w * geometry.strides[1],
        in_tap_y=stride_h * geometry.dilations[0],
        in_tap_x=stride_w * geometry.dilations[1],
        output=access(output, output),
        operands=tuple(access(view, output) for view in operands),
        expression=expression,
        tile=tile,
    )  # fmt: skip
    spec = replace(spec, channel_blocks=spec.blocks(isa))
    packed = lowering.weight(
        (*key, numeric.name, str(tile.vectors), str(merged)),
        lambda: pack_weights(
            weights.reshape(weights.shape[0], kernel_y, taps_x, run),
            numeric, tile.vectors, isa.lanes,
        ),
        {"f32": "f32", "bf16": "bf16", "u8s8": "s8", "u8s8_wide": "s16"}[numeric.name],  # type: ignore[arg-type]
    )  # fmt: skip
    top, left, _, _ = geometry.pads
    # A phase of a transposed convolution may begin behind the first pixels: negative padding.
    height, width = (
        larger(1, s + min(0, p)) for s, p in zip(source.shape[2:], (top, left), strict=True)
    )
    start = replace(
        source,
        shape=(*source.shape[:2], height, width),
        offset=source.offset - top * stride_h - left * stride_w,
    )
    return Step(
        spec, (start, packed, output, *operands), (output,),
        tuple(str(node.name) for node in nodes), operations_of(list(nodes)),
    )  # fmt: skip
