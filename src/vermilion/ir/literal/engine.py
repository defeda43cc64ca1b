"""The engines of a literal run, in this process: ONNX Runtime not optimized, else the interpreter.

The interpreter runs what ONNX Runtime has no kernels for, and what its Python cannot hand over:
numpy itself has no bfloat16, no float8 and no 4-bit integers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
import onnx
import onnx_ir as ir

from vermilion.errors import UnsupportedError
from vermilion.ir.execute import Array, feed_session, run_session, session_from_bytes
from vermilion.ir.limits import Limits
from vermilion.ir.opset import opset_of

NOT_OPTIMIZED = "ONNX Runtime, not optimized"
OPTIMIZED = "ONNX Runtime, optimized"
INTERPRETER = "interpreter"

# How ONNX Runtime says that it is behind the standard. All else that it refuses is refused.
_BEHIND = re.compile(
    r"NOT_IMPLEMENTED|No Op registered|Unsupported model IR version|is till opset"
    r"|under development|(is|are) not supported|[Nn]ot (yet )?implemented"
)
# Shapes that the standard broadcasts and ONNX Runtime's kernel does not; it says so when it runs.
_NARROWER = re.compile(r"\(between attn_mask and (Q|K|V)\)")
# Types that numpy itself has; what is not declared is nearly always one of them.
_NUMPY = frozenset(
    [
        "FLOAT",
        "DOUBLE",
        "FLOAT16",
        "BOOL",
        "STRING",
        "INT8",
        "INT16",
        "INT32",
        "INT64",
        "UINT8",
        "UINT16",
        "UINT32",
        "UINT64",
    ]
)
# Sums of products of bytes, which one family of ONNX Runtime's kernels computes.
_OF_BYTES = frozenset(
    {
        "ConvInteger", "DynamicQuantizeMatMul", "MatMulInteger", "MatMulIntegerToFloat",
        "QAttention", "QGemm", "QLinearConv", "QLinearMatMul",
    }
)  # fmt: skip


def is_numpy(model: ir.Model) -> bool:
    """Say whether ONNX Runtime's Python can take and give all that goes in and out."""
    values = (*model.graph.inputs, *model.graph.outputs)
    return all(value.dtype is None or value.dtype.name in _NUMPY for value in values)


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
    model = stored.whole()
    if not is_numpy(model):
        raise BehindError("ONNX Runtime's Python has no arrays for the types of this model")
    if any(node.op_type in _OF_BYTES for node in model.graph.all_nodes()) and _cuts_off_sums():
        raise BehindError("ONNX Runtime cuts off sums of products of 8 bits on this processor")
    try:
        return _OnnxRuntime(stored, limits)
    except UnsupportedError as error:
        if _BEHIND.search(error.message):
            raise BehindError(error.message, where=error.where, hint=error.hint) from error
        raise


@cache
def _cuts_off_sums() -> bool:
    """Say whether ONNX Runtime's products of uint8 and int8 are off where numbers are large.

    Without VNNI it adds pairs of products in 16 bits: 255·127 twice is 32,767 then. It is asked, as
    which of its kernels runs here is its own business.
    """
    sizes = {"a": (onnx.TensorProto.UINT8, (8, 64)), "b": (onnx.TensorProto.INT8, (64, 32))}
    given = {"a": np.full((8, 64), 255, np.uint8), "b": np.full((64, 32), 127, np.int8)}
    infos = [onnx.helper.make_tensor_value_info(n, t, shape) for n, (t, shape) in sizes.items()]
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT32, (8, 32))
    node = onnx.helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    graph = onnx.helper.make_graph([node], "products", infos, [result])
    proto = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8
    )
    session = session_from_bytes(proto.SerializeToString(), {}, optimize=False, quiet=True)
    (found,) = run_session(session, given).values()
    return bool((found != 64 * 255 * 127).any())


def open_optimized(stored: Stored, limits: Limits) -> Engine:
    """Open a model as those who are fast do, to see whether it opens. Raises: UnsupportedError."""
    return _OnnxRuntime(stored, limits, optimize=True)


def is_interpreted(node: ir.Node, opset: int) -> bool:
    """Say whether the interpreter knows the operator of a node."""
    # Loaded by who needs it: it is many modules.
    from vermilion.ir.literal.table import find_fallback, find_row

    return (find_row(node.domain, node.op_type, opset) or find_fallback(node, opset)) is not None


def check_interpreted(model: ir.Model, behind: BehindError) -> None:
    """Raise what ONNX Runtime said of the model where the interpreter cannot run it either."""
    called = {key[:2] for key in model.functions}
    for node in model.graph.all_nodes():
        version = model.opset_imports.get(node.domain, opset_of(model))
        if (node.domain, node.op_type) not in called and not is_interpreted(node, version):
            raise behind


def open_interpreter(stored: Stored) -> Engine:
    """Open a model in the interpreter, which says what it cannot do when it runs."""
    return _Interpreted(stored.whole())


class _OnnxRuntime:
    def __init__(self, stored: Stored, limits: Limits, *, optimize: bool = False) -> None:
        self.name = OPTIMIZED if optimize else NOT_OPTIMIZED
        self._limit_s = limits.seconds
        self._whole = stored.whole
        self._weights: Mapping[str, Array] = {}
        if optimize or _wants_constants(stored.proto):
            self._session = session_from_bytes(
                stored.proto.SerializeToString(),
                stored.weights,
                optimize=optimize,
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
        try:
            return run_session(self._session, given, outputs, bounded=True, limit_s=self._limit_s)
        except UnsupportedError as error:
            if not _NARROWER.search(error.message):
                raise
        self.name = INTERPRETER
        return _Interpreted(self._whole()).run(inputs, outputs)


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
        from vermilion.ir.literal.interpret import interpret

        return interpret(self._model, inputs, outputs)
