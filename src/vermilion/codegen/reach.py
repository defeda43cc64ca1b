"""Bytes that a kernel touches from an argument's pointer on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vermilion.codegen.emit.walk import Access
from vermilion.codegen.tensor import STORAGE_BYTES, Storage
from vermilion.ir.expression import Apply, Convert, Element, Expression

Dimensions = Iterable[tuple[int, int]]  # size, stride in elements


@dataclass(frozen=True)
class Reach:
    """The first byte that is touched and the one behind the last, from the pointer on."""

    low: int
    high: int

    def joined(self, other: Reach) -> Reach:
        """Return what both touch."""
        return Reach(min(self.low, other.low), max(self.high, other.high))


def span(dims: Dimensions, storage: Storage | int, run: int = 1) -> Reach:
    """Return the reach of a walk over dimensions, `run` elements side by side at each place.

    An integer for the storage is the bytes of an element.
    """
    item = storage if isinstance(storage, int) else STORAGE_BYTES[storage]
    ends = [(size - 1) * stride * item for size, stride in dims]
    return Reach(
        sum(end for end in ends if end < 0), sum(end for end in ends if end > 0) + run * item
    )


def dense(count: int, storage: Storage | int) -> Reach:
    """Return the reach of elements side by side."""
    return span((), storage, count)


def walked(access: Access, sizes: Iterable[int]) -> Reach:
    """Return the reach of a walk over dimensions of these sizes."""
    return span(zip(sizes, access.strides, strict=True), access.storage)


def with_tables(expressions: Iterable[Expression], reaches: list[Reach]) -> list[Reach]:
    """Return reaches with what expressions read of tables: `reaches[i]` is operand i's."""
    found = list(reaches)
    for expression in expressions:
        for element in _elements(expression):
            table = Reach(0, 4 * (element.position + 1))
            found[element.operand] = found[element.operand].joined(table)
    return found


def _elements(expression: Expression) -> Iterator[Element]:
    pending = [expression]
    while pending:
        part = pending.pop()
        if isinstance(part, Element):
            yield part
        elif isinstance(part, Apply):
            pending.extend(part.arguments)
        elif isinstance(part, Convert):
            pending.append(part.argument)
