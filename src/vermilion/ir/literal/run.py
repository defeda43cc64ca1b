"""The literal run of a model: what every compiled form of it is held to.

An engine that optimizes is not believed: its fusions have faults of their own. The engines that
are: ONNX Runtime with all optimizations off, and where it has no kernel, the interpreter. What
could loop for ever, fill the memory or crash an engine runs in a child process (`vouch`, `child`).
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from vermilion.errors import UnsupportedError, VermilionError
from vermilion.ir.execute import Array, stripped_proto, weights_folder
from vermilion.ir.limits import Limits, MemoryBoundError, TimeLimitError
from vermilion.ir.literal.child import (
    CrashError,
    LiteralProcess,
    Order,
    the_child,
)
from vermilion.ir.literal.engine import (
    BehindError,
    Engine,
    OutputFound,
    Stored,
    check_interpreted,
    open_onnx_runtime,
)
from vermilion.ir.literal.vouch import may_loop, unvouched
from vermilion.process.arrays import Row, name_of, read_values, write_values
from vermilion.progress import Progress, no_progress

__all__ = [
    "Limits",
    "LiteralModel",
    "LiteralRun",
    "TimeLimitError",
    "open_literally",
    "run_literally",
]


@dataclass(frozen=True)
class LiteralRun:
    """What a literal run gave, and which engine it ran in."""

    outputs: Mapping[str, Array]
    engine: str


class LiteralModel:
    """A model that is open for literal runs."""

    def __init__(self, opened: _Here | _InChild) -> None:
        """Take what `open_literally` found."""
        self._opened = opened

    @property
    def engine(self) -> str:
        """Name the engine, for people: after a run, the one that ran."""
        return self._opened.engine

    @property
    def in_child(self) -> bool:
        """Say whether it runs in a child process."""
        return isinstance(self._opened, _InChild)

    @property
    def described(self) -> tuple[OutputFound, ...]:
        """Describe the outputs; empty where the engine learns of them by running."""
        return self._opened.described

    def run(
        self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Run once; return the outputs by name, all of the graph's where none are named.

        Raises: UnsupportedError where the run fails on these inputs: others may do. Some are
        more: TimeLimitError, CrashError. MemoryBoundError where it needs too much memory.
        """
        return self._opened.run(inputs, outputs)

    def close(self) -> None:
        """Return back what it holds; a model that nobody holds any more is closed as well."""
        self._opened.close()


def open_literally(
    model: ir.Model, *, limits: Limits | None = None, progress: Progress = no_progress
) -> LiteralModel:
    """Open `model` in the first engine that can run it.

    `progress` is told how long a child takes, in seconds of those that it may take.

    Raises: UnsupportedError where none can.
    """
    chosen = limits or Limits()
    if not unvouched(model):
        try:
            return LiteralModel(_Here(open_onnx_runtime(_stored(model), chosen)))
        except BehindError as behind:
            check_interpreted(model, behind)
            return LiteralModel(_InChild(model, chosen, progress, ort=False))
    return LiteralModel(_InChild(model, chosen, progress, ort=True))


def run_literally(
    model: ir.Model,
    inputs: Mapping[str, Array],
    outputs: Sequence[str] | None = None,
    *,
    limits: Limits | None = None,
    progress: Progress = no_progress,
) -> LiteralRun:
    """Open `model`, run it once, close it. Raises: what `open_literally` and `run` raise."""
    opened = open_literally(model, limits=limits, progress=progress)
    try:
        return LiteralRun(opened.run(inputs, outputs), opened.engine)
    finally:
        opened.close()


def check_runs(model: ir.Model, inputs: Mapping[str, Array]) -> None:
    """Run a model once in a child before it is run in this process, unless it is vouched for.

    What else may be wrong with model or inputs is not said here: the run that follows does.

    Raises: TimeLimitError, CrashError, MemoryBoundError.
    """
    if not unvouched(model):
        return
    try:
        run_literally(model, inputs)
    except (TimeLimitError, CrashError, MemoryBoundError):
        raise
    except VermilionError:
        return


def check_opens(model: ir.Model) -> None:
    """Open a model with optimizations, in a child unless it is vouched for.

    For who opens it with them in this process afterwards.

    Raises: UnsupportedError, CrashError among them; TimeLimitError; MemoryBoundError.
    """
    if unvouched(model):
        _InChild(model, Limits(), no_progress, ort=True, optimize=True).close()


def _stored(model: ir.Model) -> Stored:
    folder = weights_folder(model)
    proto, tensors = stripped_proto(model, keep_in=folder)
    weights = {name: tensor.numpy() for name, tensor in tensors.items()}
    return Stored(proto, weights, folder, lambda: model)


