"""The native loop that runs a step table, and the waiting of workers.

A row of the table is five 64-bit words: function, argument array, units, units in the smallest
chunk, and how many units of earlier steps must be finished before it.

Each worker has a share of every step's units, the same part of the picture in every step, so that
it reads mostly what it has written itself: lines come from another core's cache at a fifth of the
speed of its own (on a virtual machine of two Zen 5 cores). It takes half of what is left of its
share at a time, then helps others with theirs. It waits for units, never for a worker: one that is
late or asleep holds up nobody. Results do not depend on who computes what.

Who calls announces the run here, with the first store, and leaves when every unit is finished:
between the two nothing but this code runs in its thread.

Counters and finished units have the run's tag in their upper half. An older tag means that nobody
has been there in this run; a worker that is so late that the next run has begun sees a newer one
and leaves.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from vermilion.codegen.emit.builder import Function, Module, Slot
from vermilion.codegen.emit.values import Value, constant
from vermilion.codegen.table import (
    CLOSING,
    CONTEXT_LINE_BYTES,
    FINISHED,
    ROW_WORDS,
    RUN,
    SERVE,
    WAIT,
)

# Pauses before a waiting worker offers its core to others: about 20 microseconds. Where more
# threads want to run than there are cores, the one that is waited for may need this very core.
_SPINS_BEFORE_YIELD = 500
_YIELD = "SwitchToThread" if sys.platform == "win32" else "sched_yield"
_FINISHED = "vermilion_finished"
_ZERO = constant("i64", 0)
# The halves of a counter.
_TAG, _UNITS = constant("i64", -(1 << 32)), constant("i64", (1 << 32) - 1)


def write_driver(module: Module) -> None:
    """Add the driver to a module."""
    module.declare(_YIELD, "i32", [])
    _write_finished(module)
    _Run(module).write()
    _write_wait(module)
    _write_serve(module)


def _write_finished(module: Module) -> None:
    """Write the wait until `wanted` units are finished; false: a later run has begun."""
    numbers = [(name, "i64") for name in ("tag", "wanted", "workers")]
    f = Function(module, _FINISHED, [("context", "ptr"), *numbers], result="i1")
    context, tag, wanted, workers = f.arguments
    spins = f.slot(_ZERO)
    with f.repeat() as (_, done):
        total, worker = f.slot(_ZERO), f.slot(_ZERO)
        with f.repeat() as (_, summed):
            now = f.atomic_load("i64", _line(f, context, worker.get(), FINISHED))
            with f.when(f.compare("ugt", f.binary("and", now, _TAG), tag)):
                f.leave(constant("i1", 0))
            total.set(f.add(total.get(), _units(f, now, tag)))
            worker.set(f.add(worker.get(), 1))
            with f.when(f.compare("sge", worker.get(), workers)):
                f.jump(summed)
        with f.when(f.compare("sge", total.get(), wanted)):
            f.jump(done)
        f.pause()
        with f.when(f.compare("sge", spins.get(), constant("i64", _SPINS_BEFORE_YIELD))):
            f.call(_YIELD, "i32", [])
        spins.set(f.add(spins.get(), 1))
    f.finish(constant("i1", 1))


def _line(f: Function, base: Value, number: Value, offset_bytes: int = 0) -> Value:
    """Return where the cache line of a worker is."""
    return f.at(base, f.add(f.multiply(number, CONTEXT_LINE_BYTES), offset_bytes))


def _units(f: Function, counter: Value, tag: Value) -> Value:
    """Return the units of a counter: none where its tag is of an earlier run."""
    is_current = f.compare("eq", f.binary("and", counter, _TAG), tag)
    return f.select(is_current, f.binary("and", counter, _UNITS), _ZERO)


class _Run:
    """What one worker does in a run. `tag` is 0 where it is alone, `total` but for the caller."""

    def __init__(self, module: Module) -> None:
        numbers = [(name, "i64") for name in ("steps", "tag", "total", "worker", "workers")]
        pointers = [("context", "ptr"), ("table", "ptr")]
        self.f = Function(module, RUN, [*pointers, *numbers], internal=False)
        arguments = self.f.arguments
        self.context, self.table, self.steps, self.tag, self.total = arguments[:5]
        self.worker, self.workers = arguments[5:]

    def write(self) -> None:
        """Write the function: announce the run, compute all steps, wait for the others."""
        f = self.f
        is_alone = f.compare("eq", self.tag, _ZERO)
        own = _line(f, self.context, self.worker, FINISHED)
        step_bytes = f.multiply(self.workers, CONTEXT_LINE_BYTES)
        counters = f.at(self.context, f.add(step_bytes, FINISHED))
        is_caller = f.compare("ne", self.total, _ZERO)
        with f.when(is_caller):
            f.atomic_store(f.binary("lshr", self.tag, constant("i64", 32)), self.context)
        mine = f.slot(_ZERO)
        with f.section() as over:
            with f.loop(0, self.steps) as step, f.section() as done:
                row = f.at(self.table, f.multiply(step, ROW_WORDS * 8))
                function, arguments = (f.load("ptr", row, at, align=8) for at in (0, 8))
                units = f.load("i64", row, 16, align=8)
                with f.when(is_alone):
                    # A kernel divides by sizes, and a row without units may have none.
                    with f.when(f.compare("ne", units, _ZERO)):
                        f.call_pointer(function, [arguments, _ZERO, units])
                    f.jump(done)
                chunk, before = (f.load("i64", row, at, align=8) for at in (24, 32))
                self._wait(before, over)
                here = f.at(counters, f.multiply(step, step_bytes))
                start = mine.get()
                self._share(_Row(function, arguments, units, chunk), here, mine, over)
                with f.when(f.compare("ne", mine.get(), start)):
                    f.atomic_store(f.binary("or", mine.get(), self.tag), own)
            with f.when(is_caller):
                f.call(_FINISHED, "i1", [self.context, self.tag, self.total, self.workers])
        f.finish()

    def _wait(self, before: Value, over: str) -> None:
        """Wait for the units of earlier steps that this one needs."""
        f = self.f
        with f.when(f.compare("ne", before, _ZERO)):
            in_time = f.call(_FINISHED, "i1", [self.context, self.tag, before, self.workers])
            with f.when(in_time, holds=False):
                f.jump(over)

    def _share(self, row: _Row, counters: Value, mine: Slot, over: str) -> None:
        """Take units of this worker's share, then of the others', and count them in `mine`."""
        f, units = self.f, row.units
        is_whole = f.compare("sge", row.chunk, units)
        others = f.slot(_ZERO)
        with f.repeat() as (_, empty):
            straight = f.add(self.worker, others.get())
            wrapped = f.subtract(straight, self.workers)
            owner = f.select(f.compare("sge", straight, self.workers), wrapped, straight)
            low, high = (
                f.binary("udiv", f.multiply(units, end), self.workers)
                for end in (owner, f.add(owner, 1))
            )
            whole = f.select(f.compare("eq", owner, _ZERO), units, _ZERO)
            low, high = f.select(is_whole, _ZERO, low), f.select(is_whole, whole, high)
            self._take(row, _line(f, counters, owner), (low, f.subtract(high, low)), mine, over)
            others.set(f.add(others.get(), 1))
            with f.when(f.compare("sge", others.get(), self.workers)):
                f.jump(empty)

    def _take(
        self, row: _Row, counter: Value, share: tuple[Value, Value], mine: Slot, over: str
    ) -> None:
        """Take half of what is left of a share, a chunk at least, until there is nothing."""
        f, (low, size) = self.f, share
        with f.repeat() as (again, empty):
            now = f.atomic_load("i64", counter)
            with f.when(f.compare("ugt", f.binary("and", now, _TAG), self.tag)):
                f.jump(over)
            taken = _units(f, now, self.tag)
            left = f.subtract(size, taken)
            with f.when(f.compare("sle", left, _ZERO)):
                f.jump(empty)
            half = f.binary("lshr", left, constant("i64", 1))
            some = f.select(f.compare("sgt", half, row.chunk), half, row.chunk)
            some = f.minimum(some, left)
            then = f.binary("or", f.add(taken, some), self.tag)
            with f.when(f.compare_exchange(counter, now, then), holds=False):
                f.jump(again)
            begin = f.add(low, taken)
            f.call_pointer(row.function, [row.arguments, begin, f.add(begin, some)])
            mine.set(f.add(mine.get(), some))


@dataclass(frozen=True)
class _Row:
    function: Value
    arguments: Value
    units: Value
    chunk: Value


def _write_wait(module: Module) -> None:
    """Write the wait for another generation than was seen, `spins` times at most."""
    parameters = [("context", "ptr"), ("seen", "i64"), ("spins", "i64")]
    f = Function(module, WAIT, parameters, result="i64", internal=False)
    context, seen, spins = f.arguments
    spin = f.slot(_ZERO)
    with f.repeat():
        now = f.atomic_load("i64", context)
        is_new = f.compare("ne", now, seen)
        with f.when(f.binary("or", is_new, f.compare("sge", spin.get(), spins))):
            f.leave(now)
        f.pause()
        spin.set(f.add(spin.get(), 1))
    f.finish(_ZERO)


def _write_serve(module: Module) -> None:
    """Write the work in one run after the other, until none comes or the pool closes."""
    numbers = [(name, "i64") for name in ("steps", "seen", "spins", "worker", "workers")]
    parameters = [("context", "ptr"), ("table", "ptr"), *numbers]
    f = Function(module, SERVE, parameters, result="i64", internal=False)
    context, table, steps, seen, spins, worker, workers = f.arguments
    last = f.slot(seen)
    with f.repeat():
        now = f.call(WAIT, "i64", [context, last.get(), spins])
        is_closing = f.compare("ne", f.atomic_load("i64", context, CLOSING), _ZERO)
        is_same = f.compare("eq", now, last.get())
        with f.when(f.binary("or", is_closing, is_same)):
            f.leave(now)
        tag = f.binary("shl", now, constant("i64", 32))
        f.call_void(RUN, [context, table, steps, tag, _ZERO, worker, workers])
        last.set(now)
    f.finish(_ZERO)
