"""`libamdhip64.so` for machines without a GPU: each of its functions asks another process.

A call is written to a pipe: its number and eleven words, arguments or whatever lies in their place.
What comes back is a list of orders: read my memory, write my memory, call this function on a
thread, return. So the library knows nothing of HIP, and the process that answers is this package.

Memory of the device is a file that both processes map.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from vermilion.errors import UnsupportedError

ARGUMENTS = 11  # of hipModuleLaunchKernel, the longest
RETURN, PEEK, POKE, SPAWN = range(4)
STARTED = -1  # instead of a function's number: the first word is where the memory is mapped
CALLS, REPLIES, MEMORY, LIBRARY = "calls", "replies", "memory", "libamdhip64.so"
_LIMIT_S = 60.0
_READ_WRITE, _SHARED = 3, 1


def write_library(
    folder: Path, symbols: Sequence[str], memory_bytes: int, linker: Sequence[str]
) -> Path:
    """Write the library for the pipes and the memory of a folder; return it.

    Raises: UnsupportedError where it cannot be linked.
    """
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    module = llvm.parse_assembly(_text(folder, symbols, memory_bytes, triple))
    machine = llvm.Target.from_triple(triple).create_target_machine(
        reloc="pic", codemodel="small", opt=1
    )
    objects, place = folder / "hip.o", folder / LIBRARY
    objects.write_bytes(machine.emit_object(module))
    words = [*linker, "-flavor", "gnu", "-shared", str(objects), "-o", str(place)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    if done.returncode:
        raise UnsupportedError(f"the emulated HIP library cannot be linked: {done.stderr[:200]}")
    return place


def _text(folder: Path, symbols: Sequence[str], memory_bytes: int, triple: str) -> str:
    paths = "".join(_string(name, str(folder / name)) for name in (CALLS, REPLIES, MEMORY))
    functions = "".join(_function(name, number) for number, name in enumerate(symbols))
    core = (
        _CORE.replace("SIZE", str(memory_bytes))
        .replace("ORDERS", _ORDERS)
        .replace("STARTED", str(STARTED))
    )
    return f'target triple = "{triple}"\n{paths}{core}{functions}'


def _string(name: str, text: str) -> str:
    raw = text.encode() + b"\0"
    letters = "".join(f"\\{byte:02X}" for byte in raw)
    return f'@{name} = private constant [{len(raw)} x i8] c"{letters}"\n'


def _function(name: str, number: int) -> str:
    parameters = ", ".join(f"i64 %a{at}" for at in range(ARGUMENTS))
    lines = [f"define i64 @{name}({parameters}) {{", "  %words = alloca [12 x i64]"]
    for at, value in enumerate([str(number), *(f"%a{at}" for at in range(ARGUMENTS))]):
        lines += [
            f"  %p{at} = getelementptr i64, ptr %words, i64 {at}",
            f"  store i64 {value}, ptr %p{at}",
        ]
    lines += ["  %found = call i64 @ask(ptr %words)", "  ret i64 %found", "}", ""]
    return "\n".join(lines)


# Orders are three words: what, an address, a length (or the function's argument).
_ORDERS = """
  %again = call i64 @all(ptr @read, i32 %in, ptr %order, i64 24)
  %what = load i64, ptr %order
  %pa = getelementptr i64, ptr %order, i64 1
  %address = load i64, ptr %pa
  %pl = getelementptr i64, ptr %order, i64 2
  %length = load i64, ptr %pl
  %place = inttoptr i64 %address to ptr
  switch i64 %what, label %done [i64 1, label %peek  i64 2, label %poke  i64 3, label %spawn]
peek:
  %sent = call i64 @all(ptr @write, i32 %out, ptr %place, i64 %length)
  br label %next
poke:
  %got = call i64 @all(ptr @read, i32 %in, ptr %place, i64 %length)
  br label %next
spawn:
  %argument = inttoptr i64 %length to ptr
  %made = call i32 @pthread_create(ptr %thread, ptr null, ptr %place, ptr %argument)
  %id = load i64, ptr %thread
  %let = call i32 @pthread_detach(i64 %id)
  br label %next
"""

_CORE = f"""
@out = internal global i32 -1
@in = internal global i32 -1
@lock = internal global [64 x i8] zeroinitializer, align 16
declare i32 @open(ptr, i32, ...)
declare i64 @read(i32, ptr, i64)
declare i64 @write(i32, ptr, i64)
declare ptr @mmap(ptr, i64, i32, i32, i32, i64)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
; What the loader calls. The list of constructors that LLVM knows would be written the old way.
@begin = internal constant ptr @start, section ".init_array"
@llvm.used = appending global [1 x ptr] [ptr @begin], section "llvm.metadata"

define internal i64 @all(ptr %function, i32 %file, ptr %place, i64 %length) {{
  br label %more
more:
  %at = phi i64 [0, %0], [%sum, %some]
  %left = sub i64 %length, %at
  %is = icmp sgt i64 %left, 0
  br i1 %is, label %go, label %end
go:
  %here = getelementptr i8, ptr %place, i64 %at
  %count = call i64 %function(i32 %file, ptr %here, i64 %left)
  %ok = icmp sgt i64 %count, 0
  br i1 %ok, label %some, label %again
some:
  %sum = add i64 %at, %count
  br label %more
again:
  ret i64 -1
end:
  ret i64 %at
}}

define internal i64 @ask(ptr %words) {{
  %order = alloca [3 x i64]
  %thread = alloca i64
  %locked = call i32 @pthread_mutex_lock(ptr @lock)
  %out = load i32, ptr @out
  %in = load i32, ptr @in
  %asked = call i64 @all(ptr @write, i32 %out, ptr %words, i64 96)
  br label %next
next:
ORDERS
done:
  %unlocked = call i32 @pthread_mutex_unlock(ptr @lock)
  ret i64 %address
}}

define internal void @start() {{
  %out = call i32 (ptr, i32, ...) @open(ptr @{CALLS}, i32 1)
  store i32 %out, ptr @out
  %in = call i32 (ptr, i32, ...) @open(ptr @{REPLIES}, i32 0)
  store i32 %in, ptr @in
  %file = call i32 (ptr, i32, ...) @open(ptr @{MEMORY}, i32 2)
  %base = call ptr @mmap(ptr null, i64 SIZE, i32 {_READ_WRITE}, i32 {_SHARED}, i32 %file, i64 0)
  %words = alloca [12 x i64]
  store i64 STARTED, ptr %words
  %place = getelementptr i64, ptr %words, i64 1
  %address = ptrtoint ptr %base to i64
  store i64 %address, ptr %place
  %done = call i64 @ask(ptr %words)
  ret void
}}
"""
