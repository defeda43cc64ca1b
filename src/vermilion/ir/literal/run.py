"""The literal run of a model: what every compiled form of it is held to.

An engine that optimizes is not believed: its fusions have faults of their own. The engines that
are: ONNX Runtime with all optimizations off, and where it has no kernel, the interpreter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from vermilion.errors import UnsupportedError
from vermilion.ir.execute import Array, FedSession, open_fed_session, open_session, run_session
from vermilion.ir.memory import memory_limit_bytes

NOT_OPTIMIZED = "ONNX Runtime, not optimized"
INTERPRETER = "interpreter"


@dataclass(frozen=True)
class Limits:
    """What one run may take, and what it takes to open the model."""

    seconds: float = 60.0
    memory_bytes: int = field(default_factory=memory_limit_bytes)


@dataclass(frozen=True)
class LiteralRun:
    """What a literal run gave, and which engine it ran in."""

    outputs: Mapping[str, Array]
    engine: str


class LiteralModel:
    """A model that is open for literal runs."""

    engine = NOT_OPTIMIZED

    def __init__(self, model: ir.Model) -> None:
        """Open `model` without optimizations. Raises: UnsupportedError."""
        self._session: FedSession | None = None
        try:
            self._session = open_fed_session(model, quiet=True)
        except UnsupportedError:  # a kernel that wants its weights constant
            self._plain = open_session(model, optimize=False, quiet=True)

    def run(
        self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None
    ) -> dict[str, Array]:
        """Run once; return the outputs by name, all of the graph's where none are named.

        Raises: UnsupportedError where the run fails on these inputs: others may do.
        """
        if self._session is not None:
            return self._session.run(inputs, outputs)
        return run_session(self._plain, inputs, outputs)


def open_literally(model: ir.Model, *, limits: Limits | None = None) -> LiteralModel:
    """Open `model` in the first engine that can run it.

    Raises: UnsupportedError where none can.
    """
    return LiteralModel(model)


def run_literally(
    model: ir.Model,
    inputs: Mapping[str, Array],
    outputs: Sequence[str] | None = None,
    *,
    limits: Limits | None = None,
) -> LiteralRun:
    """Open `model`, run it once, close it. Raises: UnsupportedError."""
    opened = open_literally(model, limits=limits)
    return LiteralRun(opened.run(inputs, outputs), opened.engine)
