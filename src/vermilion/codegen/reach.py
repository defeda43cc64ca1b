"""Bytes that kernels touch from their arguments' pointers on; those of products."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.attention import AttentionSpec
from vermilion.codegen.emit.depthwise import DepthwiseSpec
from vermilion.codegen.emit.grouped import GroupedSpec
from vermilion.codegen.emit.matmul import MatmulSpec, Panels
from vermilion.codegen.emit.product import ProductSpec
from vermilion.codegen.emit.recurrent import RecurrentSpec
from vermilion.codegen.emit.walk import Access
from vermilion.codegen.emit.winograd import SCHEMES, InputTransformSpec, OutputTransformSpec
from vermilion.codegen.isa import Isa
from vermilion.codegen.numeric import NUMERICS
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.ir.expression import Apply, Convert, Element, Expression
from vermilion.ir.formula import at_least
from vermilion.ir.symbolic import larger, lesser

Dimensions = Iterable[tuple[int, int]]  # size, stride in elements


@dataclass(frozen=True)
class Reach:
    """The first byte that is touched and the one behind the last, from the pointer on."""

    low: int
    high: int

    def joined(self, other: Reach) -> Reach:
        """Return what both touch."""
        return Reach(lesser(self.low, other.low), larger(self.high, other.high))


def span(dims: Dimensions, storage: Storage | int, run: int = 1) -> Reach:
    """Return the reach of a walk over dimensions, `run` elements side by side at each place.

    An integer for the storage is the bytes of an element.
    """
    item = storage if isinstance(storage, int) else STORAGE_BYTES[storage]
    low, high = 0, run * item
    for size, stride in dims:
        end = (size - 1) * stride * item
        if at_least(stride, 0):
            high = high + end
        elif at_least(-stride, 0):
            low = low + end
        else:
            low, high = low + lesser(end, 0), high + larger(end, 0)
    return Reach(low, high)


def dense(count: int, storage: Storage | int) -> Reach:
    """Return the reach of elements side by side."""
    return span((), storage, count)


def walked(access: Access, sizes: Iterable[int]) -> Reach:
    """Return the reach of a walk over dimensions of these sizes."""
    return span(zip(sizes, access.strides, strict=True), access.storage)


def with_tables(expressions: Iterable[Expression], reaches: list[Reach]) -> list[Reach]:
    """Return reaches with what expressions read of tables: `reaches[i]` is operand i's."""
    found = list(reaches)
    for expression in expressions:
        for element in _elements(expression):
            table = Reach(0, 4 * (element.position + 1))
            found[element.operand] = found[element.operand].joined(table)
    return found


def _elements(expression: Expression) -> Iterator[Element]:
    pending = [expression]
    while pending:
        part = pending.pop()
        if isinstance(part, Element):
            yield part
        elif isinstance(part, Apply):
            pending.extend(part.arguments)
        elif isinstance(part, Convert):
            pending.append(part.argument)


