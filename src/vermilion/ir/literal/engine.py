"""The engines of a literal run, in this process: ONNX Runtime not optimized, else the interpreter.

The interpreter runs what ONNX Runtime has no kernels for, and what its Python cannot hand over:
numpy itself has no bfloat16, no float8 and no 4-bit integers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import onnx
import onnx_ir as ir

from vermilion.errors import UnsupportedError
from vermilion.ir.execute import Array, feed_session, run_session, session_from_bytes
from vermilion.ir.limits import Limits

NOT_OPTIMIZED = "ONNX Runtime, not optimized"
INTERPRETER = "interpreter"

# How ONNX Runtime says that it is behind the standard. All else that it refuses is refused.
_BEHIND = re.compile(
    r"NOT_IMPLEMENTED|No Op registered|Unsupported model IR version|is till opset"
    r"|under development"
)
_NUMPY = frozenset(
    {
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.BOOL,
        onnx.TensorProto.STRING,
        onnx.TensorProto.INT8,
        onnx.TensorProto.INT16,
        onnx.TensorProto.INT32,
        onnx.TensorProto.INT64,
        onnx.TensorProto.UINT8,
        onnx.TensorProto.UINT16,
        onnx.TensorProto.UINT32,
        onnx.TensorProto.UINT64,
        onnx.TensorProto.UNDEFINED,  # not declared: nearly always one of these
    }
)


@dataclass(frozen=True)
class Stored:
    """A model on its way into an engine: without its large weights, and those.

    What lies in files below `folder` is read from there. `whole` makes the model in one piece.
    """

    proto: onnx.ModelProto
    weights: Mapping[str, Array]
    folder: str | None
    whole: Callable[[], ir.Model]


@dataclass(frozen=True)
class OutputFound:
    """An output as the engine knows it: ONNX Runtime's name of the type, sizes as far as known."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]


class Engine(Protocol):
    """A model that is open in an engine."""

    @property
    def name(self) -> str:
        """Name the engine, for people."""

    @property
    def outputs(self) -> tuple[OutputFound, ...]:
        """Describe the outputs; empty where the engine learns of them by running."""

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None) -> dict[str, Array]:
        """Run once. Raises: UnsupportedError, MemoryBoundError."""


class BehindError(UnsupportedError):
    """ONNX Runtime lacks what the model needs, and the interpreter may have it."""


def open_onnx_runtime(stored: Stored, limits: Limits) -> Engine:
    """Open a model in ONNX Runtime.

    Raises: BehindError where the interpreter may do better, else UnsupportedError.
    """
    if not _is_numpy(stored.proto.graph):
        raise BehindError("ONNX Runtime's Python has no arrays for the types of this model")
    try:
        return _OnnxRuntime(stored, limits)
    except UnsupportedError as error:
        if _BEHIND.search(error.message):
            raise BehindError(error.message, where=error.where, hint=error.hint) from error
        raise


def open_interpreter(stored: Stored) -> Engine:
    """Open a model in the interpreter, which says what it cannot do when it runs."""
    return _Interpreted(stored.whole())


def _is_numpy(graph: onnx.GraphProto) -> bool:
    return all(
        value.type.tensor_type.elem_type in _NUMPY
        for value in (*graph.input, *graph.output)
        if value.type.HasField("tensor_type")
    )


class _OnnxRuntime:
    name = NOT_OPTIMIZED

    def __init__(self, stored: Stored, limits: Limits) -> None:
        self._limit_s = limits.seconds
        self._weights: Mapping[str, Array] = {}
        # Lent, before the weights become inputs: a few kernels want theirs constant.
        serialized = stored.proto.SerializeToString() if _wants_constants(stored.proto) else b""
        if serialized:
            self._session = session_from_bytes(
                serialized,
                stored.weights,
                optimize=False,
                quiet=True,
                bounded=True,
                folder=stored.folder,
            )
        else:
            fed = feed_session(
                stored.proto, stored.weights, stored.folder, quiet=True, bounded=True
            )
            self._session, self._weights = fed.session, fed.weights

    @property
    def outputs(self) -> tuple[OutputFound, ...]:
        return tuple(
            OutputFound(found.name, found.type, tuple(found.shape or ()))
            for found in self._session.get_outputs()
        )

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None) -> dict[str, Array]:
        given = {**self._weights, **inputs}
        return run_session(self._session, given, outputs, bounded=True, limit_s=self._limit_s)


def _wants_constants(proto: onnx.ModelProto) -> bool:
    """Say whether a node is of a domain whose kernels may want their weights constant.

    So do many of `com.microsoft` (`MatMulNBits`, `QAttention`); ONNX's own take them as they come.
    """
    return any(node.domain not in ("", "ai.onnx") for node in proto.graph.node)


class _Interpreted:
    name = INTERPRETER
    outputs: tuple[OutputFound, ...] = ()

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None) -> dict[str, Array]:
        # Loaded by who needs it: it is many modules.
        from vermilion.ir.literal.interpret import interpret

        return interpret(self._model, inputs, outputs)
