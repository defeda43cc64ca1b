"""The process that runs what may loop, grow or crash: as the literal run sees it, and its own side.

One a process, started when the first model needs it. Not thrown away after a model: a start costs
half a second. When it is killed (time, memory) or dies, the next order starts another.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from vermilion.errors import UnsupportedError, VermilionError
from vermilion.ir.infer_here import infer_here
from vermilion.ir.limits import Limits, MemoryBoundError, TimeLimitError
from vermilion.ir.literal.engine import (
    BehindError,
    Engine,
    Stored,
    check_interpreted,
    open_interpreter,
    open_onnx_runtime,
    open_optimized,
)
from vermilion.process.arrays import TooLargeError, dtype_of, read_values, write_values
from vermilion.process.child import LOG_FILE, Child, ChildError, Watch
from vermilion.process.log import shorten_log
from vermilion.process.worker import bound_memory

Array = Any
Order = dict[str, Any]
Waiting = Callable[[float], None]

_WORKER = "vermilion.ir.literal.child"

# A process that nobody has asked for this long ends: a session of a notebook may stand for days.
_IDLE_S = 300.0
# A start takes half a second; this is for a loaded machine.
_START_S = 60.0
# The worker ends a run by itself when the time is up, if the engine lets it.
_GRACE_S = 1.0


class CrashError(UnsupportedError):
    """The engine ended the child's process on this model."""


class LiteralProcess:
    """A worker that obeys one order at a time, and a folder for what crosses."""

    def __init__(self) -> None:
        """Make the folder; the process starts with the first order."""
        self.folder = Path(tempfile.mkdtemp(prefix="vermilion-literal-"))
        self.starts = 0
        self._running: list[Child] = []  # one or none; a list, for the finalizer
        self.lock = threading.RLock()
        self.to_forget: deque[int] = deque()
        self._finalizer = weakref.finalize(self, _end, self._running, self.folder)

    def obey(self, order: Order, limits: Limits, waiting: Waiting) -> dict[str, Any]:
        """Hand an order over and wait for the answer; `waiting` is told how long it has been.

        Raises: TimeLimitError, MemoryBoundError, CrashError, or what the engine found wrong.
        """
        with self.lock:
            shorten_log(self.folder / LOG_FILE)
            try:
                return self._started().ask(
                    "obey",
                    {"order": order},
                    limit_s=limits.seconds + _GRACE_S,
                    watch=Watch(limits.memory_bytes, waiting),
                )
            except ChildError as error:
                raise _explained(error, limits) from None
            except BaseException:
                # Whatever ended the wait, Ctrl-C too: nobody knows what the worker is doing.
                self.stop()
                raise

    @property
    def process(self) -> int | None:
        """The process id, None while there is none."""
        return self._running[0].process if self._running else None

    def forgotten(self) -> list[int]:
        """Return the models that nobody holds any more since this was last asked.

        They are noted from finalizers, which may run at any time, hence not under the lock.
        """
        found = []
        while self.to_forget:
            found.append(self.to_forget.popleft())
        return found

    def stop(self) -> None:
        """End the process, whatever it is doing. The next order starts another."""
        with self.lock:
            _stop(self._running)

    def abandon(self) -> None:
        """Forget the process without ending it: it belongs to the one that this was forked from."""
        self._finalizer.detach()
        self._running.clear()

    def _started(self) -> Child:
        """Return a worker that answers: the last may have ended, of itself or by somebody's hand.

        Raises: CrashError where none starts.
        """
        for running in self._running:
            try:
                running.ping(_START_S)
            except ChildError:
                break
            return running
        self.stop()
        self.folder.mkdir(mode=0o700, exist_ok=True)  # a worker that ends by itself removes it
        child = Child(
            (_WORKER, str(self.folder)),
            self.folder / LOG_FILE,
            who="the literal run",
            scratch=self.folder,
            idle_s=_IDLE_S,
        )
        self._running.append(child)
        self.starts += 1
        try:
            child.ping(_START_S)
        except ChildError as error:
            self.stop()
            raise CrashError(
                f"the process that runs models with loops did not start: {error.message}",
                where=_WORKER,
                hint=error.hint,
            ) from None
        return child


def _explained(error: ChildError, limits: Limits) -> VermilionError:
    """Say of the model what became of the process that ran it."""
    if error.raised is not None:
        return error.raised
    if error.kind == "hung":
        return TimeLimitError(limits.seconds)
    if error.kind == "grown":
        return no_memory(limits.memory_bytes)
    if not error.ended:
        return CrashError("ONNX Runtime broke the process that ran this model")
    return CrashError(
        f"ONNX Runtime crashed ({error.ended}) on this model",
        hint="export the model again; if it is sound, report it to ONNX Runtime",
    )


def no_memory(most_bytes: int, place: str = "") -> MemoryBoundError:
    """Return the error of a model that needs more memory than it may have."""
    return MemoryBoundError(
        f"its values need more than {most_bytes / 1e9:,.1f} GB at one time",
        where=place,
        hint="bind smaller sizes with `--dim`; if they are fixed in the file, do not trust it",
    )


