"""Where the tensors of a program lie: one arena, and borders that are written once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import SLACK_BYTES, Buffer

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
_SPAN_STEPS = 64
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
    """Return an offset for every buffer, and the bytes of all: largest first, as low as may be."""
    placed: list[tuple[int, int, int]] = []  # offset, end, number of the life
    ordered = sorted(lives, key=lambda one: (-one.size_bytes, one.first))
    # What lives in a span of steps, by span: in a long program most things never meet.
    by_span: dict[int, list[tuple[int, int, int]]] = {}
    total = ALIGNMENT
    for number, life in enumerate(ordered):
        size = aligned(life.size_bytes + SLACK_BYTES)
        offset = ALIGNMENT
        spans = range(life.first // _SPAN_STEPS, life.last // _SPAN_STEPS + 1)
        near = {item for span in spans for item in by_span.get(span, ())}
        for low, high, at in sorted(near):
            other = ordered[at]
            if other.last < life.first or other.first > life.last:
                continue
            if offset + size <= low:
                break
            offset = max(offset, high)
        placed.append((offset, offset + size, number))
        for span in spans:
            by_span.setdefault(span, []).append(placed[-1])
        total = max(total, offset + size)
    offsets = [(buffer, offset) for offset, _, at in placed for buffer in ordered[at].buffers]
    return offsets, total


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


@dataclass(frozen=True)
class Use:
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
            or _overlap(mine_written, [*writes, *reads])
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
    return any(
        a.low < b.high
        and b.low < a.high
        and not (a.buffer == b.buffer and a.is_border != b.is_border)
        for a in some
        for b in others
    )


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
