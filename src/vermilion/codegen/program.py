"""Steps → a program: memory plan, meetings of workers, object code, tables.

A program is three files: `program.o` (machine code), `packed.bin` (weights in kernel order) and
`kernels.json` (which function on which addresses). Addresses are (place, offset): an offset in the
arena or in the packed weights, or a whole input or output.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vermilion.codegen.emit.builder import Module
from vermilion.codegen.emit.driver import write_driver
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.object import compile_object
from vermilion.codegen.tensor import SLACK_BYTES, Buffer, View

ALIGNMENT = 64
# Chunks a worker takes: enough that the last one does not keep others waiting.
_CHUNKS_PER_WORKER = 8


@dataclass(frozen=True)
class Address:
    """Where an argument points: arena, weights, or input or output number `index`."""

    place: str
    offset: int
    index: int = 0


@dataclass(frozen=True)
class Call:
    """One row of the step table."""

    function: str
    arguments: tuple[Address, ...]
    units: int
    chunk: int
    meet: bool
    label: str
    operations: int


@dataclass(frozen=True)
class CompiledSteps:
    """Everything that is written to files."""

    object_code: bytes
    packed: bytes
    arena_bytes: int
    calls: tuple[Call, ...]


def compile_steps(
    steps: Sequence[Step], inputs: Sequence[Buffer], outputs: Sequence[Buffer], isa: Isa
) -> CompiledSteps:
    """Lay out memory, write all kernels into one object, and make the step table."""
    offsets, arena_bytes = plan_memory(steps)
    weights, packed = _pack(steps)
    places: dict[int, Address] = {id(b): Address("arena", o) for b, o in offsets}
    places |= {id(b): Address("weights", o) for b, o in weights}
    places |= {id(b): Address("input", 0, i) for i, b in enumerate(inputs)}
    places |= {id(b): Address("output", 0, i) for i, b in enumerate(outputs)}
    meets = plan_meetings(steps, {id(b): o for b, o in offsets})
    calls = tuple(
        Call(
            function=step.function,
            arguments=tuple(_address(view, places) for view in step.arguments),
            units=step.spec.units,
            chunk=max(1, step.spec.units // (2 * _CHUNKS_PER_WORKER)),
            meet=meet,
            label=step.nodes[-1] if step.nodes else step.spec.family,
            operations=step.operations,
        )
        for step, meet in zip(steps, meets, strict=True)
    )
    return CompiledSteps(compile_object(module_text(steps, isa), isa), packed, arena_bytes, calls)


def module_text(steps: Iterable[Step], isa: Isa) -> str:
    """Write every distinct kernel of the steps, and the driver, as LLVM IR."""
    module = Module(has_bf16=isa.has_bf16)
    write_driver(module)
    for step in steps:
        if not module.has(step.function):
            step.spec.write(module, step.function, isa)
            module.export(step.function)
    return module.text()


def _address(view: View, places: dict[int, Address]) -> Address:
    base = places[id(view.buffer)]
    return Address(base.place, base.offset + view.offset * view.item_bytes, base.index)


def plan_memory(steps: Sequence[Step]) -> tuple[list[tuple[Buffer, int]], int]:
    """Give every arena buffer an offset; two that live at once do not overlap.

    A buffer lives from the first step that touches it to the last. Largest first, each at the
    lowest place that is free throughout its life.
    """
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
    placed: list[tuple[int, int, int, int]] = []  # offset, end, first, last
    result: list[tuple[Buffer, int]] = []
    total = ALIGNMENT
    for key in sorted(buffers, key=lambda k: (-buffers[k].size_bytes, first[k])):
        size = _aligned(buffers[key].size_bytes + SLACK_BYTES)
        offset = ALIGNMENT
        for low, high, begins, ends in sorted(placed):
            if ends < first[key] or begins > last[key]:
                continue
            if offset + size <= low:
                break
            offset = max(offset, high)
        placed.append((offset, offset + size, first[key], last[key]))
        result.append((buffers[key], offset))
        total = max(total, offset + size)
    return result, total


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _pack(steps: Sequence[Step]) -> tuple[list[tuple[Buffer, int]], bytes]:
    """Lay weights one after the other, each once; equal bytes share a place."""
    placed: list[tuple[Buffer, int]] = []
    seen: set[int] = set()
    known: dict[bytes, int] = {}
    pieces: list[bytes] = []
    offset = 0
    for step in steps:
        for view in step.arguments:
            buffer = view.buffer
            if buffer.place != "weights" or id(buffer) in seen or buffer.data is None:
                continue
            seen.add(id(buffer))
            data = np.ascontiguousarray(buffer.data).tobytes()
            if data in known:
                placed.append((buffer, known[data]))
                continue
            known[data] = offset
            placed.append((buffer, offset))
            padded = _aligned(len(data) + SLACK_BYTES)
            pieces.append(data + bytes(padded - len(data)))
            offset += padded
    return placed, b"".join(pieces)


def plan_meetings(steps: Sequence[Step], offsets: dict[int, int]) -> list[bool]:
    """Say before which steps all workers must meet.

    That is where a step touches what one since the last meeting wrote, or writes what one read.
    Buffers that share memory count as one. A border and the inside of an image never overlap.
    """
    meets: list[bool] = []
    reads: list[_Use] = []
    writes: list[_Use] = []
    for step in steps:
        written = {id(view.buffer) for view in step.writes}
        is_border = step.spec.family == "border"
        mine_read: list[_Use] = []
        mine_written: list[_Use] = []
        for view in step.arguments:
            if view.buffer.place == "weights":
                continue
            low, high = _span(view.buffer, offsets)
            use = _Use(low, high, id(view.buffer), is_border)
            (mine_written if id(view.buffer) in written else mine_read).append(use)
        conflict = _overlap(mine_read, writes) or _overlap(mine_written, [*writes, *reads])
        meets.append(conflict)
        if conflict:
            reads, writes = [], []
        reads += mine_read
        writes += mine_written
    return meets


@dataclass(frozen=True)
class _Use:
    low: int
    high: int
    buffer: int
    is_border: bool


def _span(buffer: Buffer, offsets: dict[int, int]) -> tuple[int, int]:
    if buffer.place == "arena":
        start = offsets[id(buffer)]
        return start, start + buffer.size_bytes + SLACK_BYTES
    # Inputs and outputs are apart from everything: a range of addresses that nothing else has.
    return -id(buffer), -id(buffer) + 1


def _overlap(some: Sequence[_Use], others: Sequence[_Use]) -> bool:
    return any(
        a.low < b.high
        and b.low < a.high
        and not (a.buffer == b.buffer and a.is_border != b.is_border)
        for a in some
        for b in others
    )
