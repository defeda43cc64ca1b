"""Operations that become one step: products of the same rows, a product and what gates it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.weights import LANES, PANEL
from vermilion.llm.engine.description import (
    Attention,
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
        before = next((one for one in reversed(result) if isinstance(one, Product)), None)
        if (
            isinstance(operation, Product)
            and before is not None
            and _same_rows(before.source, operation.source)
            and before.matrix.joins(operation.matrix)
            and before.matrix.columns % LANES == 0
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
