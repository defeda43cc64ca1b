"""The pool of workers: everybody takes part, nobody spins for long, forks and ends are survived."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import FrameType
from typing import Any

import numpy as np
import pytest

from kernels import isa_for
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.driver import write_driver
from vermilion.codegen.isa import Isa
from vermilion.codegen.load import load_object
from vermilion.codegen.object import compile_object
from vermilion.codegen.table import DRIVER, ROW_WORDS
from vermilion.codegen.workers import ThreadPool, aligned_bytes

UNITS = 1000

TraceFunction = Callable[[FrameType, str, Any], Any]


@dataclass(frozen=True)
class Add:
    """`target[i] += source[i + shift]` for the units i, modulo their number."""

    shift: int
    units: int = UNITS

    family = "add"

    def write(self, module: Module, name: str, isa: Isa) -> None:
        f = Function(module, name, [("args", "ptr"), ("begin", "i64"), ("end", "i64")])
        source = f.load("ptr", f.arguments[0], 0, align=8)
        target = f.load("ptr", f.arguments[0], 8, align=8)
        with f.loop(f.arguments[1], f.arguments[2]) as i:
            there = f.multiply(f.remainder(f.add(i, self.shift), UNITS), 8)
            here = f.at(target, f.multiply(i, 8))
            total = f.add(f.load("i64", here, align=8), f.load("i64", f.at(source, there), align=8))
            f.store(total, here, align=8)
        f.finish()


@cache
def machine_code() -> bytes:
    isa, module = isa_for("cpu"), Module()
    write_driver(module)
    Add(1).write(module, "first", isa)
    Add(7).write(module, "second", isa)
    for name in ("first", "second"):
        module.export(name)
    return compile_object(module.text(), isa)


class Program:
    """Ten rounds of `b += a shifted`, `a += b shifted`: wrong where a meeting is missed."""

    def __init__(self, workers: int) -> None:
        isa = isa_for("cpu")
        self._library, functions = load_object(machine_code(), ["first", "second", *DRIVER], isa)
        self.a, self.b = (aligned_bytes(8 * UNITS).view(np.int64) for _ in range(2))
        self._arguments = np.array(
            [self.a.ctypes.data, self.b.ctypes.data, self.b.ctypes.data, self.a.ctypes.data]
        )
        at = self._arguments.ctypes.data
        rows = [
            (functions[name], at + 16 * (number % 2), UNITS, 13, number * UNITS)
            for number, name in enumerate(["first", "second"] * 10)
        ]
        self.table = np.array(rows, np.int64).reshape(-1)
        assert self.table.size == ROW_WORDS * 20
        self.pool = ThreadPool(functions, self.table, workers, self._library)

    def run(self) -> None:
        self.a[:] = np.arange(UNITS)
        self.b[:] = 1
        self.pool.run()

    def is_right(self) -> bool:
        a, b = np.arange(UNITS), np.ones(UNITS, np.int64)
        for _ in range(10):
            b = b + np.roll(a, -1)
            a = a + np.roll(b, -7)
        return np.array_equal(self.a, a) and np.array_equal(self.b, b)


@pytest.fixture(params=[1, 2, 4])
def program(request: pytest.FixtureRequest) -> Program:
    return Program(request.param)


def test_every_run_gives_the_same(program: Program) -> None:
    for _ in range(50):
        program.run()
        assert program.is_right()
    program.pool.close()


def test_workers_that_sleep_are_woken() -> None:
    program = Program(3)
    for _ in range(3):
        program.run()
        assert program.is_right()
        time.sleep(0.03)  # far longer than a worker spins
    program.pool.close()


def test_idle_workers_use_no_processor_time() -> None:
    program = Program(2)
    program.run()
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1
    program.pool.close()


def test_a_run_of_the_caller_alone_gives_the_same() -> None:
    program = Program(3)
    for is_alone in (False, True, True, False):
        program.pool._crowding.is_alone = is_alone
        program.run()
        assert program.is_right()
    program.pool.close()


def at_work(program: Program) -> int:
    return sum(lock.locked() for lock in program.pool._team.at_work)


def test_closing_ends_the_threads() -> None:
    program = Program(4)
    program.run()
    until = time.monotonic() + 20
    while at_work(program) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    assert at_work(program) == 3
    program.pool.close()
    assert at_work(program) == 0
    program.run()  # and a closed pool can still be asked
    assert program.is_right()


def test_a_crew_that_nobody_holds_lets_its_threads_go() -> None:
    program = Program(3)
    program.run()
    code = weakref.ref(program._library)
    del program  # at once: whoever is still in the code holds it
    until = time.monotonic() + 20
    while code() is not None and time.monotonic() < until:
        time.sleep(0.01)
    assert code() is None


class Interrupt(BaseException):
    """What a handler of a signal raises."""


def interrupted_at(line: int, pool: ThreadPool) -> bool:
    """Run with an exception before the given line of Python, counted through all calls."""
    left = line

    def trace(frame: FrameType, event: str, argument: object) -> TraceFunction:
        nonlocal left
        if event == "line":
            left -= 1
            if left == 0:
                raise Interrupt
        return trace

    sys.settrace(trace)
    try:
        pool.run()
    except Interrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("state", ["new", "spinning", "asleep"])
def test_an_exception_at_any_line_leaves_no_worker_at_work(state: str) -> None:
    for line in range(1, 100):
        program = Program(3)
        if state != "new":
            program.run()
        if state == "asleep":
            time.sleep(0.02)
        program.a[:], program.b[:] = np.arange(UNITS), 1
        was_interrupted = interrupted_at(line, program.pool)
        left_a, left_b = program.a.copy(), program.b.copy()
        time.sleep(0.001)
        assert np.array_equal(program.a, left_a)
        assert np.array_equal(program.b, left_b)
        for _ in range(2):  # and it goes on as if nothing had been
            program.run()
            assert program.is_right()
        program.pool.close()
        if not was_interrupted:
            assert line > 5
            return
    raise AssertionError("the run has no end")


def test_a_start_that_was_cut_off_starts_no_worker_twice() -> None:
    program = Program(4)
    team = program.pool._team
    team.start()
    team.is_started = False
    team.places.pop(2, None)
    team.start()  # one more for the place that seems to be free
    for _ in range(20):
        program.run()
        assert program.is_right()
    program.pool.close()


def test_closing_during_a_run_leaves_its_numbers_right() -> None:
    program = Program(2)
    wrong: list[int] = []

    def work() -> None:
        for at in range(300):
            program.run()
            if not program.is_right():
                wrong.append(at)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.01)
    program.pool.close()
    thread.join()
    assert not wrong


@pytest.mark.skipif(sys.platform == "win32", reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_has_workers_of_its_own() -> None:
    program = Program(2)
    program.run()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # rather than wait for ever
        right = True
        for _ in range(20):
            program.run()
            right = right and program.is_right()
        os._exit(0 if right else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    program.run()
    assert program.is_right()
    program.pool.close()


@pytest.mark.skipif(sys.platform == "win32", reason="this system does not fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_forked_while_another_thread_runs_has_workers_of_its_own() -> None:
    program, stop = Program(3), threading.Event()

    def work() -> None:
        while not stop.is_set():
            program.pool.run()
            time.sleep(0.003)

    thread = threading.Thread(target=work)
    thread.start()
    children = []
    for _ in range(10):
        time.sleep(0.007)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            program.run()
            os._exit(0 if program.is_right() else 1)
        children.append(child)
    stop.set()
    thread.join()
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    program.pool.close()
    assert codes == [0] * 10


def test_buffers_are_aligned() -> None:
    for size in (1, 63, 64, 1000):
        memory = aligned_bytes(size)
        assert memory.ctypes.data % 64 == 0
        assert memory.size == size
        assert not memory.any()
