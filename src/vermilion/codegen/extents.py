"""How far kernels read and write, held against the buffers that they are given.

A kernel computes addresses from its spec alone. Given a buffer that is smaller than the spec says
it would write over other memory; here that is an error before there is any code. What kernels read
as a whole and use in part (the last pair or quad of a run) may lie in the room behind a buffer. The
caller's inputs and outputs have none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from vermilion.codegen import reach
from vermilion.codegen.emit.argmax import ExtremePlaceSpec
from vermilion.codegen.emit.attention import AttentionSpec
from vermilion.codegen.emit.block_rounding import BlockRoundingSpec
from vermilion.codegen.emit.check import CheckSpec
from vermilion.codegen.emit.depthwise import DepthwiseSpec
from vermilion.codegen.emit.fill import BorderSpec, RangeSpec, SizesSpec
from vermilion.codegen.emit.gather import GatherSpec, PickSpec, ScatterSpec
from vermilion.codegen.emit.grouped import GroupedSpec
from vermilion.codegen.emit.interleave import InterleaveSpec
from vermilion.codegen.emit.map import MapSpec, map_step
from vermilion.codegen.emit.matmul import MatmulSpec
from vermilion.codegen.emit.normalize import NormalizeSpec
from vermilion.codegen.emit.pack import PackSpec
from vermilion.codegen.emit.pool import PoolSpec
from vermilion.codegen.emit.product import ProductSpec
from vermilion.codegen.emit.recurrent import RecurrentSpec
from vermilion.codegen.emit.reduce import ExtremesSpec, ReduceSpec
from vermilion.codegen.emit.resize import ResizeSpec
from vermilion.codegen.emit.resize_table import ResizeTableSpec
from vermilion.codegen.emit.scan import ScanSpec
from vermilion.codegen.emit.softmax import SoftmaxSpec
from vermilion.codegen.emit.top import TopSpec
from vermilion.codegen.emit.winograd import InputTransformSpec, OutputTransformSpec
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.reach import Reach, dense, span, walked, with_tables
from vermilion.codegen.tensor import SLACK_BYTES, STORAGE_BYTES, Buffer, View
from vermilion.errors import UnsupportedError
from vermilion.ir.expression import Operand

Kept = Sequence[tuple[int, Sequence[int]]]  # dimensions: size, one stride for each argument


class ExtentError(UnsupportedError):
    """A kernel would touch memory outside of a buffer: a fault of lowering, found in time."""


def check_extents(steps: Iterable[Step], isa: Isa, *, inputs_have_room: bool = False) -> None:
    """Raise ExtentError where a view, or what a kernel makes of it, lies outside of its buffer."""
    for step in steps:
        for number, low, high, size in _touched(step, isa, inputs_have_room=inputs_have_room):
            if low < 0 or high > size:
                view = step.arguments[number]
                place = f"{step.spec.family}, argument {number}, `{view.buffer.name}`"
                raise ExtentError(
                    f"a kernel would touch the bytes {low} to {high} of a buffer of "
                    f"{view.buffer.size_bytes} ({place})",
                    where=f"node `{step.nodes[-1]}`" if step.nodes else "",
                    hint="this is a fault of the code generator; ONNX Runtime computes the node "
                    "instead",
                )


def extents_of(step: Step, isa: Isa) -> list[tuple[int, int, int]]:
    """Return the bytes that a step touches of its buffers, from and to, and how many are there."""
    return [(low, high, size) for _, low, high, size in _touched(step, isa)]


def _touched(
    step: Step, isa: Isa, *, inputs_have_room: bool = False
) -> Iterator[tuple[int, int, int, int]]:
    """Yield for each argument its number, the first byte touched, the end, and the end allowed."""
    roomy = (*_WITH_ROOM, "input") if inputs_have_room else _WITH_ROOM
    written = {id(view.buffer) for view in step.writes}
    reaches = _reaches(step, isa)
    for number, view in enumerate(step.arguments):
        start, size = view.offset * view.item_bytes, view.buffer.size_bytes
        own = _of_view(view)
        yield number, start + own.low, start + own.high, size
        if reaches is not None:
            is_read = id(view.buffer) not in written and view.buffer.place in roomy
            reach = reaches[number]
            room = SLACK_BYTES if is_read else 0
            yield number, start + reach.low, start + reach.high, size + room


_WITH_ROOM = ("arena", "weights")


def with_room(steps: Sequence[Step], isa: Isa) -> list[Step]:
    """Return the steps with a copy of what they would read beyond of the caller's inputs.

    Such a step reads the last group of a run as a whole. The copy has room behind it.
    """
    result: list[Step] = []
    copies: dict[int, Buffer] = {}
    for original in steps:
        step = original
        for number in _beyond(original, isa):
            view = step.arguments[number]
            buffer = view.buffer
            if id(buffer) not in copies:
                copies[id(buffer)] = Buffer(f"{buffer.name} with room", buffer.size_bytes, "arena")
                result.append(_copy(buffer, copies[id(buffer)]))
            moved = replace(view, buffer=copies[id(buffer)])
            arguments = (*step.arguments[:number], moved, *step.arguments[number + 1 :])
            step = replace(step, arguments=arguments)
        result.append(step)
    return result


def _beyond(step: Step, isa: Isa) -> list[int]:
    """Return the numbers of the arguments that are inputs and are read beyond their end."""
    inputs = [at for at, view in enumerate(step.arguments) if view.buffer.place == "input"]
    reaches = _reaches(step, isa) if inputs else None
    if reaches is None:
        return []
    views = [(at, step.arguments[at]) for at in inputs]
    return [
        at
        for at, view in views
        if view.offset * view.item_bytes + reaches[at].high > view.buffer.size_bytes
    ]


def _copy(source: Buffer, target: Buffer) -> Step:
    views = [View(one, "u8", (source.size_bytes,), (1,)) for one in (source, target)]
    return map_step([views[0]], [views[1]], [Operand(0, "int")], [f"copy of {source.name}"])


def _of_view(view: View) -> Reach:
    return span(zip(view.shape, view.strides, strict=True), view.storage)


def _reaches(step: Step, isa: Isa) -> Sequence[Reach] | None:
    """Return how far each argument is touched, None for the kernels of language models."""
    spec = step.spec
    if isinstance(spec, ResizeSpec):
        return _resize(spec, step)
    found = _REACHES.get(type(spec))
    if found is None:
        return None
    reaches = found(spec, isa)
    assert len(reaches) == len(step.arguments), f"{spec.family} has other arguments"
    return reaches


def _walks(kept: Kept, at: int) -> list[tuple[int, int]]:
    return [(size, strides[at]) for size, strides in kept]


def _map(s: MapSpec, isa: Isa) -> Sequence[Reach]:
    accesses = (*s.operands, *s.outputs)
    walks = [walked(one, s.shape) for one in accesses]
    return with_tables(s.expressions, walks)


def _reduce(s: ReduceSpec, isa: Isa) -> Sequence[Reach]:
    come = [*((size, stride) for size, stride, _ in s.kept), *s.reduced]
    return [
        span(come, s.storage),
        span([(size, stride) for size, _, stride in s.kept], s.out_storage),
    ]


def _extremes(s: ExtremesSpec, isa: Isa) -> Sequence[Reach]:
    come = span([*((size, stride) for size, stride, _ in s.kept), *s.reduced], s.storage)
    kept = [(size, stride) for size, _, stride in s.kept]
    return [come] * (2 if s.is_pair else 1) + [span(kept, storage) for storage in s.out_storages]


def _gather(s: GatherSpec, isa: Isa) -> Sequence[Reach]:
    size, come, go = s.inner
    return [
        span([*_walks(s.dims, 0), *s.axes, (size, come)], s.storage),
        span([*_walks(s.dims, 1), (len(s.axes), s.step)], s.indices),
        span([*_walks(s.dims, 2), (size, go)], s.storage),
    ]


def _scatter(s: ScatterSpec, isa: Isa) -> Sequence[Reach]:
    size, come, go = s.inner
    return [
        span([*_walks(s.dims, 0), (size, come)], s.storage),
        span([*_walks(s.dims, 1), (len(s.axes), s.step)], s.indices),
        span([*_walks(s.dims, 2), *s.axes, (size, go)], s.out_storage),
    ]


def _pick(s: PickSpec, isa: Isa) -> Sequence[Reach]:
    return [
        span([*_walks(s.dims, 0), (s.axis_size, s.axis_stride)], s.storage),
        span(_walks(s.dims, 1), s.indices),
        span(_walks(s.dims, 2), s.storage),
    ]


def _along(s: ScanSpec | SoftmaxSpec | BlockRoundingSpec, isa: Isa) -> Sequence[Reach]:
    kept = s.outer if isinstance(s, BlockRoundingSpec) else s.kept
    return [
        span([*_walks(kept, 0), (s.size, s.stride)], s.storage),
        span([*_walks(kept, 1), (s.size, s.out_stride)], s.out_storage),
    ]


def _extreme_place(s: ExtremePlaceSpec, isa: Isa) -> Sequence[Reach]:
    come = [*_walks(s.kept, 0), (s.size, s.stride)]
    return [span(come, s.storage), span(_walks(s.kept, 1), "i64")]


def _top(s: TopSpec, isa: Isa) -> Sequence[Reach]:
    return [
        span([*_walks(s.kept, 0), (s.size, s.stride)], s.storage),
        span([*_walks(s.kept, 1), (s.count, s.out_stride)], s.out_storage),
        span([*_walks(s.kept, 2), (s.count, s.place_stride)], "i64"),
    ]


def _normalize(s: NormalizeSpec, isa: Isa) -> Sequence[Reach]:
    others = [dense(s.size, storage) for storage in (s.scale, s.shift) if storage is not None]
    return [
        span(_walks(s.rows, 0), s.storage, s.size),
        span(_walks(s.rows, 1), s.out_storage, s.size),
        *others,
    ]


def _pool(s: PoolSpec, isa: Isa) -> Sequence[Reach]:
    come = zip((s.images, s.in_rows, s.in_columns), s.source, strict=True)
    go = zip((s.images, s.rows, s.columns), s.target, strict=True)
    return [span(come, s.storage, s.channels), span(go, s.out_storage, s.channels)]


def _interleave(s: InterleaveSpec, isa: Isa) -> Sequence[Reach]:
    come = zip((s.images, s.planes, s.rows), s.source, strict=True)
    go = zip((s.images, s.rows), s.target, strict=True)
    return [
        span(come, s.source_storage, s.columns),
        span(go, s.storage, s.columns * s.planes),
    ]


def _pack(s: PackSpec, isa: Isa) -> Sequence[Reach]:
    come = [*s.outer, (s.depth, s.depth_stride), (s.columns, s.column_stride)]
    count = math.prod(size for size, _ in s.outer)
    return [span(come, s.storage), dense(count * s.matrix_elements, 4)]


def _resize(s: ResizeSpec, step: Step) -> Sequence[Reach]:
    """Tables say which pixels are read: constants are looked into, others end at the last pixel."""
    rows, columns = s.rows * s.taps_y, s.columns * s.taps_x
    last = sum(
        _largest_offset(step.arguments[at], step.arguments[0], axis)
        for at, axis in ((2, 2), (4, 3))
    )
    image = span([(s.images, s.in_image)], s.storage, s.channels)
    go = zip((s.images, s.rows, s.columns), (s.out_image, s.out_row, s.out_column), strict=True)
    return [
        Reach(image.low, image.high + last), span(go, s.storage, s.channels),
        dense(rows, 8), dense(rows, 4), dense(columns, 8), dense(columns, 4),
    ]  # fmt: skip


def _resize_table(s: ResizeTableSpec, isa: Isa) -> Sequence[Reach]:
    return [dense(s.target * s.taps, 8), dense(s.target * s.taps, 4)]


def _largest_offset(table: View, source: View, axis: int) -> int:
    data = table.buffer.data
    if data is None:  # `ResizeTableSpec` holds every offset inside
        return (source.shape[axis] - 1) * source.strides[axis] * STORAGE_BYTES[source.storage]
    offsets = np.frombuffer(data.tobytes(), np.int64)
    assert offsets.min() >= 0, "no pixel lies before the first"
    return int(offsets.max())


def _border(s: BorderSpec, isa: Isa) -> Sequence[Reach]:
    whole = dense(s.images * s.height * s.width * s.pixel_bytes, 1)
    return [whole, dense(1, "u8")] if s.is_read else [whole]


def _words(s: CheckSpec, isa: Isa) -> Sequence[Reach]:
    return [dense(s.count, s.storage), dense(s.units, "i64")]


_REACHES: Mapping[type, Callable[[Any, Isa], Sequence[Reach]]] = {
    AttentionSpec: reach.attention,
    BlockRoundingSpec: _along,
    BorderSpec: _border,
    CheckSpec: _words,
    DepthwiseSpec: reach.depthwise,
    ExtremePlaceSpec: _extreme_place,
    ExtremesSpec: _extremes,
    GatherSpec: _gather,
    GroupedSpec: reach.grouped,
    InputTransformSpec: reach.winograd_input,
    InterleaveSpec: _interleave,
    MapSpec: _map,
    MatmulSpec: reach.matmul,
    NormalizeSpec: _normalize,
    OutputTransformSpec: reach.winograd_output,
    PackSpec: _pack,
    PickSpec: _pick,
    ScatterSpec: _scatter,
    PoolSpec: _pool,
    ProductSpec: reach.product,
    RecurrentSpec: reach.recurrent,
    RangeSpec: lambda s, isa: [dense(s.count, s.storage)],
    ResizeTableSpec: _resize_table,
    ReduceSpec: _reduce,
    ScanSpec: _along,
    SizesSpec: lambda s, isa: [dense(len(s.numbers), s.storage)],
    SoftmaxSpec: _along,
    TopSpec: _top,
}
