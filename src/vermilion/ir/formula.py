"""Formulas over sizes that are known when a program runs: sums of products, divisions, extremes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Symbol:
    """A size by its name."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Quotient:
    """A division of two formulas, rounded down."""

    above: Formula
    below: Formula

    def __str__(self) -> str:
        return f"({self.above})//({self.below})"


@dataclass(frozen=True)
class Extreme:
    """The larger, or the lesser, of two formulas."""

    larger: bool
    one: Formula
    other: Formula

    def __str__(self) -> str:
        return f"{'max' if self.larger else 'min'}({self.one}, {self.other})"


Atom = Symbol | Quotient | Extreme
Product = tuple[Atom, ...]


class UndecidedError(Exception):
    """Something must be known when code is written that is only known when it runs."""


@dataclass(frozen=True, eq=False)
class Formula:
    """A sum of products: (factor, atoms) each, in an order of its own. Comparing it is an error."""

    terms: tuple[tuple[int, Product], ...]

    @cached_property
    def text(self) -> str:
        """How it is written; equal formulas are written alike."""
        return "+".join(_term_text(*term) for term in self.terms) or "0"

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Formula):
            return self.text == other.text
        return self._undecided(other)

    def __hash__(self) -> int:
        return hash(self.text)

    def _undecided(self, other: object = None) -> bool:
        raise UndecidedError(f"`{self}` is known when the program runs, not before")

    __lt__ = __le__ = __gt__ = __ge__ = _undecided
    __bool__ = _undecided

    def __index__(self) -> int:
        raise UndecidedError(f"`{self}` is known when the program runs, not before")

    @property
    def constant(self) -> int | None:
        """The number that it is, None where it depends on symbols."""
        if not self.terms:
            return 0
        return self.terms[0][0] if len(self.terms) == 1 and not self.terms[0][1] else None

    def __add__(self, other: Number) -> Formula:
        return _sum((*self.terms, *formula(other).terms))

    def __mul__(self, other: Number) -> Formula:
        return _sum(
            (a * b, _sorted((*x, *y))) for a, x in self.terms for b, y in formula(other).terms
        )

    def __neg__(self) -> Formula:
        return self * -1

    def __sub__(self, other: Number) -> Formula:
        return self + -formula(other)

    def __rsub__(self, other: Number) -> Formula:
        return formula(other) - self

    def __floordiv__(self, other: Number) -> Formula:
        return _divided(self, formula(other))

    def __rfloordiv__(self, other: Number) -> Formula:
        return _divided(formula(other), self)

    def __mod__(self, other: Number) -> Formula:
        return self - self // other * other

    def __rmod__(self, other: Number) -> Formula:
        return formula(other) % self

    def __divmod__(self, other: Number) -> tuple[Formula, Formula]:
        return self // other, self % other

    __radd__ = __add__
    __rmul__ = __mul__

    def at(self, sizes: Mapping[str, int]) -> int:
        """Return its value where the symbols have these sizes."""
        total = 0
        for factor, atoms in self.terms:
            total += factor * math.prod(_atom_at(atom, sizes) for atom in atoms)
        return total


_NOTHING = Formula(())


Number = Formula | int


def formula(number: Number) -> Formula:
    """Return the formula of a number: of a size its own, of a plain int the constant."""
    if isinstance(number, Formula):
        return number
    own = getattr(number, "formula", None)  # of a `symbolic.Size`
    if isinstance(own, Formula):
        return own
    return Formula(((int(number), ()),)) if number else _NOTHING


def _term_text(factor: int, atoms: Product) -> str:
    return "*".join([*([str(factor)] if factor != 1 or not atoms else []), *map(str, atoms)])


def _sorted(atoms: Iterable[Atom]) -> Product:
    return tuple(sorted(atoms, key=str))


def _sum(terms: Iterable[tuple[int, Product]]) -> Formula:
    found: dict[Product, int] = {}
    for factor, atoms in terms:
        found[atoms] = found.get(atoms, 0) + factor
    kept = [(factor, atoms) for atoms, factor in found.items() if factor]
    return Formula(tuple(sorted(kept, key=lambda term: [str(atom) for atom in term[1]])))


