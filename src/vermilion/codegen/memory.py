"""Where the tensors of a program lie: one arena, and borders that are written once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import SLACK_BYTES, Buffer

ALIGNMENT = 64
# An image up to this size keeps its border from run to run, in memory that nothing else uses: a
# border takes a worker 2 microseconds, which is a twentieth of a small convolution.
_KEPT_BYTES = 2 * 1024 * 1024
_SPAN_STEPS = 64


@dataclass(frozen=True)
class _Life:
    """A span of memory: the steps in which something lies there."""

    buffers: tuple[Buffer, ...]
    first: int
    last: int

    @property
    def size_bytes(self) -> int:
        return self.buffers[0].size_bytes


@dataclass(frozen=True)
class MemoryPlan:
    """An offset for every buffer of the arena, and the steps that run once, before all others."""

    offsets: tuple[tuple[Buffer, int], ...]
    arena_bytes: int
    once: tuple[Step, ...]
    steps: tuple[Step, ...]


def plan_memory(steps: Sequence[Step]) -> MemoryPlan:
    """Return every arena buffer an offset; two that live at once do not overlap.

    A buffer lives from the first step that touches it to the last. Largest first, each at the
    lowest place that is free throughout its life. Images with equal borders take turns in one
    place that lives always, so that its border has to be written only once.
    """
    kept = _kept_borders(steps)
    rest = tuple(step for step in steps if id(step) not in kept)
    lives = _lives(rest)
    together: dict[tuple[str, int], list[_Life]] = {}
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
        _Life(tuple(buffer for life in turns for buffer in life.buffers), -1, len(rest))
        for turns in together.values()
    ]
    placed, total = _place([*always, *lives.values()])
    return MemoryPlan(tuple(placed), total, tuple(once), rest)


def _kept_borders(steps: Sequence[Step]) -> set[int]:
    return {
        id(step)
        for step in steps
        if step.spec.family == "border"
        and step.writes[0].buffer.place == "arena"
        and step.writes[0].buffer.size_bytes <= _KEPT_BYTES
    }


def _place_for(
    together: dict[tuple[str, int], list[_Life]], function: str, life: _Life
) -> list[_Life]:
    """Return those with the same border that live at other times.

    A new place where none is free.
    """
    number = 0
    while True:
        turns = together.setdefault((function, number), [])
        if all(other.last < life.first or life.last < other.first for other in turns):
            return turns
        number += 1


def _lives(steps: Sequence[Step]) -> dict[int, _Life]:
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
    return {key: _Life((buffer,), first[key], last[key]) for key, buffer in buffers.items()}


def _place(lives: Sequence[_Life]) -> tuple[list[tuple[Buffer, int]], int]:
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
