"""A vendor's session in a worker: opened, run and ended, whatever the provider does to it.

Which values of an output were not written: they still are what was there before the run. Floats
begin as a NaN of a payload that no arithmetic makes, integers as a number of no meaning. That
number may be a result: what looks unwritten is asked for once more, with other values there
before, and what still looks so is not written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from vermilion.backends.base import Array, Tensors
from vermilion.backends.provider.contract import Closed, Opened, Request
from vermilion.errors import DeviceError, VermilionError
from vermilion.process.arrays import OpenTensor
from vermilion.process.child import LOG_FILE, Child, ChildError
from vermilion.process.log import last_words
from vermilion.process.worker import Message

WORKER = ("vermilion.backends.provider.worker",)

PROVIDER = "provider"  # what errors call the worker, unless told otherwise
_REPORT_IT = "report it to AMD with the model; `--target cpu` computes it meanwhile"
Said = TypeVar("Said")


@dataclass(frozen=True)
class Limits:
    """How long a child may take, in seconds."""

    compile_s: float
    load_s: float
    run_s: float


class ProviderProcess:
    """A worker with an open session. Not for several threads at once."""

    def __init__(
        self,
        request: Request,
        folder: Path,
        *,
        worker: Sequence[str] = WORKER,
        open_limit_s: float,
        run_limit_s: float,
        who: str = PROVIDER,
    ) -> None:
        """Start the worker on `folder`, where the model lies, and wait for its session.

        Raises: ChildError where it hangs, dies, or says that it cannot.
        """
        self._run_limit_s = run_limit_s
        self._started_by = os.getpid()
        self._who = who
        self._failed = ""
        self._turn = 0
        self.inputs: dict[str, OpenTensor] = {}
        self.outputs: dict[str, OpenTensor] = {}
        try:
            self.inputs |= {t.name: t.create(folder) for t in request.inputs}
            self.outputs |= {t.name: t.create(folder) for t in request.outputs}
            self._child = Child(
                (*worker, str(folder)), folder / LOG_FILE, who=who, scratch=folder, native=True
            )
        except OSError as error:
            self._let_go()
            raise no_room(error, folder) from error
        try:
            said = self._child.ask(
                "open", {"request": asdict(request)}, limit_s=open_limit_s, stage="opening"
            )
            self.opened = self._read("opening", Opened.of_message, said)
        except BaseException:  # nobody else has it yet
            self.stop()
            raise

    @property
    def process(self) -> int:
        """The worker's process id."""
        return self._child.process

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute the outputs.

        Raises: DeviceError where an output, or a part of one, is not written, and in a process that
        was forked; ChildError.
        """
        if self._failed:
            raise DeviceError(
                f"the process was ended before: {self._failed}",
                where=f"{self._who}, running",
                hint="open the model again",
            )
        with self._stopped_by_exceptions():
            # An exception may have left the run before, and the worker goes on with it.
            self._child.settle(self._run_limit_s)
            found = self._run_once(inputs)
            missing = self._missing(found)
            if any(not is_certain(found[name].dtype) for name in missing):
                found = self._run_once(inputs)
                missing = self._missing(found)
            if missing:
                words = "; ".join(f"output `{name}`: {what}" for name, what in missing.items())
                raise DeviceError(words, where=f"{self._who}, running", hint=_REPORT_IT)
        return found

    def close(self) -> Closed:
        """End the worker in order; return what it counted. Raises: ChildError."""
        with self._stopped_by_exceptions():
            said = self._child.ask("close", limit_s=self._run_limit_s, stage="closing")
            closed = self._read("closing", Closed.of_message, said)
        self.stop()
        return closed

    def stop(self) -> None:
        """End the worker, whatever it is doing."""
        self._failed = self._failed or "it was stopped"
        self._child.stop()
        self._let_go()

    def __enter__(self) -> Self:
        """Return itself: it is open already."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the worker."""
        self.stop()

    def _run_once(self, inputs: Tensors) -> dict[str, Array]:
        self._turn += 1
        try:
            for name, tensor in self.inputs.items():
                tensor.write(np.asarray(inputs[name]))
            for tensor in self.outputs.values():
                tensor.write(blank(tensor.dtype, tensor.shape, self._turn))
        except OSError as error:
            raise no_room(error, self._child.log.parent) from error
        self._child.ask("run", limit_s=self._run_limit_s, stage="running")
        found = {}
        for name, tensor in self.outputs.items():
            try:
                found[name] = tensor.read()
            except (OSError, EOFError) as error:
                raise DeviceError(
                    f"output `{name}`: its file was cut short or damaged: {error}",
                    where=f"{self._who}, running",
                    hint=_REPORT_IT,
                ) from error
        return found

    def _missing(self, found: Mapping[str, Array]) -> dict[str, str]:
        words = {name: unwritten(array, self._turn) for name, array in found.items()}
        return {name: what for name, what in words.items() if what}

    @contextmanager
    def _stopped_by_exceptions(self) -> Iterator[None]:
        """End the worker where it failed: what it would answer next is not to be trusted.

        What a caller's signal handler raised leaves it: the next run waits for it first.
        """
        try:
            yield
        except VermilionError as error:
            if os.getpid() == self._started_by:
                self._failed = error.message
                self.stop()
            raise

    def _read(self, stage: str, read: Callable[[Message], Said], said: Message) -> Said:
        try:
            return read(said)
        except ValueError as error:
            words = f"the process broke while {stage}: it answers nonsense: {error}"
            log = last_words(self._child.log)
            raise ChildError("crashed", words, who=self._who, stage=stage, log=log) from error

    def _let_go(self) -> None:
        for tensor in (*self.inputs.values(), *self.outputs.values()):
            tensor.close()
        self.inputs.clear()
        self.outputs.clear()


