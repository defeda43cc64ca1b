"""Operations rewritten: those that become one step joined, a decoder cut in two.

Joined are products of the same rows, and a product and what gates it.

Cut is between what every position of a prompt needs and what only asked-for ones do. What the last
attention remembers is made of all positions; its queries and what follows it are for the logits of
their own position, and of a prompt only the last one's are asked for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.weights import LANES, PANEL
from vermilion.llm.engine.description import (
    Attention,
    Columns,
    Convolution,
    Experts,
    Floats,
    Operation,
    Product,
    RowOperation,
    Rows,
)


def join_products(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Make one product of those that read the same rows, one behind the other."""
    result: list[Operation] = []
    renamed: dict[str, tuple[str, int]] = {}
    for operation in operations:
        operation = _renamed(operation, renamed)
        if isinstance(operation, Experts) and len(operation.first) == 2:
            gates, others = operation.first
            if gates.joins(others):
                operation = replace(operation, first=(gates.joined(others),))
        before = next((one for one in reversed(result) if isinstance(one, Product)), None)
        if (
            isinstance(operation, Product)
            and before is not None
            and _same_rows(before.source, operation.source)
            and before.matrix.joins(operation.matrix)
            and before.matrix.columns % LANES == 0
            and before.is_exact == operation.is_exact
        ):
            at = result.index(before)
            renamed[operation.output] = (before.output, before.matrix.columns)
            bias = _joined_bias(before, operation)
            result[at] = replace(before, matrix=before.matrix.joined(operation.matrix), bias=bias)
            continue
        result.append(operation)
    return tuple(result)


def _same_rows(a: Rows, b: Rows) -> bool:
    return (a.buffer, a.offset, a.width) == (b.buffer, b.offset, b.width)


def _joined_bias(a: Product, b: Product) -> Floats | None:
    if a.bias is None and b.bias is None:
        return None
    parts = [
        np.zeros(one.matrix.columns, np.float32) if one.bias is None else one.bias for one in (a, b)
    ]
    return np.concatenate(parts)


def _renamed(operation: Operation, names: dict[str, tuple[str, int]]) -> Operation:
    def moved(rows: Rows) -> Rows:
        if rows.buffer not in names:
            return rows
        buffer, offset = names[rows.buffer]
        return replace(rows, buffer=buffer, offset=rows.offset + offset)

    match operation:
        case Product():
            return replace(operation, source=moved(operation.source))
        case RowOperation():
            return replace(operation, inputs=tuple(map(moved, operation.inputs)))
        case Attention():
            return replace(
                operation, query=moved(operation.query), key=moved(operation.key),
                value=moved(operation.value),
            )  # fmt: skip
        case Convolution():
            return replace(
                operation, before=moved(operation.before), after=moved(operation.after),
                value=moved(operation.value),
            )  # fmt: skip
        case Experts(shared=shared, share=share):
            return replace(
                operation, source=moved(operation.source), scores=moved(operation.scores),
                shared=None if shared is None else moved(shared),
                share=None if share is None else moved(share),
            )  # fmt: skip


def gates_of(
    operations: Sequence[Operation],
    forms: Mapping[tuple[str, int, int], Sequence[ActivationLayout]],
    wanted: Collection[str],
) -> dict[str, RowOperation]:
    """Return what gates the second half of a product with its first, by the product's output.

    Nothing else reads that output, and what the gate gives is read by products alone: in one of
    their `forms`, by buffer, offset and width; none of it is `wanted` as float32 rows.
    """
    readers: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        for name in {rows.buffer for rows in sources(operation)}:
            readers[name].append(operation)
    gates = {}
    for product in operations:
        match product, readers[product.output]:
            case Product(output=output), [RowOperation(inputs=(first, second)) as gate]:
                width = product.matrix.columns // 2
                own = forms.get((gate.output, 0, width), ())
                places = (first.offset, first.width, second.offset, second.width)
                if (
                    gate.kind in ("silu", "gelu", "gelu_tanh")
                    and gate.norm is None
                    and not gate.kept
                    and places == (0, width, width, width)
                    and width % PANEL == 0
                    and [form.kind != "int8" for form in own] == [True]
                    and gate.output not in wanted
                ):
                    gates[output] = gate
    return gates


def sources(operation: Operation) -> tuple[Rows, ...]:
    """Return the rows that an operation reads."""
    match operation:
        case Product(source=rows):
            return (rows,)
        case RowOperation(inputs=inputs):
            return inputs
        case Attention(query=query, key=keys, value=value, part=part):
            own = {"whole": (query, keys, value), "keys": (keys, value), "queries": (query,)}
            return own[part]
        case Convolution(before=before, after=after, value=value, part=part):
            own = {"whole": (before, after, value), "keys": (before, value), "queries": (after,)}
            return own[part]
        case Experts(source=source, scores=scores, shared=shared, share=share):
            return tuple(one for one in (source, scores, shared, share) if one is not None)


@dataclass(frozen=True, eq=False)
class Halves:
    """Operations up to what the last attention or convolution remembers, and from the rest on.

    The rows of the buffers in `crossing` go from half to half.
    """

    before: tuple[Operation, ...]
    after: tuple[Operation, ...]
    crossing: tuple[str, ...]


def cut_at_last_attention(operations: Sequence[Operation]) -> Halves:
    """Cut a decoder without its head."""
    at = max(i for i, one in enumerate(operations) if isinstance(one, Attention | Convolution))
    attention = operations[at]
    assert isinstance(attention, Attention | Convolution), "that is where it is cut"
    before = list(operations[:at])
    if isinstance(attention, Convolution):
        after = [replace(attention, part="queries"), *operations[at + 1 :]]
        return _halves([*before, replace(attention, part="keys")], after)
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
    return _halves([*before, keys], [*again, queries, *operations[at + 1 :]])


def _halves(before: Sequence[Operation], after: Sequence[Operation]) -> Halves:
    made = {name for operation in after for name in _results(operation)}
    read = {rows.buffer: None for operation in after for rows in sources(operation)}
    crossing = tuple(name for name in read if name not in made)
    return Halves(tuple(before), tuple(after), crossing)


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
        case RowOperation(output=output, kept=kept):
            return (output, kept)
        case _:
            return (operation.output,)
