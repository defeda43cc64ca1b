"""Whether a kernel waits for what it has asked of memory before it uses it.

The interpreter loads at once, and a program that does not wait would compute the same. On the chip
a load fills its registers later, and counters say how many are on their way. Followed here over all
paths: which registers each instruction finds filled.

Source: AMD's instruction set guides, "Manually inserted wait states" and "Data dependency
resolution" (RDNA 4: "Wait counters"); LLVM AMDGPUUsage, "Memory model", for what returns in order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from vermilion.amdgpu.assembly import Instruction, Kernel
from vermilion.amdgpu.operands import Operand
from vermilion.errors import DeviceError

# Counters of RDNA 4; before it `scalar` and `shared` are one, before RDNA `store` and `load`.
Counter = Literal["load", "store", "shared", "scalar", "signal"]
_Register = tuple[str, int]
_SHARED: _Register = ("shared memory", 0)  # what a store to it fills
_BARRIER: _Register = ("barrier", 0)  # what has to be signalled before it is waited for

_NAMED = re.compile(r"(vmcnt|lgkmcnt|vscnt|expcnt)\((\d+)\)")
_LOADS = re.compile(r"(?:buffer|global|scratch|flat)_load_")
_STORES = re.compile(r"(?:buffer|global|scratch|flat)_store_")
_OF_NAMES: Mapping[str, tuple[Counter, ...]] = {
    "vmcnt": ("load",), "lgkmcnt": ("shared", "scalar"), "vscnt": ("store",), "expcnt": (),
    "s_wait_loadcnt": ("load",), "s_wait_storecnt": ("store",), "s_wait_dscnt": ("shared",),
    "s_wait_kmcnt": ("scalar",), "s_waitcnt_vscnt": ("store",), "s_waitcnt_vmcnt": ("load",),
    "s_waitcnt_lgkmcnt": ("shared", "scalar"),
}  # fmt: skip


class NotWaitedError(DeviceError):
    """A kernel uses a register, or passes a barrier, before what fills it has come."""


@dataclass
class _State:
    """What is on its way: by register, the counter and how many were issued in it before."""

    on_way: dict[_Register, tuple[Counter, int]] = field(default_factory=dict)
    issued: dict[Counter, int] = field(
        default_factory=lambda: dict.fromkeys(("load", "store", "shared", "scalar", "signal"), 0)
    )

    def ages(self) -> dict[_Register, tuple[Counter, int]]:
        """Return how many were issued after each, the same for paths of other lengths."""
        return {
            register: (counter, self.issued[counter] - number)
            for register, (counter, number) in self.on_way.items()
        }


Ages = dict[_Register, tuple[Counter, int]]


def check_waits(kernel: Kernel) -> None:
    """Follow a kernel's paths. Raises: NotWaitedError."""
    instructions = kernel.instructions
    starts = _starts(instructions)
    known: dict[int, Ages] = {0: {_BARRIER: ("signal", 0)}}
    waiting = [0]
    while waiting:
        at = waiting.pop()
        state = _State({r: (c, -age) for r, (c, age) in known[at].items()})
        while at < len(instructions):
            _step(kernel, instructions[at], state)
            name, target = instructions[at].name, instructions[at].target
            at += 1
            nexts = [] if name.startswith("s_endpgm") else [at]
            if target >= 0:
                nexts = [target] if name.startswith("s_branch") else [target, at]
            if target < 0 and nexts and at not in starts:
                continue
            waiting += [place for place in nexts if _merge(known, place, state.ages())]
            break


def _starts(instructions: tuple[Instruction, ...]) -> set[int]:
    """Return where paths meet: the targets of branches, and what follows one."""
    found = {0}
    for at, one in enumerate(instructions):
        if one.target >= 0:
            found |= {one.target, at + 1}
    return found


def _merge(known: dict[int, Ages], place: int, ages: Ages) -> bool:
    """Take in what a path brings; say whether that is more than was known there."""
    before = known.get(place)
    if before is None:
        known[place] = ages
        return True
    more = False
    for register, (counter, age) in ages.items():
        old = before.get(register)
        if old is None or age < old[1]:
            before[register], more = (counter, age), True
    return more


