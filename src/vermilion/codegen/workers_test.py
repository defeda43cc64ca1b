"""The crew of workers: everybody takes part, nobody spins for long, forks and ends are survived."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from dataclasses import dataclass

import numpy as np
import pytest

from kernels import isa_for
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.driver import write_driver
from vermilion.codegen.isa import Isa
from vermilion.codegen.layout import DRIVER, ROW_WORDS
from vermilion.codegen.load import load_object
from vermilion.codegen.object import compile_object
from vermilion.codegen.workers import Crew, aligned_bytes, usable_cores

UNITS = 1000


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


class Program:
    """Ten rounds of `b += a shifted`, `a += b shifted`: wrong where a meeting is missed."""

    def __init__(self, workers: int) -> None:
        isa = isa_for("cpu")
        module = Module()
        write_driver(module)
        Add(1).write(module, "first", isa)
        Add(7).write(module, "second", isa)
        for name in ("first", "second"):
            module.export(name)
        data = compile_object(module.text(), isa)
        self._library, functions = load_object(data, ["first", "second", *DRIVER], isa)
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
        self.crew = Crew(functions, self.table, workers)

    def run(self) -> None:
        self.a[:] = np.arange(UNITS)
        self.b[:] = 1
        self.crew.run()

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
    program.crew.close()


def test_workers_that_sleep_are_woken() -> None:
    program = Program(3)
    for _ in range(3):
        program.run()
        assert program.is_right()
        time.sleep(0.03)  # far longer than a worker spins
    program.crew.close()


def test_idle_workers_use_no_processor_time() -> None:
    program = Program(2)
    program.run()
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1
    program.crew.close()


def test_closing_ends_the_threads() -> None:
    program = Program(4)
    program.run()
    mine = [t for t in threading.enumerate() if t.name.startswith("vermilion-")]
    assert len(mine) >= 3
    program.crew.close()
    assert not any(thread.is_alive() for thread in program.crew._threads)
    program.run()  # and a closed crew can still be asked
    assert program.is_right()


def test_a_crew_that_nobody_holds_lets_its_threads_go() -> None:
    program = Program(2)
    program.run()
    threads = list(program.crew._threads)
    library = program._library  # the code must outlive the threads that run it
    crew = program.crew
    del program
    crew.close()
    assert not any(thread.is_alive() for thread in threads)
    del library


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not fork")
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
    program.crew.close()


def test_buffers_are_aligned() -> None:
    for size in (1, 63, 64, 1000):
        memory = aligned_bytes(size)
        assert memory.ctypes.data % 64 == 0
        assert memory.size == size
        assert not memory.any()
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)
