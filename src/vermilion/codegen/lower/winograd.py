"""When a 3×3 convolution is cheaper by Winograd, and its three steps.

With dilations d, the pixels d apart are a picture of their own, and the convolution is a dense one
on each of the d·d phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.packed_weights import pack_weights
from vermilion.codegen.emit.product import ProductSpec
from vermilion.codegen.emit.walk import Access
from vermilion.codegen.emit.winograd import (
    SCHEMES,
    InputTransformSpec,
    OutputTransformSpec,
    transform_weights,
)
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Border, Lowering, operations_of
from vermilion.codegen.lower.geometry import ConvGeometry, access
from vermilion.codegen.numeric import NUMERICS
from vermilion.codegen.tensor import View, allocate
from vermilion.codegen.tile import choose_tile
from vermilion.ir.expression import Expression, Operand
from vermilion.ir.symbolic import is_known, typical

Array = NDArray[Any]

# Channels below which transforms cost more than the products that they save.
_LEAST_CHANNELS = 24
# Bytes that a core reads from main memory in a cycle (15 to 20 GB/s at about 4 GHz): weights of a
# whole network do not stay in the last-level cache from one inference to the next.
_BYTES_A_CYCLE = 4.5
# Vectors that a core moves through its second-level cache in a cycle, transforms included.
_TRANSFORM_VECTORS_A_CYCLE = 0.55
# Patches and products of one band of rows: what two cores' second-level caches hold.
_BAND_BYTES = 2_000_000


@dataclass(frozen=True)
class Shape:
    """A convolution's size: output pixels, channels in and out."""

    images: int
    rows: int
    columns: int
    inputs: int
    outputs: int


