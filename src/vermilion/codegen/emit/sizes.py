"""Formulas of a run's sizes as instructions."""

from __future__ import annotations

from typing import Protocol, TypeVar

from vermilion.ir.formula import Atom, Extreme, Formula, Symbol, parts_of

V = TypeVar("V")


class Writer(Protocol[V]):
    """What is asked of who writes a function (`builder.Function`)."""

    def index(self, value: int) -> V:
        """Return a constant."""

    def binary(self, operation: str, a: V, b: V) -> V:
        """Write a two-operand instruction."""

    def compare(self, predicate: str, a: V, b: V) -> V:
        """Compare integers."""

    def select(self, condition: V, a: V, b: V) -> V:
        """Choose."""

    def convert(self, operation: str, value: V, type_: str) -> V:
        """Convert."""

    def load(self, type_: str, pointer: V, offset_bytes: int, *, align: int) -> V:
        """Load from a byte offset."""


def write_formula(f: Writer[V], size: Formula, pointer: V, offset_bytes: int) -> V:
    """Write what computes a formula; size `#k` lies at `offset_bytes + 8 k` from the pointer."""

    def written(part: Formula) -> V:
        total: V | None = None
        for factor, atoms in part.terms:
            product = f.index(factor)
            for atom in atoms:
                product = f.binary("mul", product, atom_of(atom))
            total = product if total is None else f.binary("add", total, product)
        return f.index(0) if total is None else total

    def atom_of(atom: Atom) -> V:
        if isinstance(atom, Symbol):
            return f.load("i64", pointer, offset_bytes + 8 * int(atom.name[1:]), align=8)
        one, other = (written(part) for part in parts_of(atom))
        if isinstance(atom, Extreme):
            is_less = f.compare("slt", one, other)
            return f.select(is_less, *((other, one) if atom.larger else (one, other)))
        # Rounded down, of negative numbers too.
        quotient, left = f.binary("sdiv", one, other), f.binary("srem", one, other)
        is_below = f.compare("slt", left, f.index(0))
        return f.binary("add", quotient, f.convert("sext", is_below, "i64"))

    return written(size)
