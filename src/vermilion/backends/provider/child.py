"""A vendor's session in a worker, what became of its outputs, and what its parts depend on.

A provider does not notice that a part was compiled by another version of itself, or for another
driver or device; it computes on.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

import numpy as np

from vermilion.backends.base import Array, Availability, Tensors
from vermilion.backends.provider.contract import Closed, Opened, Request
from vermilion.errors import ArtifactError, DeviceError
from vermilion.forks import renew_after_fork
from vermilion.hardware.targets.target import Target
from vermilion.process.child import LOG_FILE, Child, ChildError
from vermilion.process.worker import Message
from vermilion.proof.check import OutputCheck, check_output
from vermilion.proof.judge import Question, judge

WORKER = ("vermilion.backends.provider.worker",)

PROVIDER = "provider"  # what errors call the worker, unless told otherwise
_MAX_LOG_CHARACTERS = 1 << 16


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
        self.inputs = {t.name: t.create(folder) for t in request.inputs}
        self.outputs = {t.name: t.create(folder) for t in request.outputs}
        self._child = Child((*worker, str(folder)), folder / LOG_FILE, who=who, scratch=folder)
        said = self._ask("open", "opening", open_limit_s, {"request": asdict(request)})
        self.opened = Opened(
            providers=tuple(str(name) for name in said["providers"]),
            assigned={str(k): int(v) for k, v in said["assigned"].items()},
        )

    @property
    def process(self) -> int:
        """The worker's process id."""
        return self._child.process

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute the outputs. They begin as `unwritten`, so that what is not written shows.

        Raises: ChildError; DeviceError in a process that was forked.
        """
        # An exception may have left the run before, and the worker goes on with it.
        self._child.settle(self._run_limit_s)
        for name, mapped in self.inputs.items():
            mapped[...] = inputs[name]
        for mapped in self.outputs.values():
            mapped[...] = unwritten(mapped.dtype)
        self._ask("run", "running", self._run_limit_s)
        return {name: mapped.copy() for name, mapped in self.outputs.items()}

    def close(self) -> Closed:
        """End the worker in order; return what it counted. Raises: ChildError."""
        said = self._ask("close", "closing", self._run_limit_s)
        self.stop()
        return Closed({str(k): int(v) for k, v in said["events"].items()})

    def stop(self) -> None:
        """End the worker, whatever it is doing."""
        self._child.stop()
        self.inputs.clear()
        self.outputs.clear()

    def __enter__(self) -> Self:
        """Return itself: it is open already."""
        return self

    def __exit__(self, *error: object) -> None:
        """End the worker."""
        self.stop()

    def _ask(
        self, do: str, stage: str, limit_s: float, details: Mapping[str, Any] | None = None
    ) -> Message:
        try:
            return self._child.ask(do, details, limit_s=limit_s, stage=stage)
        except ChildError:
            self.stop()
            raise


class Loaded:
    """A worker with an open session; one run at a time."""

    def __init__(self, process: ProviderProcess, runs_on: str, stays: ExitStack) -> None:
        """Take the worker, and what is to be undone when nobody holds this any more."""
        self._process = process
        self._lock = threading.Lock()
        self._runs_on = runs_on
        # The worker must not outlive whoever runs it.
        self._end = weakref.finalize(self, _end, stays, os.getpid())
        renew_after_fork(self)

    @property
    def runs_on(self) -> str:
        """Say where it runs."""
        return self._runs_on

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute every output. Raises: ChildError."""
        with self._lock:
            return self._process.run(inputs)

    def after_fork(self) -> None:
        """Renew the lock in a forked process, where a run is refused: whoever held it is gone."""
        self._lock = threading.Lock()


