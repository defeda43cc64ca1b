"""A decoder's program in this process: its code, its arena, its arguments, and one call to run."""

from __future__ import annotations

import numpy as np

from vermilion.codegen.isa import Isa
from vermilion.codegen.load import load_object
from vermilion.codegen.tensor import SLACK_BYTES
from vermilion.codegen.workers import ThreadPool, aligned_bytes
from vermilion.llm.engine.table import ProgramTable


class Program:
    """Machine code with its arena; one call runs all steps. The caller makes sure of turns."""

    def __init__(self, table: ProgramTable, isa: Isa, threads: int) -> None:
        functions: dict[str, int] = {}
        libraries: list[object] = []
        for number, (data, _) in enumerate(table.objects):
            library, found = load_object(data, table.symbols(number), isa)
            libraries.append(library)
            functions.update(found)
        self._arena = aligned_bytes(table.arena_bytes + SLACK_BYTES)
        self._buffers = {name: index for index, name in enumerate(table.buffers)}
        # Where each buffer is, the arena last: its number is -1.
        self._bases = np.zeros(len(table.buffers) + 1, np.int64)
        self._bases[-1] = self._arena.ctypes.data
        self._of, self._offsets = table.addresses[:, 0], table.addresses[:, 1]
        self._arguments = aligned_bytes(8 * max(1, len(self._of))).view(np.int64)
        self._is_placed = False
        rows = table.rows(functions, self._arguments.ctypes.data, threads)
        self._pool = ThreadPool(functions, rows, threads, (libraries, self._arena, self._arguments))

    def point(self, name: str, address: int) -> None:
        """Say where a buffer of the caller's is, if the program has one of that name."""
        index = self._buffers.get(name)
        if index is not None:
            self._bases[index] = address
            self._is_placed = False

    def run(self) -> None:
        """Run all steps once."""
        if not self._is_placed:
            count = len(self._of)
            np.add(self._bases[self._of], self._offsets, out=self._arguments[:count])
            self._is_placed = True
        self._pool.run()

    def close(self) -> None:
        """End the workers."""
        self._pool.close()