class _Here:
    """A model in an engine in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.described = engine.outputs

    @property
    def engine(self) -> str:
        return self._engine.name

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None) -> dict[str, Array]:
        return self._engine.run(inputs, outputs)

    def close(self) -> None:
        return  # it ends with the last who holds it


_numbers = count()

# What ended badly once is not tried again by the next who asks: a compilation runs its model for
# several reasons. By the digest of nodes and small weights.
_given_up: dict[tuple[bool, str], Callable[[], VermilionError]] = {}


class _InChild:
    """A model in the child; written into the child's folder, and opened again after a kill."""

    def __init__(
        self,
        model: ir.Model,
        limits: Limits,
        progress: Progress,
        *,
        ort: bool,
        optimize: bool = False,
    ) -> None:
        most_s = min(limits.seconds, limits.loop_seconds) if may_loop(model) else limits.seconds
        self._limits = Limits(most_s, most_s, limits.memory_bytes)
        self._progress = progress
        self._ort = ort
        self._number = next(_numbers)
        self._child = the_child()
        folder = weights_folder(model)
        proto, tensors = stripped_proto(model, keep_in=folder)
        self._key = (optimize, _digest(model, proto, folder))
        self._files = _Files(self._child, self._number)
        self._model: dict[str, Any] = {
            "model": self._number,
            "folder": folder,
            "optimize": optimize,
            "mapped": {n: row for n, t in tensors.items() if (row := _in_file(t)) is not None},
        }
        self._serialized = proto.SerializeToString()
        self._tensors = {n: t for n, t in tensors.items() if n not in self._model["mapped"]}
        self._close = weakref.finalize(self, self._files.forget)
        try:
            answer = self._obey({"inputs": None})
        except BaseException:
            self._close()  # at once: whoever holds the error holds this
            raise
        self.engine = str(answer["engine"])
        self.described = tuple(
            OutputFound(name, kind, tuple(shape)) for name, kind, shape in answer["described"]
        )

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None) -> dict[str, Array]:
        names = list(outputs) if outputs is not None else None
        answer = self._obey({"outputs": names}, inputs)
        self.engine = str(answer["engine"])
        return dict(answer["found"])

    def close(self) -> None:
        self._close()

    def _obey(self, order: Order, inputs: Mapping[str, Array] | None = None) -> dict[str, Any]:
        given_up = _given_up.get(self._key)
        if given_up is not None:
            raise given_up()
        try:
            return self._tried(order, inputs)
        except CrashError as error:
            if self._ort and not self._model["optimize"]:
                self._ort = False
                try:
                    return self._tried(order, inputs)
                except (UnsupportedError, MemoryBoundError):
                    pass  # the crash is what there is to say
            self._give_up(error)
            raise
        except (TimeLimitError, MemoryBoundError) as error:
            self._give_up(error)
            raise

    def _give_up(self, error: VermilionError) -> None:
        # Made anew each time: an error that was raised holds on to all that was there.
        kind, message, place, hint = type(error), error.message, error.where, error.hint
        _given_up[self._key] = (
            partial(TimeLimitError, self._limits.seconds)
            if isinstance(error, TimeLimitError)
            else partial(kind, message, where=place, hint=hint)
        )

    def _tried(self, order: Order, inputs: Mapping[str, Array] | None) -> dict[str, Any]:
        child, files = self._child, self._files
        with child.lock:
            child.folder.mkdir(mode=0o700, exist_ok=True)
            full = {
                **self._model,
                **order,
                **self._written(),
                "ort": self._ort,
                "seconds": self._limits.seconds,
                "memory_bytes": self._limits.memory_bytes,
                "in_file": files.inputs.name,
                "out_file": files.outputs.name,
                "forget": child.forgotten(),
            }
            try:
                if inputs is not None:
                    full["inputs"] = write_values(inputs, files.inputs)
                answer = child.obey(full, self._limits, self._waiting)
                if inputs is not None:
                    answer["found"] = _read_found(answer, files.outputs)
                return answer
            finally:
                files.inputs.unlink(missing_ok=True)
                files.outputs.unlink(missing_ok=True)

    def _written(self) -> dict[str, Any]:
        """Write the model's files, unless they lie there."""
        files = self._files
        if not files.model.exists():
            files.model.write_bytes(self._serialized)
            arrays = {name: tensor.numpy() for name, tensor in self._tensors.items()}
            self._rows = write_values(arrays, files.weights)
        return {
            "model_file": files.model.name,
            "weights_file": files.weights.name,
            "weights": self._rows,
        }

    def _waiting(self, seconds: float) -> None:
        self._progress("literal run, at most", int(seconds), int(self._limits.seconds))


class _Files:
    """Where a model and what goes in and out lie in the child's folder."""

    def __init__(self, child: LiteralProcess, number: int) -> None:
        self._child, self._number = child, number
        self.model, self.weights, self.inputs, self.outputs = (
            child.folder / f"{number}.{kind}" for kind in ("onnx", "weights", "in", "out")
        )

    def forget(self) -> None:
        self._child.to_forget.append(self._number)
        for path in (self.model, self.weights):
            path.unlink(missing_ok=True)


def _read_found(answer: Mapping[str, Any], path: Path) -> dict[str, Array]:
    try:
        rows: Mapping[str, Row] = answer["outputs"]
        return read_values(rows, path)
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise CrashError("ONNX Runtime broke the process that ran this model") from error


def _in_file(tensor: ir.TensorProtocol) -> dict[str, Any] | None:
    """Return where a weight lies that is a file's already, None where it is not."""
    if not isinstance(tensor, ir.ExternalTensor) or tensor.dtype.bitwidth < 8:
        return None
    return {
        "path": str(Path(tensor.path).resolve()),
        "at": tensor.offset or 0,
        "type": name_of(tensor.dtype.numpy()),
        "shape": [int(size) for size in tensor.shape.numpy()],
    }


def _digest(model: ir.Model, proto: onnx.ModelProto, folder: str | None) -> str:
    """Return what tells models apart that run differently, whatever outputs are asked for."""
    digest = hashlib.sha256(str(folder).encode())
    for node in proto.graph.node:
        digest.update(node.SerializeToString(deterministic=True))
    read = {name for name, value in model.graph.initializers.items() if value.uses()}
    for tensor in proto.graph.initializer:
        if tensor.name in read:
            digest.update(tensor.SerializeToString(deterministic=True))
    return digest.hexdigest()
