"""Copies of inner tensors of a program, taken while it runs call by call on one thread."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.load import KERNEL, LoadedProgram
from vermilion.codegen.table import Address, Call, ProgramTable, StepTensor
from vermilion.codegen.tensor import Storage
from vermilion.ir.formula import computed

Array = NDArray[Any]

NUMPY: Mapping[Storage, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "u8": np.dtype(np.uint8),
    "s8": np.dtype(np.int8),
    "u16": np.dtype(np.uint16),
    "s16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
}


@dataclass(frozen=True)
class OpenTensor:
    """A tensor of a program for any sizes; what is a number here is that of a formula.

    `writers` are the calls that write it, of which a run may leave out some; `buffer` is its buffer
    of the arena, `offset` in bytes from there, `strides` in elements.
    """

    name: str
    writers: tuple[int, ...]
    buffer: int
    offset: int
    storage: Storage
    shape: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True)
class OpenTensors:
    """The inner tensors of a program for any sizes, with the formulas of all their numbers."""

    tensors: tuple[OpenTensor, ...] = ()
    formulas: list[list[Any]] = field(default_factory=list)

    def at(
        self, sizes: Mapping[str, int], calls: Sequence[int], places: Sequence[int]
    ) -> list[StepTensor]:
        """Return the tensors of a run: `calls` are those it makes, `places` those of its buffers.

        A tensor that no call of this run writes is left out.
        """
        numbers = computed(self.formulas, sizes)
        row_of = {call: row for row, call in enumerate(calls)}
        found = []
        for tensor in self.tensors:
            rows = [row_of[call] for call in tensor.writers if call in row_of]
            if not rows:
                continue
            shape, strides = (
                tuple(numbers[at] for at in sizes) for sizes in (tensor.shape, tensor.strides)
            )
            address = Address("arena", places[tensor.buffer] + numbers[tensor.offset])
            found.append(
                StepTensor(tensor.name, max(rows), address, tensor.storage, shape, strides)
            )
        return found


@dataclass(frozen=True)
class WatchedCall:
    """A row of a step table, run in one thread."""

    function: int  # its address
    units: int
    arguments: int


def calls_of(program: LoadedProgram, calls: Sequence[Call]) -> list[WatchedCall]:
    """Return the rows of a program for fixed sizes."""
    return [
        WatchedCall(program.functions[call.function], call.units, len(call.arguments))
        for call in calls
    ]


def calls_of_table(program: LoadedProgram, table: ProgramTable) -> list[WatchedCall]:
    """Return the rows of a table that a program was given for its sizes."""
    function, units, _, _, arguments = table.calls.T.tolist()
    return [
        WatchedCall(program.functions[table.functions[number]], count, given)
        for number, count, given in zip(function, units, arguments, strict=True)
    ]


def affordable(tensors: Sequence[StepTensor], entries: int, most_bytes: int) -> list[StepTensor]:
    """Return the tensors whose copies fit, in the order in which they are computed.

    Each is there `entries` times, and in the literal run as large again.
    """
    chosen: list[StepTensor] = []
    total = 0
    for tensor in sorted(tensors, key=lambda one: one.after):
        total += 8 * entries * math.prod(tensor.shape)
        if total > most_bytes:
            break
        chosen.append(tensor)
    return chosen


class StepWatcher:
    """Runs a step table call by call and copies the tensors that it is given.

    Of a batch that is computed entry by entry, `tensors` are those of one entry, and `copies` has
    an array for each. A watcher is for the runs of one batch.
    """

    def __init__(
        self,
        program: LoadedProgram,
        calls: Sequence[WatchedCall],
        entries: int,
        tensors: Sequence[StepTensor],
    ) -> None:
        self._kernels = [KERNEL(call.function) for call in calls]
        self._calls = calls
        self._arguments = program.arguments
        self._arena = program.arena
        self._per_entry = len(calls) // entries
        self._due: dict[int, list[StepTensor]] = {}
        for tensor in tensors:
            if tensor.address.place == "arena":  # a caller has the outputs
                self._due.setdefault(tensor.after, []).append(tensor)
        self.copies: dict[str, list[Array]] = {
            t.name: [] for due in self._due.values() for t in due
        }

    def run(self) -> None:
        """Run all calls once, in order."""
        at = self._arguments.ctypes.data
        for number, (kernel, call) in enumerate(zip(self._kernels, self._calls, strict=True)):
            kernel(at, 0, call.units)
            at += 8 * call.arguments
            for tensor in self._due.get(number % self._per_entry, ()):
                self.copies[tensor.name].append(self._copy_of(tensor))

    def _copy_of(self, tensor: StepTensor) -> Array:
        dtype = NUMPY[tensor.storage]
        strides = tuple(stride * dtype.itemsize for stride in tensor.strides)
        view: Array = np.ndarray(
            tensor.shape, dtype, self._arena, tensor.address.offset, strides
        )  # fmt: skip
        return view.copy()
