"""Steps → a program: barriers, object code, tables.

A program is machine code (`program.o`, the driver; `program_1.o`, the kernels, and more where
several processes compiled them), `packed.bin` (weights in kernel order) and `kernels.json` (which
function on which addresses).
Addresses are (place, offset): an offset in the arena or in the packed weights, or a whole input or
output.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.builder import Module
from vermilion.codegen.emit.check import CheckSpec
from vermilion.codegen.emit.driver import write_driver
from vermilion.codegen.extents import check_extents
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.memory import (
    BORDERS,
    aligned,
    chunk_of,
    offsets_of,
    plan_barriers,
    plan_memory,
    time_ns,
)
from vermilion.codegen.object import compile_object, compile_objects
from vermilion.codegen.table import Address, Call, Check, ObjectCode, StepTensor
from vermilion.codegen.tensor import SLACK_BYTES, Buffer, View
from vermilion.cores import usable_cores

# What each worker must have to do for its waking and the barriers to be worth it.
_WORKER_NS = 40_000.0
# Characters of IR that are worth a process of their own to compile, which takes 0.2 s to start.
_APART_CHARACTERS = 500_000


@dataclass(frozen=True)
class CompiledSteps:
    """Everything that is written to files. More workers than `most_workers` would be in the way.

    `once` are the calls that prepare the arena, before the first run. `barriers_again` says before
    which calls a barrier stands in every entry of a batch but the first. `tensors` says where, and
    after which call, the tensors lie that were asked for.
    """

    objects: tuple[ObjectCode, ...]
    packed: NDArray[np.uint8]
    arena_bytes: int
    once: tuple[Call, ...]
    calls: tuple[Call, ...]
    barriers_again: tuple[bool, ...]
    most_workers: int
    checks: tuple[Check, ...] = ()
    tensors: tuple[StepTensor, ...] = ()


def compile_steps(
    steps: Sequence[Step],
    inputs: Sequence[Buffer],
    outputs: Sequence[Buffer],
    isa: Isa,
    *,
    entries: int = 1,
    inputs_have_room: bool = False,
    values: Mapping[str, View] | None = None,
) -> CompiledSteps:
    """Lay out memory, write all kernels into objects, and make the step table.

    The table is run once for each of `entries`, whose inputs and outputs lie one after the other.
    `inputs_have_room` says that whoever runs it has `SLACK_BYTES` behind every input.

    Raises: ExtentError where a kernel would touch memory outside of its buffers.
    """
    check_extents(steps, isa, inputs_have_room=inputs_have_room)
    plan = plan_memory(steps)
    offsets = offsets_of(plan)
    weights, packed = packed_weights(steps)
    places = {key: Address("arena", offset) for key, offset in offsets.items()}
    places |= {id(b): Address("weights", o) for b, o in weights}
    places |= {id(b): Address("input", 0, i) for i, b in enumerate(inputs)}
    places |= {id(b): Address("output", 0, i) for i, b in enumerate(outputs)}
    checks = _checks(steps)
    places |= {key: Address("checks", 8 * check.offset) for key, check in checks.items()}
    # All later entries begin as the second does: after one that used the same memory.
    twice = plan.steps * min(entries, 2)
    barriers = plan_barriers(twice, offsets)
    count = len(plan.steps)
    return CompiledSteps(
        compiled_objects(steps, isa),
        packed,
        plan.arena_bytes,
        tuple(_call(step, False, places) for step in plan.once),
        tuple(
            _call(s, barrier, places)
            for s, barrier in zip(plan.steps, barriers[:count], strict=True)
        ),
        tuple(barriers[count:]),
        most_workers(plan.steps, entries),
        tuple(checks.values()),
        _step_tensors(values or {}, plan.steps, places),
    )


def _checks(steps: Iterable[Step]) -> dict[int, Check]:
    """Return a place to the words of every step that looks for wrong numbers."""
    found: dict[int, Check] = {}
    offset = 0
    for step in steps:
        if isinstance(step.spec, CheckSpec):
            buffer, units = step.writes[0].buffer, step.spec.units
            found[id(buffer)] = Check(offset, units, buffer.name, step.spec.size)
            offset += units
    return found


def _step_tensors(
    values: Mapping[str, View], steps: Sequence[Step], places: Mapping[int, Address]
) -> tuple[StepTensor, ...]:
    """Return where tensors lie that some step writes; a buffer is whole after its last writer."""
    whole: dict[int, int] = {}
    for at, step in enumerate(steps):
        if step.spec.family not in BORDERS:
            whole |= {id(view.buffer): at for view in step.writes}
    return tuple(
        StepTensor(
            name, whole[id(view.buffer)], _address(view, places), view.storage, view.shape,
            view.strides,
        )
        for name, view in values.items()
        if id(view.buffer) in whole
    )  # fmt: skip


def _call(step: Step, barrier: bool, places: Mapping[int, Address]) -> Call:
    return Call(
        function=step.function,
        arguments=tuple(_address(view, places) for view in step.arguments),
        units=step.spec.units,
        chunk=chunk_of(step.spec.units, expected_ns(step)),
        barrier=barrier,
        label=step.nodes[-1] if step.nodes else step.spec.family,
        operations=step.operations,
    )


def expected_ns(step: Step) -> float:
    """Return roughly how long a step takes on one core: arithmetic, or moving its tensors."""
    buffers = {id(view.buffer): view.buffer.size_bytes for view in step.arguments}
    views = {
        id(view.buffer): min(view.elements * view.item_bytes, buffers[id(view.buffer)])
        for view in step.arguments
    }
    return time_ns(step.operations, sum(views.values()))


def most_workers(steps: Iterable[Step], entries: int = 1) -> int:
    """Return how many workers are of use."""
    return max(1, int(sum(map(expected_ns, steps)) * entries / _WORKER_NS))


def compiled_objects(steps: Iterable[Step], isa: Isa) -> tuple[ObjectCode, ...]:
    """Return the driver and every distinct kernel of the steps as machine code."""
    kernels = _modules(steps, isa)
    total = sum(module.size for module in kernels.values())
    count = min(usable_cores(), 1 + total // _APART_CHARACTERS)
    bins = [_empty(isa) for _ in range(count)]
    names: list[list[str]] = [[] for _ in bins]
    # The largest first, each to where least is.
    for name, module in sorted(kernels.items(), key=lambda item: -item[1].size):
        at = min(range(count), key=lambda index: bins[index].size)
        bins[at].include(module)
        names[at].append(name)
    objects = compile_objects([module.text() for module in bins], isa)
    return (
        _driver(isa),
        *(
            ObjectCode(data, tuple(kernel_names))
            for data, kernel_names in zip(objects, names, strict=True)
        ),
    )


@cache
def _driver(isa: Isa) -> ObjectCode:
    """Compile the driver, which is the same for every program: it takes LLVM 50 ms."""
    module = _empty(isa)
    write_driver(module)
    return ObjectCode(compile_object(module.text(), isa), ())


def module_text(steps: Iterable[Step], isa: Isa) -> str:
    """Write every distinct kernel of the steps, and the driver, as LLVM IR."""
    module = _empty(isa)
    write_driver(module)
    return _with_kernels(module, steps, isa)


def kernel_text(steps: Iterable[Step], isa: Isa) -> str:
    """Write every distinct kernel of the steps as LLVM IR; whoever calls them needs no driver."""
    return _with_kernels(_empty(isa), steps, isa)


def _with_kernels(module: Module, steps: Iterable[Step], isa: Isa) -> str:
    for kernel in _modules(steps, isa).values():
        module.include(kernel)
    return module.text()


def _empty(isa: Isa) -> Module:
    return Module(has_bf16=isa.has_bf16, has_scale=isa.lanes == 16)


def _modules(steps: Iterable[Step], isa: Isa) -> dict[str, Module]:
    """Write every distinct kernel into a module of its own."""
    modules: dict[str, Module] = {}
    for step in steps:
        if step.function not in modules:
            module = _empty(isa)
            step.code.spec.write(module, step.function, isa)
            module.export(step.function)
            modules[step.function] = module
    return modules


def _address(view: View, places: Mapping[int, Address]) -> Address:
    base = places[id(view.buffer)]
    return Address(base.place, base.offset + view.offset * view.item_bytes, base.index)


def packed_weights(steps: Sequence[Step]) -> tuple[list[tuple[Buffer, int]], NDArray[np.uint8]]:
    """Lay weights one after the other, each once, with slack; equal bytes share a place."""
    placed: list[tuple[Buffer, int]] = []
    seen: set[int] = set()
    known: dict[tuple[int, bytes], int] = {}
    pieces: list[tuple[int, NDArray[np.uint8]]] = []
    total = 0
    for step in steps:
        for view in step.arguments:
            buffer = view.buffer
            if buffer.place != "weights" or id(buffer) in seen or buffer.data is None:
                continue
            seen.add(id(buffer))
            data = np.ascontiguousarray(buffer.data).reshape(-1)
            key = (data.size, hashlib.sha256(data.data).digest())
            if key not in known:
                known[key] = total
                pieces.append((total, data))
                total += aligned(data.size + SLACK_BYTES)
            placed.append((buffer, known[key]))
    packed = np.zeros(total, np.uint8)
    for offset, data in pieces:
        packed[offset : offset + data.size] = data
    return placed, packed
