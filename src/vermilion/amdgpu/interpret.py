"""One dispatch of a kernel, executed instruction by instruction.

Waves at the same place of the program execute each instruction together. Where they part, those
furthest behind go on first, until they meet the others or a barrier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from vermilion.amdgpu.assembly import Instruction, Kernel
from vermilion.amdgpu.matrix import matrix_step
from vermilion.amdgpu.memory_image import Memory
from vermilion.amdgpu.memory_steps import OF_LANES, memory_step
from vermilion.amdgpu.operands import SCALARS, TTMP, VCC, NotInterpretedError
from vermilion.amdgpu.packed import packed_step
from vermilion.amdgpu.scalar import scalar_step
from vermilion.amdgpu.shared_memory import Shared, shared_step
from vermilion.amdgpu.vector import vector_step
from vermilion.amdgpu.vector_flags import flags_step
from vermilion.amdgpu.waves import Flags, Step, Waves
from vermilion.errors import DeviceError

# Registers of the waves that run at one time: more are slower than one group after the other.
_MOST_WORDS = 1 << 23
_FAR = 1 << 60


class TooLongError(DeviceError):
    """More instructions than were allowed."""


@dataclass
class Budget:
    """How many instructions of waves may be executed, in how many steps, and how many were."""

    most: int
    most_steps: int = 1 << 60
    used: int = 0
    steps: int = 0

    def spend(self, waves: int) -> None:
        """Count one instruction of so many waves. Raises: TooLongError."""
        self.used += waves
        self.steps += 1
        if self.used > self.most or self.steps > self.most_steps:
            raise TooLongError(f"more than {self.used:,} instructions of waves are too many")


@dataclass(frozen=True)
class _Branch:
    target: int
    condition: Literal["", "scc0", "scc1", "vccz", "vccnz", "execz", "execnz"]


@dataclass(frozen=True)
class _Stop:
    kind: Literal["end", "barrier"]


@dataclass
class Program:
    """A kernel whose instructions were made ready for one set of shared memories."""

    kernel: Kernel
    symbols: Mapping[str, int]
    shared: Shared
    steps: list[Step | _Branch | _Stop] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Make the steps. Raises: NotInterpretedError."""
        self.steps = [self._step(one) for one in self.kernel.instructions]

    def _step(self, instruction: Instruction) -> Step | _Branch | _Stop:
        name = instruction.name
        if name in ("s_endpgm", "s_endpgm_saved"):
            return _Stop("end")
        if name in ("s_barrier", "s_barrier_wait"):
            return _Stop("barrier")
        if name.startswith("s_branch"):
            return _Branch(instruction.target, "")
        if name.startswith("s_cbranch_"):
            condition = name.removeprefix("s_cbranch_")
            return _Branch(instruction.target, condition)  # type: ignore[arg-type]
        if instruction.second is not None:
            return self._dual(instruction, instruction.second)
        return self._single(instruction)

    def _single(self, instruction: Instruction) -> Step:
        found = (
            memory_step(instruction)
            or scalar_step(instruction, self.symbols)
            or vector_step(instruction)
            or flags_step(instruction)
            or packed_step(instruction)
            or matrix_step(instruction, self.kernel.gpu)
            or shared_step(instruction, self.shared)
        )
        if found is None:
            raise NotInterpretedError(f"`{instruction.text}` is not interpreted")
        return found

    def _dual(self, first: Instruction, second: Instruction) -> Step:
        """Return both halves of a VOPD: each reads what was there before either wrote."""
        one = self._single(first)
        two = self._single(second)
        written = first.operands[0]
        reads = any(
            operand.kind == "v" and operand.index == written.index for operand in second.operands
        )
        if not reads:
            return lambda w: (one(w), two(w), None)[2]

        def step(w: Waves) -> None:
            before = w.v[written.index].copy()
            one(w)
            after = w.v[written.index].copy()
            w.v[written.index] = before
            two(w)
            w.v[written.index] = after

        return step