def _step(kernel: Kernel, one: Instruction, state: _State) -> None:
    name = one.name
    if name.startswith(("s_waitcnt", "s_wait_")):
        for awaited, most in _waits(one):
            _wait(kernel, state, awaited, most)
        return
    if name.startswith("s_barrier"):
        _barrier(kernel, name, state)
        return
    counter, fills, is_store = _asks(kernel, one)
    for operand in (*one.operands, *(one.second.operands if one.second is not None else ())):
        for register in _registers(operand):
            waits_for = state.on_way.get(register)
            # Loads from memory come in order: the later one may fill the same register, or half.
            again = operand is fills and waits_for is not None and waits_for[0] == counter == "load"
            if waits_for is not None and not again:
                raise NotWaitedError(
                    f"the kernel `{kernel.name}` uses {register[0]}{register[1]} in `{one.text}`"
                    " before it is loaded"
                )
    if counter is None:
        return
    state.issued[counter] += 1
    if name.startswith("flat_"):
        state.issued["shared"] += 1
    filled = list(_registers(fills)) if fills is not None else []
    for register in [*filled, *([_SHARED] if is_store and counter == "shared" else [])]:
        state.on_way[register] = (counter, state.issued[counter])


def _barrier(kernel: Kernel, name: str, state: _State) -> None:
    if name == "s_barrier_wait":
        if _BARRIER in state.on_way:
            raise NotWaitedError(f"the kernel `{kernel.name}` waits at a barrier without a signal")
        state.on_way[_BARRIER] = ("signal", 0)
        return
    state.on_way.pop(_BARRIER, None)
    if _SHARED in state.on_way:
        raise NotWaitedError(
            f"the kernel `{kernel.name}` comes to a barrier before its stores to shared memory are"
            " done"
        )


def _asks(kernel: Kernel, one: Instruction) -> tuple[Counter | None, Operand | None, bool]:
    """Return the counter that an instruction raises, what it fills later, whether it stores."""
    name = one.name
    if name.startswith(("s_load_", "s_buffer_load_")):
        return "scalar", one.operands[0], False
    if name.startswith("ds_"):
        is_store = name.startswith(("ds_write", "ds_store"))
        return "shared", None if is_store else one.operands[0], is_store
    if _LOADS.match(name):
        return "load", one.operands[0], False
    if _STORES.match(name):
        return "load" if kernel.gpu.startswith("gfx9") else "store", None, True
    return None, None, False


def _waits(one: Instruction) -> Iterator[tuple[Counter, int]]:
    """Yield each counter that an instruction waits for, and how many may be left in it."""
    if one.name == "s_wait_idle":
        for counters in _OF_NAMES.values():
            yield from ((counter, 0) for counter in counters)
        return
    if one.name == "s_waitcnt":
        for name, most in _NAMED.findall(one.text):
            yield from ((counter, int(most)) for counter in _OF_NAMES[name])
        return
    most = one.operands[-1].value
    if one.name in ("s_wait_loadcnt_dscnt", "s_wait_storecnt_dscnt"):
        yield "shared", most & 63
        yield ("load" if "load" in one.name else "store"), most >> 8 & 63
        return
    yield from ((counter, most) for counter in _OF_NAMES.get(one.name, ()))


def _wait(kernel: Kernel, state: _State, counter: Counter, most: int) -> None:
    """Take from what is on its way all but the last `most` of a counter."""
    if most:
        if counter == "scalar":
            return  # comes in any order
        mixed = counter == "shared" and not kernel.gpu.startswith("gfx12")
        if mixed and any(c == "scalar" for c, _ in state.on_way.values()):
            return
    done = state.issued[counter] - most
    state.on_way = {
        register: (c, number)
        for register, (c, number) in state.on_way.items()
        if c != counter or number > done
    }


def _registers(operand: Operand) -> Iterator[_Register]:
    if operand.kind in ("v", "a", "s"):
        for at in range(operand.index, operand.index + operand.count):
            yield operand.kind, at
