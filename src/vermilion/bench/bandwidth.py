"""How fast this machine reads memory: the bar for decoding, which reads every weight per token.

A loop of wide loads over a buffer that no cache holds, one buffer a thread, all at once. Threads
that wait for memory slow each other only by the memory itself.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.register_tile import prefetch_line
from vermilion.codegen.emit.values import splat_integer
from vermilion.codegen.isa import isa_of
from vermilion.codegen.load import load_functions
from vermilion.codegen.object import compile_object
from vermilion.hardware.targets.find import find_target

# More than the last-level cache of a server's core complex, several times over.
BUFFER_BYTES = 96 << 20
ROUNDS = 5

# Two places of the buffer are read in turn, four lines of the cache at each, and asked for a while
# before, as lines that are read once. That is the fastest of twenty-five loops in C with AVX-512
# (one to eight places; asked for 0 to 8 KiB ahead, into any level), in turns on two cores of a Zen
# 5 EPYC: 53.5 GB/s of two threads and 44.0 of one. Lines that may be read again 52.1 and 42.0;
# without asking 51.2 and 42.3, and at one place 51.4 and 40.6.
_STREAMS, _LINES, _LINE_BYTES, _AHEAD_BYTES = 2, 4, 64, 2048
_STEP_BYTES = _STREAMS * _LINES * _LINE_BYTES

# A thread's own time goes in steps of 15.6 ms on Windows, longer than one round takes.
_own_clock = time.perf_counter if sys.platform == "win32" else time.thread_time
_TICK_S = 1e-9


class MemoryMeter:
    """Threads with a buffer each that read it whole, as often as is asked for."""

    def __init__(self, threads: int, buffer_bytes: int) -> None:
        """Make the buffers, of `buffer_bytes` each, rounded up to what a step reads."""
        self._read = _compiled()
        self._size = -(-buffer_bytes // _STEP_BYTES) * _STEP_BYTES
        self._buffers = [_buffer(self._size) for _ in range(threads)]

    @property
    def size_bytes(self) -> int:
        """Bytes that all threads together read in a pass."""
        return self._size * len(self._buffers)

    def gb_per_s(self, passes: int = 1, clock: Callable[[], float] = time.perf_counter) -> float:
        """Return the 10^9 bytes a second of threads that start together, each by `clock`."""
        start = threading.Barrier(len(self._buffers))
        rates: list[float] = []

        def work(buffer: NDArray[np.int64]) -> None:
            start.wait()
            begin = clock()
            # ctypes lets go of the interpreter's lock
            sums = [self._read(buffer.ctypes.data, self._size // _STREAMS) for _ in range(passes)]
            seconds = max(clock() - begin, _TICK_S)
            if set(sums) == {self._size // 8}:
                rates.append(self._size * passes / seconds)

        workers = [threading.Thread(target=work, args=(buffer,)) for buffer in self._buffers]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if len(rates) != len(self._buffers):
            raise AssertionError("the loop did not read what is there")
        return sum(rates) / 1e9


def read_bandwidth_gb_per_s(threads: int, buffer_bytes: int = BUFFER_BYTES) -> float:
    """Return the best rate of several rounds in 10^9 bytes a second, of all threads together.

    Every thread reads a buffer of its own of `buffer_bytes` or a little more. On a machine at other
    work a thread's own time leaves out the waiting for a core; where threads then do not run at
    once, the rate is too high rather than too low.
    """
    meter = MemoryMeter(threads, buffer_bytes)
    return max(meter.gb_per_s(clock=_own_clock) for _ in range(ROUNDS))


def _buffer(size: int) -> NDArray[np.int64]:
    """Return ones from the start of a cache line on: a load over two lines reads both."""
    whole = np.ones((size + _LINE_BYTES) // 8, np.int64)
    start = -whole.ctypes.data % _LINE_BYTES // 8
    return whole[start : start + size // 8]


def _compiled() -> Callable[..., int]:
    """Return `read(data, part)`: each of `_STREAMS` parts of the buffer has so many bytes."""
    isa = isa_of(find_target("cpu"))
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    return load_functions(compile_object(_code(), isa), {"read": kind}, isa)["read"]


def _code() -> str:
    """Return the loop; every load is added up apart, so that no addition is waited for."""
    module, kind = Module(), "<8 x i64>"
    parameters = [("data", "ptr"), ("part", "i64")]
    f = Function(module, "read", parameters, result="i64", internal=False)
    data, part = f.arguments
    sums = [[f.slot(splat_integer(0, 8, "i64")) for _ in range(_LINES)] for _ in range(_STREAMS)]
    with f.loop(0, part, _LINES * _LINE_BYTES) as at:
        for number, stream in enumerate(sums):
            place = f.at(data, f.add(f.multiply(part, number), at))
            for line, total in enumerate(stream):
                offset = line * _LINE_BYTES
                prefetch_line(f, f.at(place, _AHEAD_BYTES + offset), "once")
                loaded = f.load(kind, place, offset, align=_LINE_BYTES)
                total.set(f.binary("add", total.get(), loaded))
    whole = sums[0][0].get()
    for total in [one for stream in sums for one in stream][1:]:
        whole = f.binary("add", whole, total.get())
    f.finish(f.intrinsic("llvm.vector.reduce.add.v8i64", "i64", [whole]))
    return module.text()
