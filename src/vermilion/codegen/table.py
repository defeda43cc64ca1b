"""A compiled program as tables: what loading it needs, and nothing of how it was made.

And where the native driver and its caller keep what they share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from vermilion.codegen.tensor import Storage


# One cache line each: the generation, and whether the workers are to end; then what each worker has
# finished; then, for each step, a counter for each worker's share.
CONTEXT_LINE_BYTES = 64
CLOSING = 8
GENERATION, FINISHED = (line * CONTEXT_LINE_BYTES for line in range(2))
ROW_WORDS = 5

RUN, WAIT, SERVE = "vermilion_run", "vermilion_wait", "vermilion_serve"
DRIVER = (RUN, WAIT, SERVE)


def context_bytes(steps: int, workers: int) -> int:
    """Return the size of what the workers of one program share."""
    return FINISHED + (1 + steps) * workers * CONTEXT_LINE_BYTES


# Chunks of a step for each worker: enough that the last does not keep the others waiting.
_CHUNKS_A_WORKER = 4
ARENA, SIZE = -1, -2


@dataclass(frozen=True)
class Address:
    """Where an argument points: arena, weights, or input or output number `index`."""

    place: str
    offset: int
    index: int = 0


@dataclass(frozen=True)
class Call:
    """One row of the step table."""

    function: str
    arguments: tuple[Address, ...]
    units: int
    chunk: int
    barrier: bool
    label: str
    operations: int


@dataclass(frozen=True)
class Check:
    """Words that are 0 after a run, unless what `where` names was given a wrong number.

    `offset` and `count` are in words. The number is an index of a dimension of `size`; where that
    is 0, it says that something was divided by 0.
    """

    offset: int
    count: int
    where: str
    size: int

    def complaint(self, word: int) -> str:
        """Say what was wrong, in ONNX Runtime's words."""
        if not self.size:
            return "Integer division by zero"
        return (
            f"indices element out of data bounds, idx={word} must be within the inclusive range "
            f"[{-self.size},{self.size - 1}]"
        )


@dataclass(frozen=True)
class ObjectCode:
    """One object file and the kernels in it."""

    data: bytes
    functions: tuple[str, ...]


@dataclass(frozen=True)
class StepTensor:
    """A tensor that a program keeps in memory, whole after call number `after`.

    Units: `address.offset` in bytes, `strides` in elements.
    """

    name: str
    after: int
    address: Address
    storage: Storage
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ProgramTable:
    """Objects with their functions, and the calls of one run.

    Shapes: calls (n, 5), each the number of its function, its units, how many a worker takes at a
    time (0: as many as fit their number; -n: that, and n at most), whether a barrier is before it,
    and its arguments; addresses (m, 2), each argument's buffer of the caller, -1 for the arena, and
    the bytes from its start, or -2 and a size that the call is given. Other tables of the same code
    may have up to `most_calls`, where that is more than `calls` are.
    """

    objects: tuple[ObjectCode, ...]
    arena_bytes: int
    functions: tuple[str, ...]
    buffers: tuple[str, ...]
    calls: NDArray[np.int64]
    addresses: NDArray[np.int64]
    most_calls: int = 0

    def about(self) -> dict[str, object]:
        """Return what is said of it beside the objects' bytes and the two arrays."""
        return {
            "arena_bytes": self.arena_bytes,
            "functions": list(self.functions),
            "buffers": list(self.buffers),
            "objects": [list(code.functions) for code in self.objects],
        }

    @staticmethod
    def of(
        about: Mapping[str, Any],
        objects: Sequence[bytes],
        calls: NDArray[np.int64],
        addresses: NDArray[np.int64],
    ) -> ProgramTable:
        """Return the table that gave this `about`."""
        codes = (
            ObjectCode(data, tuple(names))
            for data, names in zip(objects, about["objects"], strict=True)
        )
        functions, buffers = (tuple(about[kind]) for kind in ("functions", "buffers"))
        arena_bytes = int(about["arena_bytes"])
        return ProgramTable(tuple(codes), arena_bytes, functions, buffers, calls, addresses)

    def rows(
        self, functions: Mapping[str, int], arguments_at: int, threads: int
    ) -> NDArray[np.int64]:
        """Return the step table, for functions and arguments where they lie in memory.

        Calls that other tables have more are rows without units, with what the first one needs.
        """
        count = len(self.calls)
        whole = np.zeros((max(count, self.most_calls), ROW_WORDS), np.int64)
        rows = whole[:count]
        function, units, chunk, barrier, arguments = self.calls.T
        places = np.array([functions[name] for name in self.functions], np.int64)
        rows[:, 0] = places[function]
        rows[:, 1] = arguments_at + 8 * (np.cumsum(arguments) - arguments)
        rows[:, 2] = units
        shared = np.maximum(1, units // (threads * _CHUNKS_A_WORKER))
        most = np.where(chunk < 0, np.minimum(-chunk, shared), shared)
        rows[:, 3] = np.where(chunk > 0, chunk, most)
        rows[:, 4] = np.where(barrier, np.cumsum(units) - units, 0)
        whole[count:, :2] = rows[0, :2] if count else (places[0], arguments_at)
        return whole.reshape(-1)

    def symbols(self, number: int) -> list[str]:
        """Return the functions of an object, the first one's driver among them."""
        return [*self.objects[number].functions, *(DRIVER if number == 0 else ())]

    def arguments_of(self) -> dict[str, list[tuple[int, int]]]:
        """Return the arguments in each buffer of the caller's, by its name.

        Each is its number, and the bytes from the buffer's start.
        """
        found = {}
        for number, name in enumerate(self.buffers):
            (arguments,) = np.nonzero(self.addresses[:, 0] == number)
            offsets = self.addresses[arguments, 1]
            found[name] = list(zip(arguments.tolist(), offsets.tolist(), strict=True))
        return found


def table_of(
    objects: Sequence[ObjectCode],
    arena_bytes: int,
    calls: Sequence[Call],
    buffers: Mapping[tuple[str, int], str],
) -> ProgramTable:
    """Return the table of compiled calls; `buffers` are the caller's names by place and index.

    Raises: ValueError where the calls name what is not there.
    """
    names = {name: index for index, name in enumerate(dict.fromkeys(c.function for c in calls))}
    numbers = {place: number for number, place in enumerate(buffers)} | {("arena", 0): ARENA}
    rows = [
        (names[call.function], call.units, call.chunk, int(call.barrier), len(call.arguments))
        for call in calls
    ]
    try:
        flat = [(numbers[a.place, a.index], a.offset) for call in calls for a in call.arguments]
    except KeyError as error:
        raise ValueError(f"an argument in {error}, which is no buffer") from error
    return ProgramTable(
        tuple(objects), arena_bytes, tuple(names), tuple(buffers.values()),
        np.array(rows, np.int64).reshape(-1, 5), np.array(flat, np.int64).reshape(-1, 2),
    )  # fmt: skip
