"""One product with packed weights as a step: tile, strides, weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.packed_weights import pack_weights
from vermilion.codegen.emit.product import ProductSpec
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering, operations_of
from vermilion.codegen.lower.geometry import ConvGeometry, access
from vermilion.codegen.numeric import Numeric
from vermilion.codegen.tensor import View
from vermilion.codegen.tile import Tile, Windows, choose_tile, cost
from vermilion.codegen.window import Window, live_share
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


@dataclass(frozen=True)
class Plan:
    """How a product is computed: its taps along a row, their run, the tile, the taps left out."""

    taps_x: int
    run: int
    tile: Tile
    windows: Windows = (None, None)


# Share of the taps that must be saved for patches to count theirs.
_LEAST_SAVED = 0.04
# Taps in a row from which on it may pay to count them one by one although they are one run.
_LONG_KERNEL = 8


def plan_product(
    source: View, inputs: int, geometry: ConvGeometry, output: View, numeric: Numeric, isa: Isa,
    *, skips: bool = False,
) -> Plan:  # fmt: skip
    """Return the cheapest plan; with `skips` it may leave out taps that lie in the border.

    Shapes: source and output as in `product_step`; `inputs` channels are multiplied.
    """
    kernel_y, kernel_x = geometry.kernel
    _, channels, rows, columns = output.shape
    # Neighbouring taps of a row are one run where pixels lie side by side without a hole.
    merged = geometry.dilations[1] == 1 and (source.strides[3] == inputs or kernel_x == 1)
    window_y, window_x = windows_of(geometry, source, output) if skips else (None, None)
    one_run = (1, kernel_x * inputs) if merged else (kernel_x, inputs)
    forms: list[tuple[int, int, Window | None]] = [(*one_run, None)]
    if window_x is not None and (not merged or kernel_x >= _LONG_KERNEL):
        forms.append((kernel_x, inputs, window_x))
    size = image_of_choice(rows, columns)
    plans: list[tuple[float, Plan]] = []
    for taps_x, run, along in forms:
        steps = kernel_y * taps_x * -(-run // numeric.group)
        windows = (window_y, along)
        tile = choose_tile(*size, channels, steps, isa, windows)
        cycles = cost(tile, *size, channels, steps, isa, windows)
        shares = (live_share(window_y, rows, tile.rows), live_share(along, columns, tile.columns))
        kept = tuple(
            window if share < 1 - _LEAST_SAVED / 2 else None
            for window, share in zip(windows, shares, strict=True)
        )
        plans.append((cycles, Plan(taps_x, run, tile, (kept[0], kept[1]))))
    return min(plans, key=lambda item: item[0])[1]


def windows_of(geometry: ConvGeometry, source: View, output: View) -> Windows:
    """Return the window of each axis where enough taps lie in the border, of known sizes."""
    sizes = (*source.shape[2:], *output.shape[2:])
    if not all(map(is_known, sizes)):
        return None, None
    found = [
        Window(taps, stride, dilation, before, size)
        for taps, stride, dilation, before, size in zip(
            geometry.kernel, geometry.strides, geometry.dilations, geometry.pads[:2],
            source.shape[2:], strict=True,
        )
    ]  # fmt: skip
    y, x = (
        window if live_share(window, outputs, 1) <= 1 - _LEAST_SAVED else None
        for window, outputs in zip(found, output.shape[2:], strict=True)
    )
    return y, x


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
    *,
    skips: bool = False,
) -> Step:
    """Make the step of one product.

    `skips` says that the border holds zeros, so that taps in it may be left out: float weights are
    finite then, and integers have their first sums for each tap (`with_initial`).

    Shapes: source and output (N, C, H, W) views with channels side by side, the source's border
    around it; weights (O, kernel height, kernel width, C).
    """
    isa = lowering.isa
    n, channels, rows, columns = output.shape
    kernel_y, _ = geometry.kernel
    stride_n, _, stride_h, stride_w = source.strides
    inputs = weights.shape[3]
    plan = plan_product(source, inputs, geometry, output, numeric, isa, skips=skips)
    if any(plan.windows) and not np.isfinite(weights).all():
        plan = plan_product(source, inputs, geometry, output, numeric, isa)
    taps_x, run, tile = plan.taps_x, plan.run, plan.tile
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
        window_y=plan.windows[0], window_x=plan.windows[1],
    )  # fmt: skip
    spec = replace(spec, channel_blocks=spec.blocks(isa))
    packed = lowering.weight(
        (*key, numeric.name, str(tile.vectors), str(taps_x)),
        lambda: pack_weights(
            weights.reshape(weights.shape[0], kernel_y, taps_x, run),
            numeric, tile.vectors, isa.lanes,
        ),
        numeric.weight,
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
