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
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

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

_CODE = """
define i64 @read(ptr %data, i64 %part) {
entry:
  br label %loop
loop:
  %at = phi i64 [ 0, %entry ], [ %next, %loop ]
SUMS
LOADS
  %next = add i64 %at, STEP
  %more = icmp ult i64 %next, %part
  br i1 %more, label %loop, label %end
end:
TOTAL
  ret i64 %sum
}
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)
declare i64 @llvm.vector.reduce.add.v8i64(<8 x i64>)
"""


class MemoryMeter:
    """Threads with a buffer each that read it whole, as often as is asked for."""

    def __init__(self, threads: int, buffer_bytes: int) -> None:
        """Make the buffers, of `buffer_bytes` each, rounded up to what a step reads."""
        self._engine = _compiled()  # owns the function's code
        kinds = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
        self._read = ctypes.CFUNCTYPE(*kinds)(self._engine.get_function_address("read"))
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


def _compiled() -> Any:
    """Return the engine that owns the machine code."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    module = llvm.parse_assembly(_code())
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


def _code() -> str:
    """Return the loop; every load is added up apart, so that no addition is waited for."""
    names = [(stream, line) for stream in range(_STREAMS) for line in range(_LINES)]
    sums = [
        f"  %s{s}_{n} = phi <8 x i64> [ zeroinitializer, %entry ], [ %n{s}_{n}, %loop ]"
        for s, n in names
    ]
    places = [
        f"  %o{s} = mul i64 %part, {s}\n"
        f"  %a{s} = add i64 %o{s}, %at\n"
        f"  %p{s} = getelementptr i8, ptr %data, i64 %a{s}"
        for s in range(_STREAMS)
    ]
    loads = [
        f"  %f{s}_{n} = getelementptr i8, ptr %p{s}, i64 {_AHEAD_BYTES + _LINE_BYTES * n}\n"
        f"  call void @llvm.prefetch.p0(ptr %f{s}_{n}, i32 0, i32 0, i32 1)\n"
        f"  %q{s}_{n} = getelementptr i8, ptr %p{s}, i64 {_LINE_BYTES * n}\n"
        f"  %v{s}_{n} = load <8 x i64>, ptr %q{s}_{n}, align {_LINE_BYTES}\n"
        f"  %n{s}_{n} = add <8 x i64> %s{s}_{n}, %v{s}_{n}"
        for s, n in names
    ]
    total = ["  %t0 = add <8 x i64> zeroinitializer, zeroinitializer"]
    total += [f"  %t{i + 1} = add <8 x i64> %t{i}, %n{s}_{n}" for i, (s, n) in enumerate(names)]
    total.append(f"  %sum = call i64 @llvm.vector.reduce.add.v8i64(<8 x i64> %t{len(names)})")
    code = _CODE.replace("SUMS", "\n".join(sums)).replace("LOADS", "\n".join(places + loads))
    return code.replace("TOTAL", "\n".join(total)).replace("STEP", str(_LINES * _LINE_BYTES))
