"""A decoder in two: what every position of a prompt needs, and what only asked-for ones do.

What the last attention remembers is made of all positions; what follows it is for the logits of
its own position, and of a prompt only the last one's are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.llm.engine.description import Attention, Operation, Product, RowOperation
from vermilion.llm.engine.join import sources


@dataclass(frozen=True, eq=False)
class Halves:
    """Operations up to the last attention, and from it on: it ends the one and begins the other.

    Its queries go from half to half, and the rows of the buffers in `crossing`.
    """

    before: tuple[Operation, ...]
    after: tuple[Operation, ...]
    crossing: tuple[str, ...]


def cut_at_last_attention(operations: Sequence[Operation]) -> Halves:
    """Cut a decoder without its head."""
    at = max(i for i, operation in enumerate(operations) if isinstance(operation, Attention))
    rest = operations[at + 1 :]
    made = {name for operation in operations[at:] for name in _results(operation)}
    read = {rows.buffer: None for operation in rest for rows in sources(operation)}
    crossing = tuple(name for name in read if name not in made)
    return Halves(tuple(operations[: at + 1]), tuple(operations[at:]), crossing)


def _results(operation: Operation) -> tuple[str, ...]:
    match operation:
        case Product(output=output) | Attention(output=output):
            return (output,)
        case RowOperation(output=output, kept=kept):
            return (output, kept)
