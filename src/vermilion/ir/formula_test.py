from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vermilion.ir.formula import (
    Formula,
    FormulaTable,
    UndecidedError,
    at_least,
    computed,
    formula,
    guard_holds,
)
from vermilion.ir.symbolic import Size, larger, lesser, symbol

OPERATIONS = ("add", "subtract", "multiply", "divide", "remainder", "larger", "lesser")


def apply(operation: str, a: int, b: int) -> int:
    match operation:
        case "add":
            return a + b
        case "subtract":
            return a - b
        case "multiply":
            return a * b
        case "divide":
            return a // b
        case "remainder":
            return a % b
        case "larger":
            return larger(a, b)
        case _:
            return lesser(a, b)


@st.composite
def chains(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Draw operations; each takes what was computed so far, and a symbol (0, 1) or a number."""
    return draw(
        st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 9)), min_size=1, max_size=6)
    )


def compute(chain: list[tuple[str, int]], sizes: tuple[int, int], start: int) -> int | None:
    total = start
    for operation, operand in chain:
        other = sizes[operand] if operand < 2 else operand
        if operation in ("divide", "remainder") and int(other) == 0:
            return None
        total = apply(operation, total, other)
    return total


@given(chains(), st.integers(1, 40), st.integers(1, 40))
def test_a_formula_is_what_the_same_arithmetic_gives_at_other_sizes(
    chain: list[tuple[str, int]], n: int, s: int
) -> None:
    a, b = symbol("n", 7), symbol("s", 131)
    found = compute(chain, (a, b), a)
    expected = compute(chain, (n, s), n)
    assert found is not None
    assert expected is not None
    text = formula(found)
    assert text.at({"n": n, "s": s}) == expected
    table = FormulaTable()
    number = table.number(found)
    assert computed(table.rows, {"n": n, "s": s})[number] == expected
    for bound in (-1, 0, 1):
        if at_least(text, bound):
            assert expected >= bound


def test_what_divides_leaves_no_division() -> None:
    n, s = symbol("n", 7), symbol("s", 131)
    assert str(formula(n * s * 768 // 64)) == "12*n*s"
    assert str(formula(n * s * 12 // s)) == "12*n"
    assert formula(n * s * 768 % 64).constant == 0
    assert formula((n + 3) * (s + 1) // (s + 1)).text == formula(n + 3).text
    assert formula((16 * s + 64) // (16 * s + 48)).constant == 1
    assert type(n - n) is int


def test_what_is_written_into_code_is_never_compared() -> None:
    size = formula(symbol("n", 7))
    assert isinstance(size, Formula)
    with pytest.raises(UndecidedError, match="`n` is known when the program runs"):
        _ = size < 3
    with pytest.raises(UndecidedError):
        bool(size)
    with pytest.raises(UndecidedError):
        range(size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sign", "difference", "holds"),
    [(1, 4, True), (1, 0, False), (0, 0, True), (0, -1, False), (-1, -2, True), (None, 0, False),
     (None, 5, True)],
)  # fmt: skip
def test_a_guard_holds_where_the_difference_has_its_sign(
    sign: int | None, difference: int, holds: bool
) -> None:
    assert guard_holds(sign, difference) is holds


def test_a_size_is_an_int() -> None:
    n = symbol("n", 7)
    assert isinstance(n, Size)
    assert n == 7
    assert list(range(n)) == list(range(7))
    assert [0] * n == [0] * 7