def _divided(above: Formula, below: Formula) -> Formula:
    """Divide, rounding down: what divides without a rest comes out of the quotient."""
    if not above.terms:
        return _NOTHING
    if above == below:
        return formula(1)
    if len(below.terms) != 1:
        return _divided_by_sum(above, below)
    divisor, atoms = below.terms[0]
    out, rest = [], []
    for factor, product in above.terms:
        remaining = _without(product, atoms)
        if remaining is not None and factor % divisor == 0:
            out.append((factor // divisor, remaining))
        else:
            rest.append((factor, product))
    left = _sum(rest)
    return _sum(out) + (_quotient(left, below) if left.terms else _NOTHING)


def _divided_by_sum(above: Formula, below: Formula) -> Formula:
    """Divide by a sum as numbers are divided on paper, the term of the most factors first."""
    divisor, atoms = max(below.terms, key=_degree)
    out, rest = _NOTHING, above
    while rest.terms:
        factor, product = max(rest.terms, key=_degree)
        remaining = _without(product, atoms)
        if remaining is None or factor % divisor:
            break
        term = Formula(((factor // divisor, remaining),))
        out, rest = out + term, rest - term * below
    if not rest.terms:
        return out
    # A rest that is over 0 and under the divisor is no quotient.
    if at_least(rest, 0) and at_least(below - rest, 1):
        return out
    return out + _quotient(rest, below)


def _degree(term: tuple[int, Product]) -> tuple[int, list[str]]:
    return len(term[1]), [str(atom) for atom in term[1]]


def _quotient(above: Formula, below: Formula) -> Formula:
    if above.constant is not None and below.constant is not None:
        return formula(above.constant // below.constant)
    return Formula(((1, (Quotient(above, below),)),))


def _without(product: Product, atoms: Product) -> Product | None:
    left = list(product)
    for atom in atoms:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def parts_of(atom: Quotient | Extreme) -> Sequence[Formula]:
    """Return the two formulas of a division or an extreme."""
    return (atom.above, atom.below) if isinstance(atom, Quotient) else (atom.one, atom.other)


def _atom_at(atom: Atom, sizes: Mapping[str, int]) -> int:
    if isinstance(atom, Symbol):
        return sizes[atom.name]
    one, other = (part.at(sizes) for part in parts_of(atom))
    if isinstance(atom, Quotient):
        return one // other
    return max(one, other) if atom.larger else min(one, other)


def at_least(number: Number, bound: int) -> bool:
    """Say whether a number is known to be no less than this, whatever is run: sizes are over 0."""
    text = formula(number)
    for _ in range(_MOST_ROUNDINGS):
        least = _least(text)
        if least is not None and least >= bound:
            return True
        rounded = _without_rounding(text)
        if rounded is None:
            return False
        text = rounded
    return False


# Divisions that are taken out of a formula one after the other: what rounds a size up to whole
# tiles and takes the size off again has one or two.
_MOST_ROUNDINGS = 4


def _without_rounding(text: Formula) -> Formula | None:
    """Return what is no more than a formula and has a division less, None where none is found.

    k · (a ÷ k) is between a - k + 1 and a.
    """
    for number, (factor, atoms) in enumerate(text.terms):
        if len(atoms) != 1 or not isinstance(atoms[0], Quotient):
            continue
        divisor = atoms[0].below.constant
        if divisor is None or divisor <= 0 or factor % divisor:
            continue
        rest = _sum(term for at, term in enumerate(text.terms) if at != number)
        times, above = factor // divisor, atoms[0].above
        return rest + above * times if times < 0 else rest + (above - (divisor - 1)) * times
    return None


def _least(text: Formula) -> int | None:
    total = 0
    for factor, atoms in text.terms:
        product = factor
        for atom in atoms:
            bound = _least_of(atom)
            if factor < 0 or bound is None or (bound < 0 and len(atoms) > 1):
                return None
            product *= bound
        total += product
    return total


def _least_of(atom: Atom) -> int | None:
    if isinstance(atom, Symbol):
        return 1
    one, other = map(_least, parts_of(atom))
    if isinstance(atom, Quotient):
        below = atom.below.constant
        return None if one is None or below is None or below <= 0 else one // below
    known = [bound for bound in (one, other) if bound is not None]
    if atom.larger:
        return max(known, default=None)
    return min(known) if len(known) == 2 else None


class FormulaTable:
    """Formulas in the order in which they are computed, each by its number, as plain rows.

    A row is `["symbol", name]`, `["sum", [[factor, [numbers]], …]]`, or `["quotient" | "max" |
    "min", number, number]`.
    """

    def __init__(self) -> None:
        self.rows: list[list[Any]] = []
        self._numbers: dict[str, int] = {}

    def number(self, size: Number) -> int:
        """Return the number of a formula, added if it is not there yet."""
        text = formula(size)
        if str(text) not in self._numbers:
            terms = [[factor, [self._atom(atom) for atom in atoms]] for factor, atoms in text.terms]
            self._add(str(text), ["sum", terms])
        return self._numbers[str(text)]

    def _atom(self, atom: Atom) -> int:
        key = f"atom {atom}"
        if key not in self._numbers:
            if isinstance(atom, Symbol):
                row: list[Any] = ["symbol", atom.name]
            else:
                name = "quotient"
                if isinstance(atom, Extreme):
                    name = "max" if atom.larger else "min"
                row = [name, *(self.number(part) for part in parts_of(atom))]
            self._add(key, row)
        return self._numbers[key]

    def _add(self, key: str, row: list[Any]) -> None:
        self._numbers[key] = len(self.rows)
        self.rows.append(row)


def computed(rows: Sequence[Sequence[Any]], sizes: Mapping[str, int]) -> list[int]:
    """Return the value of every row of a formula table.

    Raises: ZeroDivisionError where a quotient is by 0.
    """
    found: list[int] = []
    for kind, *operands in rows:
        if kind == "sum":
            total = 0
            for factor, numbers in operands[0]:
                for number in numbers:
                    factor *= found[number]
                total += factor
            found.append(total)
        elif kind == "symbol":
            found.append(sizes[operands[0]])
        else:
            one, other = found[operands[0]], found[operands[1]]
            if kind == "quotient":
                found.append(one // other)
            else:
                found.append(max(one, other) if kind == "max" else min(one, other))
    return found


def guard_holds(sign: int | None, difference: int) -> bool:
    """Say whether a difference has this sign; None is any but 0."""
    return difference != 0 if sign is None else (difference > 0) - (difference < 0) == sign