def work_folder(stays: ExitStack) -> Path:
    """Make a folder that goes when the stack is closed, and not when a forked process ends."""
    folder = Path(tempfile.mkdtemp(prefix="vermilion-"))
    stays.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def keep_log(log: Path, place: Path) -> None:
    """Keep a log's end: a compiler that fails prints its whole program."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    place.write_text(text[-_MAX_LOG_CHARACTERS:], encoding="utf-8")


def unwritten(dtype: np.dtype[Any]) -> Any:
    """Return the value that outputs hold before a run: NaN, or the lowest number of the type."""
    if dtype.kind == "f":
        return np.nan
    return False if dtype.kind == "b" else np.iinfo(dtype).min


def _end(stays: ExitStack, opened_in: int) -> None:
    # A forked process has a copy of this, and the worker is not its to end.
    if os.getpid() == opened_in:
        stays.close()


FaultKind = Literal["unwritten", "nan", "wrong-entry", "wrong"]


@dataclass(frozen=True)
class Fault:
    """What is wrong with one output. `entry` is the place in the batch, None where it is all."""

    kind: FaultKind
    output: str
    words: str
    entry: int | None = None


def find_faults(question: Question, *, batch: int | None) -> list[Fault]:
    """Return what is wrong with the outputs that the judge does not accept.

    What was found began as what `unwritten` gives. Where outputs have a leading `batch`, an output
    that is never written for some entries is one however small the others make the difference.
    """
    answer = judge(question)
    wrong = {check.name: check for check in answer.wrong}
    found = []
    for name, expected in question.expected.items():
        check = wrong.get(name)
        fault = _fault(name, expected, question.found[name], check, question, batch)
        if fault is not None:
            found.append(fault)
    return found


def _fault(
    name: str,
    expected: Array,
    found: Array,
    check: OutputCheck | None,
    question: Question,
    batch: int | None,
) -> Fault | None:
    has_batch = batch is not None and batch > 1 and expected.ndim > 0 and len(expected) == batch
    entries = list(range(len(expected))) if has_batch and found.shape == expected.shape else []
    missing = [e for e in entries if _is_unwritten(expected[e], found[e])]
    if missing and len(missing) < len(entries):
        words = f"entry {missing[0]} of the batch of {batch} is never written"
        return Fault("unwritten", name, words, missing[0])
    if _is_unwritten(expected, found):
        return Fault("unwritten", name, "it is never written")
    if check is None:
        return None
    if found.dtype.kind == "f" and found.shape == expected.shape:
        strange = np.isnan(found) & ~np.isnan(expected)
        if strange.any():
            entry = int(np.argwhere(strange)[0][0]) if entries else None
            share = float(strange.mean())
            words = f"{share:.1%} of its values are NaN where the CPU's are numbers"
            return Fault("nan", name, words, entry)
    apart = [
        e for e in entries
        if not check_output(name, expected[e], found[e], question.form).passed
    ]  # fmt: skip
    if apart and len(apart) < len(entries):
        words = f"entry {apart[0]} of the batch of {batch} is wrong, the others are right"
        return Fault("wrong-entry", name, words, apart[0])
    return Fault("wrong", name, str(check))


def _is_unwritten(expected: Array, found: Array) -> bool:
    if found.size == 0 or found.dtype.kind == "b":
        return False
    if found.dtype.kind == "f":
        return bool(np.isnan(found).all() and not np.isnan(expected).all())
    blank = unwritten(found.dtype)
    return bool((found == blank).all() and not (expected == blank).all())


@dataclass(frozen=True)
class Limits:
    """How long a child may take, in seconds."""

    compile_s: float
    load_s: float
    run_s: float


class Stack(Protocol):
    """Everything below a compiled part that can make it stale."""

    def as_details(self) -> dict[str, str]:
        """Return what is kept with a compiled part and compared when it is loaded."""


Found = TypeVar("Found", bound=Stack)


class Stacks(Generic[Found]):
    """The stacks of this machine, by target; each is looked for when it is first asked for.

    `words` says for people what each of the details is.
    """

    def __init__(
        self, find: Callable[[Target], Found | Availability], words: Mapping[str, str]
    ) -> None:
        self._find = find
        self._words = words
        self._found: dict[str, Found | Availability] = {}

    def available(self, target: Target) -> Availability:
        """Say whether there is one; the reason where there is not."""
        stack = self._stack(target)
        return stack if isinstance(stack, Availability) else Availability(usable=True)

    def versions(self, target: Target) -> Mapping[str, str]:
        """Return what a compiled part depends on; empty where nothing is here."""
        stack = self._stack(target)
        return {} if isinstance(stack, Availability) else stack.as_details()

    def needed(self, target: Target) -> Found:
        """Return the stack. Raises: DeviceError with the reason where there is none."""
        stack = self._stack(target)
        if isinstance(stack, Availability):
            raise DeviceError(stack.reason, where=target.name, hint=stack.hint)
        return stack

    def same(self, target: Target, details: Mapping[str, str]) -> Found:
        """Return the stack that a part with these `details` was compiled with.

        Raises: ArtifactError where it has changed; DeviceError where it is gone.
        """
        stack = self.needed(target)
        changed = differences(self._words, details, stack.as_details())
        if changed:
            raise ArtifactError(
                f"the part was compiled for another machine: {'; '.join(changed)}",
                hint="compile the model again: the provider itself would not notice",
            )
        return stack

    def _stack(self, target: Target) -> Found | Availability:
        if target.name not in self._found:
            self._found[target.name] = self._find(target)
        return self._found[target.name]


def differences(
    words: Mapping[str, str], then: Mapping[str, str], now: Mapping[str, str]
) -> list[str]:
    """Say what has changed since a part was compiled, of all that has a word."""
    return [
        f"{word} was {then[key] or 'unknown'} and is {now.get(key) or 'unknown'}"
        for key, word in words.items()
        if key in then and then[key] != now.get(key, "")
    ]
