"""Where the tensors of a program lie: one arena, and borders that are written once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.tensor import SLACK_BYTES, Buffer

if TYPE_CHECKING:
    from vermilion.codegen.kernel import Step

ALIGNMENT = 64
# The smallest chunk: taking one costs a cache line, the last one keeps others waiting.
_CHUNK_NS = 700.0
# What a core does in a nanosecond, roughly: operations of a product, bytes through its caches.
_OPERATIONS_A_NS, _BYTES_A_NS = 100.0, 20.0
# Less than this is not worth sharing: a worker that takes part costs a cache line or two.
_SHARED_NS = 1500.0
# An image up to this size keeps its border from run to run, in memory that nothing else uses: a
# border takes a worker 2 microseconds, which is a twentieth of a small convolution.
_KEPT_BYTES = 2 * 1024 * 1024
# Tensors touched since the last barrier that a step is held against; a barrier takes less time than
# so many steps do, and without a bound a wide graph would be compared pair by pair.
_MOST_PENDING = 512


@dataclass(frozen=True)
class Life:
    """A span of memory: the steps in which something lies there."""

    buffers: tuple[Buffer, ...]
    first: int
    last: int

    @property
    def size_bytes(self) -> int:
        """Bytes of what lies there."""
        return self.buffers[0].size_bytes


@dataclass(frozen=True)
class MemoryPlan:
    """An offset for every buffer of the arena, and the steps that run once, before all others."""

    offsets: tuple[tuple[Buffer, int], ...]
    arena_bytes: int
    once: tuple[Step, ...]
    steps: tuple[Step, ...]


def plan_memory(steps: Sequence[Step], *, keep_borders: bool = True) -> MemoryPlan:
    """Return every arena buffer an offset; two that live at once do not overlap.

    A buffer lives from the first step that touches it to the last. Largest first, each at the
    lowest place that is free throughout its life. Images with equal borders take turns in one
    place that lives always, so that its border has to be written only once; without `keep_borders`
    it is written in every run.
    """
    kept = _kept_borders(steps) if keep_borders else set()
    rest = tuple(step for step in steps if id(step) not in kept)
    lives = lives_of(rest)
    together: dict[tuple[str, int], list[Life]] = {}
    once: list[Step] = []
    for step in steps:
        if id(step) in kept:
            buffer = step.writes[0].buffer
            life = lives.pop(id(buffer), None)
            if life is None:
                continue
            turns = _place_for(together, step.function, life)
            if not turns:
                once.append(step)
            turns.append(life)
    always = [
        Life(tuple(buffer for life in turns for buffer in life.buffers), -1, len(rest))
        for turns in together.values()
    ]
    placed, total = place_lives([*always, *lives.values()])
    return MemoryPlan(tuple(placed), total, tuple(once), rest)


# Families that write what lies around an image, and nothing of it.
BORDERS = ("border", "border_of_run")


def _kept_borders(steps: Sequence[Step]) -> set[int]:
    return {
        id(step)
        for step in steps
        if step.spec.family == "border"
        and step.writes[0].buffer.place == "arena"
        and step.writes[0].buffer.size_bytes <= _KEPT_BYTES
    }


def _place_for(
    together: dict[tuple[str, int], list[Life]], function: str, life: Life
) -> list[Life]:
    """Return those with the same border that live at other times.

    A new place where none is free.
    """
    number = 0
    while True:
        turns = together.setdefault((function, number), [])
        if all(other.last < life.first or life.last < other.first for other in turns):
            return turns
        number += 1


def lives_of(steps: Sequence[Step]) -> dict[int, Life]:
    """Return the life of every buffer of the arena, by its identity."""
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    buffers: dict[int, Buffer] = {}
    for at, step in enumerate(steps):
        for view in step.arguments:
            if view.buffer.place == "arena":
                key = id(view.buffer)
                buffers[key] = view.buffer
                first.setdefault(key, at)
                last[key] = at
    return {key: Life((buffer,), first[key], last[key]) for key, buffer in buffers.items()}


def place_lives(lives: Sequence[Life]) -> tuple[list[tuple[Buffer, int]], int]:
    """Return an offset for every buffer, and the bytes of all."""
    spans = [(life.first, life.last) for life in lives]
    places, total = places_of([life.size_bytes for life in lives], spans, meetings(spans))
    offsets = [
        (buffer, place)
        for life, place in zip(lives, places, strict=True)
        for buffer in life.buffers
    ]
    return offsets, total


def meetings(lives: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Return for each life, its first and last step, the numbers of those that it meets."""
    found: list[list[int]] = [[] for _ in lives]
    current: list[int] = []
    for number in sorted(range(len(lives)), key=lambda at: lives[at][0]):
        first, last = lives[number]
        current = [other for other in current if lives[other][1] >= first]
        if last < first:
            continue  # nothing touches it
        for other in current:
            found[other].append(number)
        found[number] += current
        current.append(number)
    return found