def is_candidate(geometry: ConvGeometry, shape: Shape) -> bool:
    """Say whether the scheme applies at all."""
    return (
        geometry.kernel == (3, 3)
        and geometry.strides == (1, 1)
        and geometry.group == 1
        and min(shape.inputs, shape.outputs) >= _LEAST_CHANNELS
        and min(shape.rows // geometry.dilations[0], shape.columns // geometry.dilations[1]) >= 4
    )


def choose_scheme(geometry: ConvGeometry, shape: Shape, isa: Isa, *, is_half: bool = False) -> int:
    """Return the tile of the cheapest scheme, 0 for direct convolution.

    `is_half` says that direct convolution multiplies bfloat16, two a lane; Winograd's transforms
    and products are float32 all the same, so that it rounds no more than direct convolution does.
    """
    shape = Shape(*(typical(size) for size in astuple(shape)))
    if not is_candidate(geometry, shape):
        return 0
    costs = {tile: _cost(tile, geometry.dilations, shape, isa) for tile in (0, *SCHEMES)}
    costs[0] /= 2 if is_half else 1
    return min(costs, key=lambda tile: costs[tile])


def _cost(tile: int, dilations: tuple[int, int], shape: Shape, isa: Isa) -> float:
    """Return estimated cycles on one core: arithmetic and transforms, or weights from memory."""
    pair = shape.inputs * shape.outputs
    if not tile:
        pixels = float(shape.images * shape.rows * shape.columns)
        for size, step in ((shape.rows, dilations[0]), (shape.columns, dilations[1])):
            # A third of the taps lies in the border for as many pixels as the dilation, twice.
            pixels *= 1 - (2 * step / (3 * size) if step > 1 else 0)
        arithmetic = 9.0 * pixels * pair / (2 * isa.lanes)
        return max(arithmetic, 9 * 4 * pair / _BYTES_A_CYCLE)
    positions = SCHEMES[tile].positions
    phases = dilations[0] * dilations[1]
    rows, columns = -(-shape.rows // dilations[0]), -(-shape.columns // dilations[1])
    tiles = shape.images * phases * -(-rows // tile) * -(-columns // tile)
    arithmetic = positions * tiles * pair / (2 * isa.lanes)
    vectors = 2.0 * positions * tiles * (shape.inputs + shape.outputs) / isa.lanes
    transforms = vectors / _TRANSFORM_VECTORS_A_CYCLE
    return max(arithmetic, phases * positions * 4 * pair / _BYTES_A_CYCLE) + transforms


def needed_border(geometry: ConvGeometry, shape: Shape, tile: int) -> Border:
    """Return the border that lets every patch be read: the last one may hang over."""
    top, left, bottom, right = geometry.pads
    (rows, columns), (step_y, step_x) = (shape.rows, shape.columns), geometry.dilations
    in_rows = rows + 2 * step_y - top - bottom
    in_columns = columns + 2 * step_x - left - right
    return Border(
        top, left, _reach(rows, step_y, tile) - in_rows - top,
        _reach(columns, step_x, tile) - in_columns - left,
    )  # fmt: skip


def _reach(size: int, step: int, tile: int) -> int:
    """Return how many pixels the patches of all phases reach over, along one axis."""
    if step == 1:
        return -(-size // tile) * tile + 2
    ends = (
        phase + (-(-_count(size, step, phase) // tile) * tile + 1) * step + 1
        for phase in range(step)
    )
    return max(ends)


def _count(size: int, step: int, phase: int) -> int:
    """Return the pixels of one phase along an axis."""
    return -(-(size - phase) // step)


def winograd_steps(
    lowering: Lowering,
    tile: int,
    source: View,
    weights: Array,
    key: tuple[str, ...],
    geometry: ConvGeometry,
    output: View,
    operands: Sequence[View],
    expression: Expression,
    nodes: Sequence[ir.Node],
) -> list[Step]:
    """Return the steps of one convolution, band by band. Shapes as in `product_step`."""
    start = geometry.first_window(source)
    steps: list[Step] = []
    for y, x in product(*map(range, geometry.dilations)):

        def phase(view: View, at: tuple[int, int] = (y, x)) -> View:
            for axis, first, step in zip((2, 3), at, geometry.dilations, strict=True):
                if view.shape[axis] != 1 and step > 1:
                    view = view.sliced(axis, first, _count(view.shape[axis], step, first), step)
            return view

        steps += _phase_steps(
            lowering, tile, phase(start), weights, key, phase(output),
            [phase(view) for view in operands], expression, nodes,
        )  # fmt: skip
    done = operations_of(list(nodes))
    return [*steps[:-1], replace(steps[-1], operations=done)]


def _phase_steps(
    lowering: Lowering,
    tile: int,
    start: View,
    weights: Array,
    key: tuple[str, ...],
    output: View,
    operands: Sequence[View],
    expression: Expression,
    nodes: Sequence[ir.Node],
) -> list[Step]:
    """Return the steps of one dense convolution whose patches begin at `start`."""
    n, _, rows, _ = output.shape
    if not all(map(is_known, output.shape)):
        return _band(lowering, tile, start, weights, key, output, operands, expression, nodes)
    band = _band_rows(tile, output.shape, weights.shape[3])
    steps: list[Step] = []
    for image in range(n):
        for first in range(0, rows, band):
            count = min(band, rows - first)

            def cut(view: View, image: int = image, first: int = first, count: int = count) -> View:
                if view.shape[0] != 1:
                    view = view.sliced(0, image, 1)
                return view if view.shape[2] == 1 else view.sliced(2, first, count)

            here = replace(
                start,
                offset=start.offset + first * start.strides[2],
                shape=(*start.shape[:2], min(count, start.shape[2]), start.shape[3]),
            )
            if n > 1:
                here = here.sliced(0, image, 1)
            steps += _band(
                lowering, tile, here, weights, key, cut(output), [cut(v) for v in operands],
                expression, nodes,
            )  # fmt: skip
    return steps


def _band_rows(tile: int, shape: tuple[int, ...], inputs: int) -> int:
    """Return the rows of output that are computed together: patches and products stay in cache."""
    _, channels, rows, columns = shape
    tile_row = SCHEMES[tile].positions * -(-columns // tile) * (inputs + channels) * 4
    tile_rows = -(-rows // tile)
    bands = max(1, -(-tile_rows * tile_row // _BAND_BYTES))
    return -(-tile_rows // bands) * tile


def _band(
    lowering: Lowering,
    tile: int,
    start: View,
    weights: Array,
    key: tuple[str, ...],
    output: View,
    operands: Sequence[View],
    expression: Expression,
    nodes: Sequence[ir.Node],
) -> list[Step]:
    """Return the three steps of some rows of one image."""
    scheme = SCHEMES[tile]
    n, channels, rows, columns = output.shape
    inputs = weights.shape[3]
    tile_rows, tile_columns = -(-rows // tile), -(-columns // tile)
    tiles = n * tile_rows * tile_columns
    name = str(nodes[0].name)
    patches = allocate(f"{name} patches", "f32", (scheme.positions, tiles, inputs))
    products = allocate(f"{name} products", "f32", (scheme.positions, tiles, channels))
    into = InputTransformSpec(
        tile, start.storage, n, tile_rows, tile_columns, inputs,
        (start.strides[0], start.strides[2], start.strides[3]),
    )  # fmt: skip
    middle, packed = _products(lowering, tile, weights, key, tiles)
    back = OutputTransformSpec(
        tile, n, tile_rows, tile_columns, rows, columns, channels, access(output, output),
        tuple(access(view, output) for view in operands), expression,
    )  # fmt: skip
    names = tuple(str(node.name) for node in nodes)
    return [
        Step(into, (start, patches), (patches,), (f"{name} patches",)),
        Step(middle, (patches, packed, products), (products,), (f"{name} products",)),
        Step(back, (products, output, *operands), (output,), names),
    ]


def _products(
    lowering: Lowering, tile: int, weights: Array, key: tuple[str, ...], tiles: int
) -> tuple[ProductSpec, View]:
    """Return one matrix product for each position, and the weights packed for it."""
    isa, positions = lowering.isa, SCHEMES[tile].positions
    channels, inputs = weights.shape[0], weights.shape[3]
    shape = choose_tile(1, typical(tiles), channels, inputs, isa)
    spec = ProductSpec(
        numeric="f32", images=positions, rows=1, columns=tiles, channels=channels,
        taps_y=1, taps_x=1, run=inputs,
        in_image=tiles * inputs, in_row=0, in_column=inputs, in_tap_y=0, in_tap_x=0,
        output=Access("f32", (tiles * channels, 0, channels, 1)),
        operands=(), expression=Operand(0), tile=shape, weights_per_image=True,
    )  # fmt: skip
    spec = replace(spec, channel_blocks=spec.blocks(isa))

    def pack() -> Array:
        sets = transform_weights(weights, SCHEMES[tile])
        numeric = NUMERICS["f32"]
        return np.concatenate(
            [pack_weights(w[:, None, None, :], numeric, shape.vectors, isa.lanes) for w in sets]
        )

    return spec, lowering.weight((*key, f"winograd{tile}", str(shape.vectors)), pack, "f32")
