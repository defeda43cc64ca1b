"""What is known of a graph's values while it is read."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from vermilion.codegen.emit.decoder.row import Source
from vermilion.llm.engine.description import Operation, Rows
from vermilion.llm.engine.embedding import Embedding
from vermilion.llm.engine.graph_values import refuse

# Inputs that only say which tokens are there: everything computed from them alone is known here.
_BOOKKEEPING = {"attention_mask", "position_ids"}


@dataclass(frozen=True)
class Activation:
    """An activation that waits for what it gates."""

    kind: Source
    source: Rows


@dataclass
class Reader:
    """What is known of the values of the graph so far, by name."""

    rows: dict[str, Rows] = field(default_factory=dict)
    sigmoids: dict[str, Rows] = field(default_factory=dict)
    activations: dict[str, Activation] = field(default_factory=dict)
    bookkeeping: set[str] = field(default_factory=lambda: set(_BOOKKEEPING))
    # `logits ÷ bound`, and the tanh of it: no rows until they are scaled back.
    divided: dict[str, tuple[Rows, float]] = field(default_factory=dict)
    bounded: dict[str, tuple[Rows, float]] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    embedding: Embedding | None = None
    first: str = ""
    logits_bound: float = 0.0
    # Buffers that only the head may have bounded, and read the last row of.
    bounded_buffer: str = ""
    pruned_buffer: str = ""

    def of(self, node: ir.Node, index: int) -> Rows:
        """Return the rows that an input is."""
        value = node.inputs[index] if index < len(node.inputs) else None
        rows = self.rows.get(value.name or "") if value is not None else None
        if rows is None:
            raise refuse(node, f"input {index} is no row of activations")
        return rows

    def plain(self, node: ir.Node, index: int) -> Rows:
        """Return the rows that an input is, with nothing left to do to them."""
        rows = self.of(node, index)
        if not rows.is_plain:
            raise refuse(node, "it reads heads that were normed or turned for attention")
        return rows

    def is_rows(self, value: ir.Value | None) -> bool:
        """Say whether a value is rows of activations."""
        return value is not None and (value.name or "") in self.rows

    def new(self, node: ir.Node, width: int, output: int = 0) -> str:
        """Make an output of a node a buffer of its own; give its name."""
        name = name_of(node.outputs[output])
        self.rows[name] = Rows(name, 0, width)
        return name


def name_of(value: ir.Value | None) -> str:
    """Return a value's name, empty for none."""
    return (value.name or "") if value is not None else ""