def places_of(
    sizes: Sequence[int], lives: Sequence[tuple[int, int]], meets: Sequence[Sequence[int]]
) -> tuple[list[int], int]:
    """Return an offset for each size in bytes, and the bytes of all: what meets does not overlap.

    Largest first, each as low as may be. Negative sizes get no place.
    """
    places, ends = [0] * len(sizes), [0] * len(sizes)
    total = ALIGNMENT
    for number in sorted(range(len(sizes)), key=lambda at: (-sizes[at], lives[at][0])):
        if sizes[number] < 0:
            break
        size, place = aligned(sizes[number] + SLACK_BYTES), ALIGNMENT
        for low, other in sorted([(places[at], at) for at in meets[number] if ends[at]]):
            if place + size <= low:
                break
            place = max(place, ends[other])
        places[number], ends[number] = place, place + size
        total = max(total, place + size)
    return places, total


def aligned(size: int) -> int:
    """Return the size rounded up to whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def offsets_of(plan: MemoryPlan) -> Mapping[int, int]:
    """Return each buffer's offset by its identity."""
    return {id(buffer): offset for buffer, offset in plan.offsets}


def plan_barriers(steps: Sequence[Step], offsets: Mapping[int, int]) -> list[bool]:
    """Say before which steps a barrier is needed.

    Buffers that share memory count as one. A border and the inside of an image never overlap.
    """
    uses = []
    for step in steps:
        written = {id(view.buffer) for view in step.writes}
        reads: list[Use] = []
        writes: list[Use] = []
        for view in step.arguments:
            if view.buffer.place in ("weights", "checks"):  # read by all, or by nobody in a run
                continue
            low, high = _span(view.buffer, offsets)
            is_written = id(view.buffer) in written
            is_border = is_written and step.spec.family in BORDERS
            use = Use(low, high, id(view.buffer), is_border)
            (writes if is_written else reads).append(use)
        uses.append((reads, writes))
    return barriers_between(uses)


class Use(NamedTuple):
    """Memory that a step touches: from and to, in which buffer, and whether a border is all."""

    low: int
    high: int
    buffer: int
    is_border: bool


def barriers_between(steps: Iterable[tuple[Sequence[Use], Sequence[Use]]]) -> list[bool]:
    """Say before which steps, each what it reads and what it writes, a barrier is needed.

    That is where a step touches what one since the last barrier wrote, or writes what one read.
    """
    barriers: list[bool] = []
    reads: list[Use] = []
    writes: list[Use] = []
    for mine_read, mine_written in steps:
        conflict = (
            len(reads) + len(writes) > _MOST_PENDING
            or _overlap(mine_read, writes)
            or _overlap(mine_written, writes)
            or _overlap(mine_written, reads)
        )
        barriers.append(conflict)
        if conflict:
            reads, writes = [], []
        reads += mine_read
        writes += mine_written
    return barriers


def _span(buffer: Buffer, offsets: Mapping[int, int]) -> tuple[int, int]:
    if buffer.place == "arena":
        start = offsets[id(buffer)]
        return start, start + buffer.size_bytes + SLACK_BYTES
    # Inputs and outputs are apart from everything: a range of addresses that nothing else has.
    return -id(buffer), -id(buffer) + 1


def _overlap(some: Sequence[Use], others: Sequence[Use]) -> bool:
    for low, high, buffer, is_border in some:
        for other in others:
            meets = low < other.high and other.low < high
            if meets and (buffer != other.buffer or is_border == other.is_border):
                return True
    return False


def time_ns(operations: float, moved_bytes: float) -> float:
    """Return roughly how long a step takes on one core: arithmetic, or moving its tensors."""
    return max(operations / _OPERATIONS_A_NS, moved_bytes / _BYTES_A_NS)


def chunk_of(units: int, whole_ns: float) -> int:
    """Return the least units that a worker takes at a time.

    All of them where sharing costs more.
    """
    if whole_ns < _SHARED_NS:
        return max(1, units)
    return max(1, int(units * _CHUNK_NS / whole_ns))


def times_ns(operations: NDArray[np.int64], moved_bytes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return `time_ns` of many steps."""
    return np.maximum(operations / _OPERATIONS_A_NS, moved_bytes / _BYTES_A_NS)


def chunks_of(units: NDArray[np.int64], whole_ns: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return `chunk_of` of many steps, each of a unit or more."""
    shared = units * _CHUNK_NS / np.maximum(whole_ns, _SHARED_NS)
    chunks = np.where(whole_ns < _SHARED_NS, units, shared.astype(np.int64))
    return np.maximum(1, chunks)
