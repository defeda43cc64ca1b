"""What a pass tells of itself: how often it fired, and where and why it did not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import onnx_ir as ir

from vermilion.errors import Refusal


@dataclass(frozen=True)
class PassStep:
    """One pass as it went over one model."""

    name: str
    fired: int = 0
    refusals: tuple[tuple[str, Refusal], ...] = ()


@dataclass
class Notes:
    """Filled by a pass while it works."""

    fired: int = 0
    refusals: list[tuple[str, Refusal]] = field(default_factory=list)

    def refuse(self, where: str, reason: str, hint: str = "") -> None:
        """Keep why the pass left the thing at `where` alone."""
        self.refusals.append((where, Refusal(reason, hint)))


Rewrite = Callable[[ir.Model, Notes], None]
"""A pass proper: changes the model in place, counts and explains in the notes."""


class GraphPass(ir.passes.InPlacePass):
    """A rewrite in the shape that onnx_ir's pass manager takes; `step` tells how it went."""

    def __init__(self, rewrite: Rewrite, name: str = "") -> None:
        self.name = name or rewrite.__name__.replace("_", "-")
        self.step = PassStep(self.name)
        self._rewrite = rewrite

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Run the rewrite over the whole model."""
        notes = Notes()
        self._rewrite(model, notes)
        self.step = PassStep(self.name, notes.fired, tuple(notes.refusals))
        return ir.passes.PassResult(model, modified=notes.fired > 0)


def run_pass(rewrite: Rewrite, model: ir.Model) -> PassStep:
    """Run one rewrite on `model` in place; give its report."""
    graph_pass = GraphPass(rewrite)
    graph_pass(model)
    return graph_pass.step
