"""Trees of arithmetic: kinds, substitution, leaves."""

from __future__ import annotations

from vermilion.ir.expression import (
    Apply,
    Constant,
    Convert,
    Operand,
    apply,
    operands_of,
    substitute,
)

X, Y, FLAG = Operand(0), Operand(1), Operand(2, "bool")


def test_kinds() -> None:
    assert apply("add", X, Y).kind == "float"
    assert apply("less", X, Y).kind == "bool"
    assert apply("add", Operand(0, "long"), Constant(1, "long")).kind == "long"


def test_operands_are_replaced_everywhere() -> None:
    tree = Apply("select", (FLAG, apply("mul", X, X), Convert(Operand(1, "int"), "float")))
    three = Constant(3.0)
    swapped = substitute(tree, {0: three, 1: Operand(5, "int")})
    assert swapped == Apply(
        "select", (FLAG, apply("mul", three, three), Convert(Operand(5, "int"), "float"))
    )
    assert substitute(tree, {}) == tree


def test_leaves_come_with_repeats() -> None:
    tree = apply("add", apply("mul", X, X), apply("max", Y, Constant(0.0)))
    assert [leaf.index for leaf in operands_of(tree)] == [0, 0, 1]


def test_equal_trees_are_equal_keys() -> None:
    assert len({apply("add", X, Y), apply("add", X, Y), apply("add", Y, X)}) == 2
