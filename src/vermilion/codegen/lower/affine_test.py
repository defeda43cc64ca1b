"""Sums of numbers times factors, before they are instructions."""

from __future__ import annotations

import numpy as np

from vermilion.codegen.lower.affine import Affine, Term, added, number
from vermilion.ir.expression import Operand


def of(index: int, factor: float, *, is_integer: bool = True) -> Affine:
    return Affine((Term(Operand(index), number(factor), is_integer),), number(0.0))


def test_a_value_less_itself_is_nothing() -> None:
    """A fused multiply-add leaves what rounding the other product takes: 0.008 ÷ 5e-8 of a step."""
    (term,) = added(of(0, 0.0084), of(0, -0.0084)).terms
    assert term.factor == 0.0


def test_only_one_finite_value_is_one_term() -> None:
    assert [float(t.factor) for t in added(of(0, 0.25), of(0, 0.5)).terms] == [0.75]
    assert len(added(of(0, 0.25), of(1, 0.5)).terms) == 2
    assert len(added(of(0, 0.25, is_integer=False), of(0, 0.5, is_integer=False)).terms) == 2
    by_channel = Affine((Term(Operand(0), np.array([0.5, 1.0]), True),), number(0.0))
    assert added(of(0, 0.25), by_channel).terms[0].factor.tolist() == [0.75, 1.25]
