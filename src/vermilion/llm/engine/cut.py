"""A decoder in two: what every position of a prompt needs, and what only asked-for ones do.

What the last attention remembers is made of all positions; its queries and what follows it are for
the logits of their own position, and of a prompt only the last one's are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vermilion.codegen.emit.decoder.weights import PANEL
from vermilion.llm.engine.description import (
    Attention,
    Columns,
    Operation,
    Product,
    RowOperation,
    Rows,
)
from vermilion.llm.engine.join import sources


@dataclass(frozen=True, eq=False)
class Halves:
    """Operations up to the keys of the last attention, and from its queries on.

    The rows of the buffers in `crossing` go from half to half.
    """

    before: tuple[Operation, ...]
    after: tuple[Operation, ...]
    crossing: tuple[str, ...]


def cut_at_last_attention(operations: Sequence[Operation]) -> Halves:
    """Cut a decoder without its head."""
    at = max(i for i, operation in enumerate(operations) if isinstance(operation, Attention))
    attention = operations[at]
    assert isinstance(attention, Attention), "that is where it is cut"
    before = list(operations[:at])
    keys, queries = replace(attention, part="keys"), replace(attention, part="queries")
    again: list[Operation] = []
    product = _maker(before, attention.query.buffer)
    if isinstance(product, Product):
        own, others = _apart(product, attention, operations)
        here = before.index(product)
        before[here : here + 1] = [others] if others else []
        if others and own is not others:
            keys = replace(keys, key=_in(others, keys.key), value=_in(others, keys.value))
            queries = replace(queries, query=_in(own, queries.query))
        again = [*_source(operations[:at], product), own]
    after = [*again, queries, *operations[at + 1 :]]
    made = {name for operation in after for name in _results(operation)}
    read = {rows.buffer: None for operation in after for rows in sources(operation)}
    crossing = tuple(name for name in read if name not in made)
    return Halves((*before, keys), tuple(after), crossing)


def _apart(
    product: Product, attention: Attention, operations: Sequence[Operation]
) -> tuple[Product, Product | None]:
    """Return what of a product the queries need, and what the keys and others do, if anything.

    Where its columns cannot be told apart, both need all of it.
    """
    buffer, width = product.output, attention.query.width
    readers = [one for one in operations if buffer in {rows.buffer for rows in sources(one)}]
    rest = [rows for rows in (attention.key, attention.value) if rows.buffer == buffer]
    if readers != [attention]:
        return product, product
    if not rest:
        return product, None
    if attention.query.offset or width % PANEL or min(rows.offset for rows in rest) < width:
        return product, product
    columns = product.matrix.columns
    return (
        replace(product, output=f"{buffer} queries", columns=Columns(buffer, 0, width)),
        replace(product, output=f"{buffer} keys", columns=Columns(buffer, width, columns - width)),
    )


def _in(product: Product, rows: Rows) -> Rows:
    """Return rows in a product of some columns, if they are those of the whole one."""
    columns = product.columns
    if columns is None or rows.buffer != columns.output:
        return rows
    return replace(rows, buffer=product.output, offset=rows.offset - columns.first)


def _source(operations: Sequence[Operation], product: Product) -> tuple[Operation, ...]:
    """Return what makes a product's rows, of rows that are there as float32."""
    maker = _maker(operations, product.source.buffer)
    if not isinstance(maker, RowOperation):
        return ()
    if maker.kept:
        width = maker.inputs[0].width
        return (replace(maker, kind="plain", inputs=(Rows(maker.kept, 0, width),), kept=""),)
    return (maker,)


def _maker(operations: Sequence[Operation], buffer: str) -> Operation | None:
    return next((one for one in operations if buffer in _results(one)), None)


def _results(operation: Operation) -> tuple[str, ...]:
    match operation:
        case Product(output=output) | Attention(output=output):
            return (output,)
        case RowOperation(output=output, kept=kept):
            return (output, kept)
