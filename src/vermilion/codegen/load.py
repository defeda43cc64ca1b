"""Object files → functions and programs in this process, without LLVM where that can be."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vermilion.codegen.elf import load_elf
from vermilion.codegen.isa import Isa
from vermilion.codegen.table import ProgramTable
from vermilion.codegen.tensor import SLACK_BYTES
from vermilion.codegen.workers import HEAP, Memory, ThreadPool, aligned_bytes

KERNEL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
"""A kernel: its argument array, the first unit, and the end of the units."""


def load_object(data: bytes, symbols: Iterable[str], isa: Isa) -> tuple[object, Mapping[str, int]]:
    """Load an object file into this process; give what keeps it alive and the addresses.

    Raises: DeviceError where it cannot be loaded.
    """
    if sys.platform.startswith("linux") and platform.machine() == "x86_64":
        loaded = load_elf(data, symbols)
        return loaded, loaded.addresses
    # Other systems and processors have other objects: LLVM's own linker knows them all.
    from vermilion.codegen.object import link_object

    return link_object(data, symbols, isa)


def load_functions(
    data: bytes, kinds: Mapping[str, Callable[[int], Any]], isa: Isa
) -> dict[str, Callable[..., Any]]:
    """Load an object file; return its functions by name, each of a `ctypes.CFUNCTYPE`.

    The code lives as long as any of them. Raises: DeviceError where it cannot be loaded.
    """
    library, addresses = load_object(data, kinds, isa)
    functions = {name: kind(addresses[name]) for name, kind in kinds.items()}
    for function in functions.values():
        function.library = library
    return functions


def call_kernel(kernel: Callable[..., Any], arguments: Sequence[int], units: int) -> None:
    """Compute all units of a kernel in this thread; its arguments are addresses."""
    pointers = np.array(arguments, np.int64)
    kernel(pointers.ctypes.data, 0, units)


# More than any function takes: where a run has no calls, one is called for no units.
_LEAST_ARGUMENTS = 256


class LoadedProgram:
    """A program's code, its arena and its arguments; one call runs all steps.

    The caller makes sure of turns.
    """

    def __init__(
        self,
        table: ProgramTable,
        isa: Isa,
        threads: int,
        *,
        keep: object = None,
        memory: Memory = HEAP,
    ) -> None:
        """Load the objects; `keep` is what buffers lie in, held as long as a worker may run.

        Raises: DeviceError where an object cannot be loaded.
        """
        self.functions: dict[str, int] = {}
        libraries: list[object] = []
        for number, code in enumerate(table.objects):
            library, found = load_object(code.data, table.symbols(number), isa)
            libraries.append(library)
            self.functions.update(found)
        room = memory.growing if table.most_calls else memory.aligned
        self.arena = room(table.arena_bytes + SLACK_BYTES)
        self._at: dict[str, int] = {}  # where buffers of the caller's are
        self._hold_arguments(table)
        self._take(table)
        self._memory, self._threads = memory, threads
        self.rows = table.rows(self.functions, self.arguments.ctypes.data, threads)
        self._held = [self.arena, self.arguments]
        self.keep = (libraries, keep, self._held)
        self._pool = ThreadPool(self.functions, self.rows, threads, self.keep)

    @property
    def workers(self) -> int:
        """How many threads run it, the caller's among them."""
        return self._pool.workers

    def point(self, buffer: str, address: int) -> None:
        """Say where a buffer of the caller's is, if the program has one of that name."""
        self._at[buffer] = address
        for number, offset in self._of.get(buffer, ()):
            self._slots[number] = address + offset

    def resize(self, table: ProgramTable) -> None:
        """Take the calls of another table of the same code, between two runs.

        The caller's buffers stay where they are.
        """
        if table.arena_bytes + SLACK_BYTES > self.arena.size:
            # Every unit of the runs before is finished: nobody reads the arena that was too small.
            self.arena = self._memory.growing(table.arena_bytes + SLACK_BYTES)
        if len(table.addresses) > len(self.arguments):
            self._hold_arguments(table)
        self._held[:] = [self.arena, self.arguments]
        self._take(table)
        self._pool.hold(table.rows(self.functions, self.arguments.ctypes.data, self._threads))

    def _take(self, table: ProgramTable) -> None:
        """Write all arguments of a table: sizes, and addresses."""
        known = [self._at.get(name, 0) for name in table.buffers]
        bases = np.array([*known, 0, self.arena.ctypes.data], np.int64)  # SIZE and ARENA are last
        buffers, offsets = table.addresses.T
        self.arguments[: len(offsets)] = bases[buffers] + offsets
        self._of = table.arguments_of()

    def _hold_arguments(self, table: ProgramTable) -> None:
        self.arguments = aligned_bytes(8 * max(_LEAST_ARGUMENTS, len(table.addresses))).view(
            np.int64
        )
        # Items of a memoryview are set in a tenth of the time that an array's take.
        self._slots = memoryview(self.arguments)  # type: ignore[arg-type]

    def run(self) -> None:
        """Run all steps once. When it is left, by an exception even, no worker is at work."""
        self._pool.run()

    def close(self) -> None:
        """End the workers."""
        self._pool.close()
