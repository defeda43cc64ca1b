"""How fast this machine reads memory: the bar for decoding, which reads every weight per token.

A loop of wide loads over a buffer that no cache holds, one buffer a thread, all at once. Threads
that wait for memory slow each other only by the memory itself.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import Any

import llvmlite.binding as llvm
import numpy as np

# More than the last-level cache of a server's core complex, several times over.
BUFFER_BYTES = 96 << 20
ROUNDS = 5

# Reads 256 bytes a step, 4 vectors of 64 bytes added up apart, so that no addition is waited for.
_CODE = """
define i64 @read(ptr %data, i64 %bytes) {
entry:
  br label %loop
loop:
  %at = phi i64 [ 0, %entry ], [ %next, %loop ]
SUMS
  %p = getelementptr i8, ptr %data, i64 %at
LOADS
  %next = add i64 %at, 256
  %more = icmp ult i64 %next, %bytes
  br i1 %more, label %loop, label %end
end:
  %s01 = add <8 x i64> %n0, %n1
  %s23 = add <8 x i64> %n2, %n3
  %s = add <8 x i64> %s01, %s23
  %sum = call i64 @llvm.vector.reduce.add.v8i64(<8 x i64> %s)
  ret i64 %sum
}
declare i64 @llvm.vector.reduce.add.v8i64(<8 x i64>)
"""


def read_bandwidth_gb_per_s(threads: int) -> float:
    """Give the best rate of several rounds in 10^9 bytes a second, of all threads together."""
    engine = _compiled()
    kinds = (ctypes.c_int64, ctypes.c_void_p, ctypes.c_int64)
    function = ctypes.CFUNCTYPE(*kinds)(engine.get_function_address("read"))
    words = BUFFER_BYTES // 8
    buffers = [np.ones(words, np.int64) for _ in range(threads)]
    best_s = min(_seconds(function, buffers) for _ in range(ROUNDS))
    if function(buffers[0].ctypes.data, BUFFER_BYTES) != words:
        raise AssertionError("the loop did not read what is there")
    return threads * BUFFER_BYTES / best_s / 1e9


def _seconds(function: Any, buffers: list[np.ndarray[Any, Any]]) -> float:
    """Give the time from the common start until the last thread is done."""
    start = threading.Barrier(len(buffers) + 1)

    def work(buffer: np.ndarray[Any, Any]) -> None:
        start.wait()
        function(buffer.ctypes.data, BUFFER_BYTES)  # ctypes lets go of the interpreter's lock

    workers = [threading.Thread(target=work, args=(buffer,)) for buffer in buffers]
    for worker in workers:
        worker.start()
    start.wait()
    begin = time.perf_counter()
    for worker in workers:
        worker.join()
    return time.perf_counter() - begin


def _compiled() -> Any:
    """Give the engine that owns the machine code."""
    sums = [
        f"  %s_{i} = phi <8 x i64> [ zeroinitializer, %entry ], [ %n{i}, %loop ]" for i in range(4)
    ]
    loads = [
        f"  %p{i} = getelementptr i8, ptr %p, i64 {64 * i}\n"
        f"  %v{i} = load <8 x i64>, ptr %p{i}, align 8\n"
        f"  %n{i} = add <8 x i64> %s_{i}, %v{i}"
        for i in range(4)
    ]
    code = _CODE.replace("SUMS", "\n".join(sums)).replace("LOADS", "\n".join(loads))
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    module = llvm.parse_assembly(code)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine
