"""Loaded parts in machine code: for fixed sizes, and for one entry of a batch of any."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from vermilion.backends.base import Array, Tensors
from vermilion.codegen.load import KERNEL, LoadedProgram, call_kernel
from vermilion.codegen.table import Call, Check, StepTensor
from vermilion.codegen.watch import NUMPY, StepWatcher, affordable, calls_of
from vermilion.codegen.workers import HEAP, Memory
from vermilion.errors import OtherSizesError, UnsupportedError
from vermilion.forks import renew_after_fork

if TYPE_CHECKING:
    from vermilion.codegen.profile import StepTimer


# What numpy's own arrays are aligned to, and kernels may count on.
_ALIGNED_BYTES = 16


@dataclass(frozen=True)
class _Port:
    """An input or output: what the caller sees, and the program's name for it."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    buffer: str


class NativeExecutable:
    """A loaded part. Calls from several threads take turns."""

    def __init__(
        self,
        table: Mapping[str, Any],
        once: Sequence[Call],
        calls: Sequence[Call],
        program: LoadedProgram,
        packed: Array,
        memory: Memory = HEAP,
    ) -> None:
        """Point a program to its weights; make the calls that are made once: borders."""
        self._empty = memory.empty
        self._cpu = str(table["llvm_cpu"])
        self._turn = threading.Lock()
        self._checks = [Check(**row) for row in table["checks"]]
        self._words = memory.aligned(table["entries"] * words_of(table) * 8).view(np.int64)
        # Compared as bytes in a tenth of the time that asking an array takes.
        self._words_seen, self._words_right = memoryview(self._words), bytes(self._words.nbytes)  # type: ignore[arg-type]
        self._inputs, self._outputs = (_ports(table, place) for place in ("input", "output"))
        self.entries = int(table["entries"])  # of a batch, computed one after the other
        self._calls, self._program = calls, program
        bases = {
            "arena": program.arena.ctypes.data,
            "weights": packed.ctypes.data,
            "checks": self._words.ctypes.data,
        }
        for place in ("weights", "checks"):
            program.point(place, bases[place])
        for call in once:
            at = [bases[address.place] + address.offset for address in call.arguments]
            call_kernel(KERNEL(program.functions[call.function]), at, call.units)
        renew_after_fork(self)

    @property
    def runs_on(self) -> str:
        """Say where it runs."""
        workers = self._program.workers
        return f"CPU (native code for {self._cpu}, {workers} thread{'s' * (workers != 1)})"

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute every output of the part from all its inputs."""
        return self._computed(inputs, self._program.run)

    def run_into(self, inputs: Tensors, places: Tensors) -> dict[str, Array]:
        """Compute the same, outputs into `places` where these fit."""
        return self._computed(inputs, self._program.run, places)

    def step_timer(self) -> StepTimer:
        """Return what runs this part step by step; it belongs to this part alone."""
        from vermilion.codegen.profile import StepTimer

        return StepTimer(self._program, self._calls, self._program.workers)

    def run_timed(self, inputs: Tensors, timer: StepTimer) -> dict[str, Array]:
        """Compute the same step by step; the timer that this part gave has the rest."""
        return self._computed(inputs, timer.run)

    def run_watched(
        self, inputs: Tensors, tensors: Sequence[StepTensor], most_bytes: int
    ) -> tuple[dict[str, Array], dict[str, list[Array]]]:
        """Compute the same call by call; return the outputs and copies of the inner `tensors`.

        There is a copy for each entry of a batch that is computed entry by entry.
        """
        entries = self._entries_given(inputs)
        calls = calls_of(self._program, self._calls)
        chosen = affordable(tensors, entries, most_bytes)
        watcher = StepWatcher(self._program, calls, self.entries, chosen)
        return self._computed(inputs, watcher.run), watcher.copies

    def _entries_given(self, inputs: Tensors) -> int:
        """Return how many entries these inputs have, of those computed one after the other."""
        return self.entries

    def _computed(
        self, inputs: Tensors, run: Callable[[], None], places: Tensors | None = None
    ) -> dict[str, Array]:
        held = [self._held(port, inputs[port.name]) for port in self._inputs]
        results = {
            port.name: self._result(port, port.shape, places, held) for port in self._outputs
        }
        with self._turn:
            for port, array in zip(self._inputs, held, strict=True):
                self._program.point(port.buffer, _address(array))
            for port in self._outputs:
                self._program.point(port.buffer, _address(results[port.name]))
            run()  # when it is left, by an exception even, no worker touches these arrays
            if self._checks and self._words_seen.tobytes() != self._words_right:
                self._complain()
        return results

    def _result(
        self, port: _Port, shape: tuple[int, ...], places: Tensors | None, held: Sequence[Array]
    ) -> Array:
        """Return what an output is written to: its place, if that fits and is no input's memory."""
        place = None if places is None else places.get(port.name)
        if place is not None and fits(place, shape, port.dtype, held):
            return place
        return self._empty(shape, port.dtype)

    def _held(self, port: _Port, array: Array) -> Array:
        """Return an input as the kernels read it, and nothing that is shorter than they read."""
        if array.shape != port.shape:
            raise UnsupportedError(
                f"`{port.name}` has the shape {list(array.shape)}, this part was compiled for "
                f"{list(port.shape)}",
                hint="the model declares a shape that the part before does not give: fix that",
            )
        return np.ascontiguousarray(array, port.dtype)

    def _complain(self) -> None:
        """Raise the error that the first wrong number of a run deserves."""
        rows = self._words.reshape(-1, sum(check.count for check in self._checks))
        for check in self._checks:
            words = rows[:, check.offset : check.offset + check.count]
            if words.any():
                raise UnsupportedError(
                    f"running the model failed: {check.complaint(int(words[words != 0][0]))}",
                    where=check.where,
                    hint="what the node got does not fit it: check the model and its inputs",
                )

    def after_fork(self) -> None:
        """Renew the lock in a forked process: whoever had a turn is not there."""
        self._turn = threading.Lock()


class BatchExecutable(NativeExecutable):
    """A loaded part for one entry of a batch, run for as many as come."""

    def _computed(
        self, inputs: Tensors, run: Callable[[], None], places: Tensors | None = None
    ) -> dict[str, Array]:
        held = [np.asarray(inputs[port.name], port.dtype, order="C") for port in self._inputs]
        entries = self._entries_of(held)
        results = {
            port.name: self._result(port, (entries, *port.shape[1:]), places, held)
            for port in self._outputs
        }
        ports = [*zip(self._inputs, held, strict=True)]
        ports += [(port, results[port.name]) for port in self._outputs]
        at = [(port.buffer, _address(array), array.nbytes // entries) for port, array in ports]
        with self._turn:
            for entry in range(entries):
                for buffer, address, size in at:
                    self._program.point(buffer, address + entry * size)
                run()
                if self._checks and self._words_seen.tobytes() != self._words_right:
                    self._complain()
        return results

    def _entries_given(self, inputs: Tensors) -> int:
        return self._entries_of([np.asarray(inputs[port.name]) for port in self._inputs])

    def _entries_of(self, held: Sequence[Array]) -> int:
        entries = {array.shape[0] if array.ndim else 0 for array in held}
        for port, array in zip(self._inputs, held, strict=True):
            if array.shape[1:] != port.shape[1:] or len(entries) > 1 or 0 in entries:
                raise OtherSizesError(
                    f"`{port.name}` has the shape {list(array.shape)}, this part was compiled for "
                    f"entries of {list(port.shape[1:])}, as many of each input",
                    hint="give every input the same batch, of 1 or more",
                )
        return entries.pop()


def fits(place: Array, shape: tuple[int, ...], dtype: np.dtype[Any], held: Sequence[Array]) -> bool:
    """Say whether a result can be written to an array of the caller's, inputs lying in `held`."""
    return (
        (place.shape, place.dtype) == (shape, dtype)
        and place.flags.c_contiguous
        and place.flags.writeable
        and _address(place) % _ALIGNED_BYTES == 0
        and not any(np.may_share_memory(place, array) for array in held)
    )


def _ports(table: Mapping[str, Any], place: str) -> list[_Port]:
    return [
        _Port(row["name"], NUMPY[row["storage"]], tuple(row["shape"]), f"{place} {index}")
        for index, row in enumerate(table[f"{place}s"])
    ]


def _address(array: Array) -> int:
    """Return where an array lies; asking `ctypes` takes a microsecond."""
    address: int = array.__array_interface__["data"][0]
    return address


def words_of(table: Mapping[str, Any]) -> int:
    """Return how many words a run of one entry writes for its checks."""
    return sum(int(row["count"]) for row in table["checks"])