def run_dispatch(
    kernel: Kernel,
    symbols: Mapping[str, int],
    memory: Memory,
    *,
    grid: tuple[int, int, int],
    workgroup: tuple[int, int, int],
    arguments: int,
    budget: Budget,
) -> None:
    """Run `grid` workgroups; `arguments` is the address of the kernel's arguments.

    Raises: NotInterpretedError, WildAccessError, RaceError, TooLongError.
    """
    threads = workgroup[0] * workgroup[1] * workgroup[2]
    waves = -(-threads // kernel.lanes)
    total = grid[0] * grid[1] * grid[2]
    words = max(1, kernel.descriptor.get("next_free_vgpr", 256)) * kernel.lanes * waves
    at_once = int(np.clip(_MOST_WORDS // words, 1, total))
    shared = Shared(at_once, kernel.descriptor.get("group_segment_fixed_size", 0), waves)
    program = Program(kernel, symbols, shared)
    with np.errstate(all="ignore"):
        for start in range(0, total, at_once):
            shared.clear()
            numbers = np.arange(start, min(start + at_once, total))
            state = _begin(kernel, memory, numbers, grid, workgroup, arguments)
            _run(program, state, waves, budget)


def _begin(
    kernel: Kernel,
    memory: Memory,
    numbers: np.ndarray,
    grid: tuple[int, int, int],
    workgroup: tuple[int, int, int],
    arguments: int,
) -> Waves:
    """Return the waves of some workgroups as the hardware starts them."""
    lanes, threads = kernel.lanes, workgroup[0] * workgroup[1] * workgroup[2]
    waves = -(-threads // lanes)
    count = len(numbers) * waves
    descriptor = kernel.descriptor
    registers = max(descriptor.get("next_free_vgpr", 256), 4)
    accumulators = max(0, registers - descriptor.get("accum_offset", registers))
    thread = np.tile(np.arange(waves * lanes).reshape(waves, lanes), (len(numbers), 1))
    v = np.full((registers + 8, count, lanes), 0xFFFFFFFF, np.uint32)
    scratch = descriptor.get("private_segment_fixed_size", 0)
    state = Waves(
        kernel.gpu,
        lanes,
        v,
        np.full((accumulators + 8, count, lanes), 0xFFFFFFFF, np.uint32),
        np.zeros((SCALARS, count), np.uint32),
        np.zeros(count, np.bool_),
        thread < threads,
        np.repeat(np.arange(len(numbers)), waves).astype(np.int64),
        np.tile(np.arange(waves), len(numbers)),
        memory,
        scratch=np.full((count, lanes, scratch + 16 if scratch else 0), 0xFF, np.uint8),
    )
    ids = (
        thread % workgroup[0],
        thread // workgroup[0] % workgroup[1],
        thread // (workgroup[0] * workgroup[1]),
    )
    if kernel.gpu.startswith("gfx10") or kernel.gpu in ("gfx900", "gfx906", "gfx908"):
        for at, one in enumerate(ids):
            v[at] = one
    else:
        v[0] = ids[0] | ids[1] << 10 | ids[2] << 20
    number = np.repeat(numbers, waves)
    places = (number % grid[0], number // grid[0] % grid[1], number // (grid[0] * grid[1]))
    _set_scalars(kernel, state, arguments, places)
    return state


def _set_scalars(kernel: Kernel, w: Waves, arguments: int, places: tuple[np.ndarray, ...]) -> None:
    """Set the registers that hold the arguments' address and the workgroup's place.

    Source: LLVM AMDGPUUsage, "Initial kernel execution state".
    """
    descriptor, at = kernel.descriptor, 0
    for name, words in (
        ("user_sgpr_private_segment_buffer", 4),
        ("user_sgpr_dispatch_ptr", 2),
        ("user_sgpr_queue_ptr", 2),
        ("user_sgpr_kernarg_segment_ptr", 2),
        ("user_sgpr_dispatch_id", 2),
        ("user_sgpr_flat_scratch_init", 2),
        ("user_sgpr_private_segment_size", 1),
    ):
        if not descriptor.get(name):
            continue
        if name == "user_sgpr_private_segment_buffer":
            w.s[at + 3] = OF_LANES
        elif name == "user_sgpr_kernarg_segment_ptr":
            w.set_scalar64(at, np.full(w.count, arguments, np.uint64))
        elif name in ("user_sgpr_dispatch_ptr", "user_sgpr_queue_ptr"):
            raise NotInterpretedError(f"the kernel `{kernel.name}` reads its dispatch packet")
        at += words
    # The first arguments may lie in registers already; kernels load them again for older firmware.
    for number in range(descriptor.get("user_sgpr_kernarg_preload_length", 0)):
        place = arguments + 4 * (descriptor.get("user_sgpr_kernarg_preload_offset", 0) + number)
        loaded = w.memory.load(np.full(1, place, np.uint64), 4, np.ones(1, np.bool_))
        w.s[at + number] = loaded.view(np.uint32)[0, 0]
    if kernel.gpu.startswith("gfx12"):
        w.s[TTMP + 9] = places[0]
        w.s[TTMP + 7] = places[1] | places[2] << 16
        return
    at = descriptor.get("user_sgpr_count", at)
    for axis, number_of in zip("xyz", places, strict=True):
        if descriptor.get(f"system_sgpr_workgroup_id_{axis}", int(axis == "x")):
            w.s[at] = number_of
            at += 1


def _run(program: Program, state: Waves, waves: int, budget: Budget) -> None:
    """Run waves of workgroups, `waves` each, to their end."""
    pcs = np.zeros(state.count, np.int64)
    ended, waits = np.zeros(state.count, np.bool_), np.zeros(state.count, np.bool_)
    while not ended.all():
        ready = ~ended & ~waits
        if not ready.any():
            raise DeviceError(f"the kernel `{program.kernel.name}` waits at a barrier for ever")
        first = int(pcs[ready].min())
        chosen = ready & (pcs == first)
        others = pcs[ready & ~chosen]
        limit = int(others.min()) if others.size else _FAR
        whole = bool(chosen.all())
        group = state if whole else state.take(chosen)
        group.pc, group.pcs, group.ended, group.waits = first, None, False, False
        _advance(program, group, limit, budget)
        if not whole:
            state.put(chosen, group)
        pcs[chosen] = group.pc if group.pcs is None else group.pcs
        ended[chosen] = group.ended
        waits[chosen] = group.waits
        # A barrier opens for a workgroup whose waves all wait, but for those that have ended.
        arrived = (waits | ended).reshape(-1, waves).all(axis=1)
        program.shared.pass_barrier(np.flatnonzero(arrived & waits.reshape(-1, waves).any(axis=1)))
        waits &= ~np.repeat(arrived, waves)


def _advance(program: Program, w: Waves, limit: int, budget: Budget) -> None:
    """Run waves from one place until they part, wait, end, or reach `limit`."""
    steps, pc, count = program.steps, w.pc, w.count
    while pc < limit:
        if pc >= len(steps):
            raise DeviceError(f"the kernel `{program.kernel.name}` runs past its end")
        step = steps[pc]
        budget.spend(count)
        if isinstance(step, _Branch):
            taken = _taken(step, w)
            if taken.all():
                pc = step.target
            elif taken.any():
                w.pcs = np.where(taken, step.target, pc + 1)
                return
            else:
                pc += 1
        elif isinstance(step, _Stop):
            w.ended, w.waits = step.kind == "end", step.kind == "barrier"
            pc += 1
            break
        else:
            step(w)
            pc += 1
    w.pc = pc


def _taken(branch: _Branch, w: Waves) -> Flags:
    lanes = np.asarray(w.exec.any(axis=1))
    words = np.asarray(w.scalar64(VCC) if w.lanes == 64 else w.scalar(VCC))
    found: dict[str, Flags] = {
        "": np.ones(w.count, np.bool_),
        "scc0": ~w.scc,
        "scc1": w.scc,
        "execz": ~lanes,
        "execnz": lanes,
        "vccz": words == 0,
        "vccnz": words != 0,
    }
    if branch.condition not in found:
        raise NotInterpretedError(f"a branch on `{branch.condition}` is not interpreted")
    return found[branch.condition]
