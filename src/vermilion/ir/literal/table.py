"""The table of operators: what each does, by domain, name and version."""

from __future__ import annotations

from collections.abc import Mapping

from vermilion.ir.literal import (
    attention,
    control,
    elementwise,
    fused,
    fused_quantized,
    indexing,
    movement,
    normalize,
    pooling,
    products,
    quantize,
    recurrent,
    reduce,
    resize,
    search,
)
from vermilion.ir.literal.call import Row, Table

_STANDARD = (
    attention,
    control,
    elementwise,
    indexing,
    movement,
    normalize,
    pooling,
    products,
    quantize,
    recurrent,
    reduce,
    resize,
    search,
)

OPERATORS: Mapping[str, Table] = {
    "com.microsoft": {**fused.OPERATORS, **fused_quantized.OPERATORS},
    "vermilion.numbers": fused_quantized.OWN,
    "": {name: rows for module in _STANDARD for name, rows in module.OPERATORS.items()},
}


def find_row(domain: str, name: str, version: int) -> Row | None:
    """Return what an operator does in a version of its domain, None where it is not here."""
    domain = "" if domain == "ai.onnx" else domain
    rows = OPERATORS.get(domain, {}).get(name, ())
    known = [row for row in rows if row.since <= version]
    return known[-1] if known else None