def _stop(running: list[Child]) -> None:
    while running:
        running.pop().stop()


def _end(running: list[Child], folder: Path) -> None:
    _stop(running)
    shutil.rmtree(folder, ignore_errors=True)


_current: deque[LiteralProcess] = deque(maxlen=1)
_making = threading.Lock()


def the_child() -> LiteralProcess:
    """Return this process's child."""
    with _making:
        if not _current:
            _current.append(LiteralProcess())
        return _current[0]


def _forked() -> None:
    """In a process that was forked off: the child is not ours, and our lock may be held."""
    global _making
    _making = threading.Lock()
    for child in _current:
        child.abandon()
    _current.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


# How what is out of memory says so: libstdc++, ONNX Runtime's allocators, numpy.
_NO_MEMORY = re.compile(r"bad.?alloc|allocate memory|MemoryError|Unable to allocate", re.IGNORECASE)


class Worker:
    """The models that are open in this process."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._models: dict[int, Engine] = {}

    def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Open the model of an order, unless it is open, and run it if it has inputs.

        Raises: MemoryBoundError where it needs more than it may have; what the engine finds wrong.
        """
        for number in order["forget"]:
            self._models.pop(number, None)
        try:
            return self._obeyed(order)
        except VermilionError as error:
            if _NO_MEMORY.search(error.message):
                raise no_memory(order["memory_bytes"], error.where) from error
            raise
        except (MemoryError, TooLargeError) as error:
            raise no_memory(order["memory_bytes"]) from error
        except Exception as error:  # whatever the model made a library raise
            words = f"{type(error).__name__}: {error}"
            if _NO_MEMORY.search(words):
                raise no_memory(order["memory_bytes"]) from error
            raise UnsupportedError(words) from error

    def _obeyed(self, order: dict[str, Any]) -> dict[str, Any]:
        memory_bytes = int(order["memory_bytes"])
        bound_memory(memory_bytes)
        if "infer" in order:
            given, found = self._folder / order["infer"], self._folder / order["inferred"]
            _infer(given, found, follow=order["follow"], strict=order["strict"])
            return {}
        number = int(order["model"])
        engine = self._models.get(number)
        if engine is None:
            engine = self._models[number] = _open(order, self._folder)
        answer: dict[str, Any] = {
            "engine": engine.name,
            "described": [[found.name, found.type, found.shape] for found in engine.outputs],
        }
        if order["inputs"] is not None:
            inputs = read_values(order["inputs"], self._folder / order["in_file"])
            found = engine.run(inputs, order["outputs"])
            out_file = self._folder / order["out_file"]
            answer["outputs"] = write_values(found, out_file, memory_bytes // 2)
            answer["engine"] = engine.name  # another one may have had to run it
        return answer


def _open(order: dict[str, Any], folder: Path) -> Engine:
    proto = onnx.ModelProto.FromString((folder / order["model_file"]).read_bytes())
    weights = read_values(order["weights"], folder / order["weights_file"], mapped=True)
    for name, row in order["mapped"].items():
        weights[name] = _mapped(row)
    stored = Stored(proto, weights, order["folder"], _whole(proto, weights, order["folder"]))
    limits = Limits(order["seconds"], order["seconds"], order["memory_bytes"])
    if not order["ort"]:
        return open_interpreter(stored)
    if order["optimize"]:
        return open_optimized(stored, limits)
    try:
        return open_onnx_runtime(stored, limits)
    except BehindError as behind:
        check_interpreted(stored.whole(), behind)
        return open_interpreter(stored)


def _infer(given: Path, found: Path, *, follow: bool, strict: bool) -> None:
    """Infer the shapes of a file's model into another file (`onnx_shapes`)."""
    model = onnx.ModelProto.FromString(given.read_bytes())
    inferred = infer_here(model, follow=follow, strict=strict)
    found.write_bytes(inferred.SerializeToString())


def _mapped(row: dict[str, Any]) -> Any:
    import numpy as np

    shape = tuple(row["shape"])
    if 0 in shape:  # there is nothing to map
        return np.empty(shape, dtype_of(row["type"]))
    return np.memmap(row["path"], dtype_of(row["type"]), "r", row["at"], shape)


def _whole(
    proto: onnx.ModelProto, weights: dict[str, Any], folder: str | None
) -> Callable[[], ir.Model]:
    # Kept as it came: ONNX Runtime is handed large weights as inputs.
    serialized = proto.SerializeToString()

    def make() -> ir.Model:
        model: ir.Model = ir.from_proto(onnx.ModelProto.FromString(serialized))
        for name, array in weights.items():
            value = model.graph.initializers[name]
            dtype = value.const_value.dtype if value.const_value is not None else None
            value.const_value = ir.Tensor(array, dtype=dtype, name=name)
        if folder is not None:
            ir.external_data.set_base_dir(model.graph, folder)
        return model

    return make