def no_room(error: OSError, folder: Path) -> DeviceError:
    """Return the error of a folder for temporary files in which there is no room."""
    return DeviceError(
        f"there is no room for the part's tensors and programs: {error.strerror or error}",
        where=str(folder),
        hint="make room, or name another folder for temporary files (`TMPDIR`)",
    )


_TURNS = 2
_FLOATS = {2: (0x7E95, 0x7F2A), 4: (0x7FCA5C31, 0x7FD1A3CE),
           8: (0x7FFCA5C3A5C31111, 0x7FFD1A3C5A3C2222)}  # fmt: skip
_INTEGERS = {1: (0xA6, 0x59), 2: (0xA6C5, 0x593A), 4: (0xA6C53D71, 0x593AC28E),
             8: (0xA6C53D71E94F0B27, 0x593AC28E16B0F4D8)}  # fmt: skip
# Numbers of fewer bytes are among the results by chance: a whole entry of the batch must look so.
_TELLING_BYTES = 4


def blank(dtype: np.dtype[Any], shape: tuple[int, ...], turn: int) -> Array:
    """Return what an output holds before a run; another one each `turn`."""
    bits = np.full(shape, _bits(dtype)[turn % _TURNS], np.dtype(f"u{dtype.itemsize}"))
    return bits.view(dtype)


def unwritten(found: Array, turn: int) -> str:
    """Say what of an output may not be written; empty where all is."""
    if not found.size:
        return ""
    bits = found.view(np.dtype(f"u{found.dtype.itemsize}"))
    looks = bits == _bits(found.dtype)[turn % _TURNS]
    if found.dtype.kind == "b":
        looks = bits > 1
    if looks.all():
        return "it is never written"
    if found.ndim and len(found) > 1:
        empty = np.flatnonzero(looks.reshape(len(found), -1).all(axis=1))
        if empty.size:
            return f"entry {empty[0]} of the batch of {len(found)} is never written"
    if found.dtype.kind in "fb" or found.dtype.itemsize >= _TELLING_BYTES:
        count = int(np.count_nonzero(looks))
        return f"{count} of its {found.size} values are never written" if count else ""
    return ""


def is_certain(dtype: np.dtype[Any]) -> bool:
    """Whether what looks unwritten is: nothing that is computed looks so."""
    return dtype.kind in "fb"


def _bits(dtype: np.dtype[Any]) -> tuple[int, int]:
    return (_FLOATS if dtype.kind == "f" else _INTEGERS)[dtype.itemsize]