def product(s: ProductSpec, isa: Isa) -> Sequence[Reach]:
    """Source, weights, result, operands; of integers the last group of a run is read whole."""
    numeric = NUMERICS[s.numeric]
    run = s.run if numeric.has_odd_value(s.run) else s.groups * numeric.group
    source = span(
        (
            (s.images, s.in_image), (s.rows, s.in_row), (s.columns, s.in_column),
            (s.taps_y, s.in_tap_y), (s.taps_x, s.in_tap_x),
        ),
        numeric.activation_bytes, run,
    )  # fmt: skip
    vectors = -(-s.channels // isa.lanes)
    sets = s.images if s.weights_per_image else 1
    weights = dense(sets * s.steps * vectors * numeric.parts * isa.vector_bytes, 1)
    size = (s.images, s.rows, s.columns, s.channels)
    result = walked(s.output, size)
    operands = [walked(access, size) for access in s.operands]
    if s.has_initial:  # vectors of the channels' first sums, whole ones
        sums = vectors * isa.lanes + s.taps_y * s.taps_x * s.initial_row
        sums = sums + (s.images - 1) * s.operands[0].strides[0]
        operands[0] = operands[0].joined(dense(sums, "i32"))
    return [source, weights, *with_tables([s.expression], [result, *operands])]


def depthwise(s: DepthwiseSpec, isa: Isa) -> Sequence[Reach]:
    """Source, weights, result, operands."""
    source = span(
        (
            (s.images, s.in_image), (s.rows, s.in_row), (s.columns, s.in_column),
            (s.taps_y, s.in_tap_y), (s.taps_x, s.in_tap_x),
        ),
        s.storage, s.channels,
    )  # fmt: skip
    size = (s.images, s.rows, s.columns, s.channels)
    others = [walked(access, size) for access in (s.output, *s.operands)]
    channels = -(-s.channels // isa.lanes) * isa.lanes if s.is_large else s.channels
    weights = dense(s.taps_y * s.taps_x * channels, "f32")
    return [source, weights, *with_tables([s.expression], others)]


def grouped(s: GroupedSpec, isa: Isa) -> Sequence[Reach]:
    """Source, weights, lanes, result, operands; the words of a vector's groups are read whole."""
    numeric = NUMERICS[s.numeric]
    vectors = -(-s.channels // isa.lanes)
    last = (vectors - 1) * isa.lanes // s.outputs * s.inputs // numeric.group
    source = span(
        (
            (s.images, s.in_image), (s.rows, s.in_row), (s.columns, s.in_column),
            (s.taps_y, s.in_tap_y), (s.taps_x, s.in_tap_x),
        ),
        numeric.activation_bytes, (last + s.span) * numeric.group,
    )  # fmt: skip
    size = (s.images, s.rows, s.columns, s.channels)
    operands = [walked(access, size) for access in s.operands]
    if s.has_initial:
        operands[0] = operands[0].joined(dense(vectors * isa.lanes, "i32"))
    packed = dense(vectors * s.vector_bytes(isa), 1)
    lanes = dense(vectors * isa.lanes, "i32")
    others = with_tables([s.expression], [walked(s.output, size), *operands])
    return [source, packed, lanes, *others]


def _right(
    side: Access | Panels, outer: Sequence[int], shape: tuple[int, int], bytes_: int
) -> Reach:
    """Return the reach of the right side: rows in place, or panels of `bytes_` a matrix."""
    if isinstance(side, Access):
        return walked(side, (*outer, *shape))
    return span(
        ((n, stride * bytes_) for n, stride in zip(outer, side.outer, strict=True)), 1, bytes_
    )


def matmul(s: MatmulSpec, isa: Isa) -> Sequence[Reach]:
    """Left, right, result, operands; the second left and right."""
    numeric = NUMERICS[s.numeric]
    panel_bytes = s.steps * s.vectors * numeric.parts * isa.vector_bytes
    right = _right(s.right, s.outer, (s.depth, s.columns), panel_bytes)
    # Of pairs the last odd value is read alone, quads are read whole.
    depth = s.steps * numeric.group if numeric.group > 2 else s.depth
    second = [] if s.second is None else [walked(s.second, (*s.outer, s.rows, s.depth)), right]
    return [
        walked(s.left, (*s.outer, s.rows, depth)),
        right,
        *(walked(access, (*s.outer, s.rows, s.columns)) for access in (s.output, *s.operands)),
        *second,
    ]


def attention(s: AttentionSpec, isa: Isa) -> Sequence[Reach]:
    """Query, key, value, result, operands of the scores, operands of the result."""
    group = NUMERICS[s.numeric].group
    key_bytes = -(-s.depth // group) * -(-s.keys // s.lanes) * isa.vector_bytes
    value_bytes = -(-s.keys // group) * -(-s.width // s.lanes) * isa.vector_bytes
    return [
        walked(s.query, (*s.outer, s.rows, s.depth)),
        _right(s.key, s.outer, (s.depth, s.keys), key_bytes),
        _right(s.value, s.outer, (s.keys, s.width), value_bytes),
        walked(s.output, (*s.outer, s.rows, s.width)),
        *(walked(access, (*s.outer, s.rows, s.keys)) for access in s.score_operands),
        *(walked(access, (*s.outer, s.rows, s.width)) for access in s.operands),
    ]


def recurrent(s: RecurrentSpec, isa: Isa) -> Sequence[Reach]:
    """State, weights, operands, results."""
    blocks = -(-s.hidden // (s.vectors * isa.lanes))
    panels = blocks * s.depth * s.gates * s.vectors * isa.vector_bytes
    strides = s.time_strides or (0,) * (1 + len(s.operands) + len(s.outputs))
    rows = [
        span(((s.times, time), (s.rows, one.strides[0])), one.storage, s.hidden)
        for one, time in zip((*s.operands, *s.outputs), strides[1:], strict=True)
    ]
    state = span(((s.times, strides[0]), (s.rows, s.state_row)), "f32", s.depth)
    return [state, dense(panels, 1), *rows]


def _planes_bytes(s: InputTransformSpec | OutputTransformSpec) -> int:
    return math.prod((SCHEMES[s.tile].patch ** 2, s.tiles, s.channels, 4))


def winograd_input(s: InputTransformSpec, isa: Isa) -> Sequence[Reach]:
    """Image, transformed patches."""
    image, row, column = s.source
    patch = SCHEMES[s.tile].patch
    source = span(
        (
            (s.images, image),
            ((s.tile_rows - 1) * s.tile + patch, row),
            ((s.tile_columns - 1) * s.tile + patch, column),
        ),
        s.storage, s.channels,
    )  # fmt: skip
    return [source, dense(_planes_bytes(s), 1)]


def winograd_output(s: OutputTransformSpec, isa: Isa) -> Sequence[Reach]:
    """Products, image, operands; what a last tile has beyond the image is not stored."""
    size = (s.images, s.rows, s.columns, s.channels)
    return [dense(_planes_bytes(s), 1), *(walked(one, size) for one in (s.output, *s.operands))]
