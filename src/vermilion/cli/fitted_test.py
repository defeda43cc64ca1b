from __future__ import annotations

import io

import pytest
from rich.console import Console

from vermilion.cli.fitted import Column, FittedTable

COLUMNS = (
    Column("engine", 0),
    Column("p50 ms", 1),
    Column("least wanted", 4),
    Column("why", 3, folds=True),
    Column("ratio", 2),
)
WHY = "it takes another number format than this model has, and says so at some length"
ROWS = (
    ("vermilion@fp32 1.0", "12.345", "1234567890", WHY, "0.812 (0.79 to 0.83)"),
    ("ort", "not measured"),
)


def drawn(width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(FittedTable(COLUMNS, ROWS))
    return out.getvalue()


@pytest.mark.parametrize(
    ("width", "hidden"),
    [(200, ()), (90, ("least wanted",)), (70, ("least wanted", "why")),
     (40, ("least wanted", "why", "ratio"))],
)  # fmt: skip
def test_nothing_is_cut_and_what_is_left_out_is_named(width: int, hidden: tuple[str, ...]) -> None:
    found = drawn(width)
    assert "…" not in found
    assert "vermilion@fp32 1.0" in found
    assert "12.345" in found
    names = found.partition("no room for: ")[2].partition(" (")[0].replace("\n", " ")
    assert names == ", ".join(column.head for column in COLUMNS if column.head in hidden)
    assert ("0.812 (0.79 to 0.83)" in found) == ("ratio" not in hidden)


def test_a_table_without_rows_has_its_heads() -> None:
    out = io.StringIO()
    Console(file=out, width=80).print(FittedTable(COLUMNS, ()))
    assert "engine" in out.getvalue()
