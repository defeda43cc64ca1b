"""A compiled program as arrays: what is loaded, and nothing of how it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.layout import DRIVER, ROW_WORDS
from vermilion.codegen.table import Address, Call

# Chunks of a step for each worker: enough that the last does not keep the others waiting.
_CHUNKS_A_WORKER = 4
_ARENA = -1


@dataclass(frozen=True, eq=False)
class ProgramTable:
    """Objects with their functions, and the calls of one run.

    Shapes: calls (n, 5), each the number of its function, its units, how many a worker takes at a
    time (0: as many as fit their number; -n: that, and n at most), whether a barrier is before it,
    and its arguments; addresses (m, 2), each argument's buffer of the caller, -1 for the arena, and
    the bytes from its start.
    """

    objects: tuple[tuple[bytes, tuple[str, ...]], ...]
    arena_bytes: int
    functions: tuple[str, ...]
    buffers: tuple[str, ...]
    calls: NDArray[np.int64]
    addresses: NDArray[np.int64]

    def rows(
        self, functions: Mapping[str, int], arguments_at: int, threads: int
    ) -> NDArray[np.int64]:
        """Return the step table, for functions and arguments where they lie in memory."""
        rows = np.zeros((len(self.calls), ROW_WORDS), np.int64)
        function, units, chunk, barrier, arguments = self.calls.T
        places = np.array([functions[name] for name in self.functions], np.int64)
        rows[:, 0] = places[function]
        rows[:, 1] = arguments_at + 8 * (np.cumsum(arguments) - arguments)
        rows[:, 2] = units
        shared = np.maximum(1, units // (threads * _CHUNKS_A_WORKER))
        most = np.where(chunk < 0, np.minimum(-chunk, shared), shared)
        rows[:, 3] = np.where(chunk > 0, chunk, most)
        rows[:, 4] = np.where(barrier, np.cumsum(units) - units, 0)
        return rows.reshape(-1)

    def symbols(self, number: int) -> list[str]:
        """Return the functions of an object, the first one's driver among them."""
        return [*self.objects[number][1], *(DRIVER if number == 0 else ())]


def table_of(
    objects: Sequence[tuple[bytes, tuple[str, ...]]],
    arena_bytes: int,
    calls: Sequence[Call],
    buffers: Sequence[str],
) -> ProgramTable:
    """Return the table of compiled calls; `buffers` are the caller's, in the order of their number.

    Raises: ValueError where the calls name what is not there.
    """
    names = {name: index for index, name in enumerate(dict.fromkeys(c.function for c in calls))}
    rows = [
        (names[call.function], call.units, call.chunk, int(call.barrier), len(call.arguments))
        for call in calls
    ]
    flat = [_place(address, buffers) for call in calls for address in call.arguments]
    return ProgramTable(
        tuple(objects), arena_bytes, tuple(names), tuple(buffers),
        np.array(rows, np.int64).reshape(-1, 5), np.array(flat, np.int64).reshape(-1, 2),
    )  # fmt: skip


def _place(address: Address, buffers: Sequence[str]) -> tuple[int, int]:
    if address.place == "arena":
        return _ARENA, address.offset
    if address.place != "input" or not 0 <= address.index < len(buffers):
        raise ValueError(f"an argument in `{address.place}`, number {address.index}")
    return address.index, address.offset
