"""Sizes that are known when a program runs: formulas over symbols, and integers that carry one.

A `Size` is an int, with the value that its formula has at an example of every symbol, so code that
computes with shapes needs no second version. What it computes is right at other sizes if two
lowerings at different examples give the same formulas; who lowers checks that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsInt

import numpy as np
from numpy.typing import NDArray

from vermilion.ir.formula import Extreme, Formula, Number, Symbol, at_least, formula

if TYPE_CHECKING:
    import onnx_ir as ir


class Size(int):
    """An int, the value of a formula at an example of its symbols."""

    formula: Formula

    @staticmethod
    def of(text: Formula, examples: Mapping[str, int]) -> int:
        """Return the value of a formula at these examples; a plain int where it is constant."""
        return _sized(text, text.at(examples))

    def __repr__(self) -> str:
        return f"<{self.formula}>"

    def __add__(self, other: Any) -> Any:
        return _with(self, other, int.__add__, Formula.__add__)

    def __radd__(self, other: Any) -> Any:
        return _with(self, other, int.__radd__, Formula.__add__)

    def __sub__(self, other: Any) -> Any:
        return _with(self, other, int.__sub__, Formula.__sub__)

    def __rsub__(self, other: Any) -> Any:
        return _with(self, other, int.__rsub__, Formula.__rsub__)

    def __mul__(self, other: Any) -> Any:
        return _with(self, other, int.__mul__, Formula.__mul__)

    def __rmul__(self, other: Any) -> Any:
        return _with(self, other, int.__rmul__, Formula.__mul__)

    def __floordiv__(self, other: Any) -> Any:
        return _with(self, other, int.__floordiv__, Formula.__floordiv__)

    def __rfloordiv__(self, other: Any) -> Any:
        return _with(self, other, int.__rfloordiv__, Formula.__rfloordiv__)

    def __mod__(self, other: Any) -> Any:
        return _with(self, other, int.__mod__, Formula.__mod__)

    def __rmod__(self, other: Any) -> Any:
        return _with(self, other, int.__rmod__, Formula.__rmod__)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __neg__(self) -> Any:
        return _sized(-self.formula, -int(self))

    def __pos__(self) -> Any:
        return self

    def __eq__(self, other: object) -> Any:
        return _compared(self, other, "==", int.__eq__(self, other))

    def __ne__(self, other: object) -> Any:
        return _compared(self, other, "!=", int.__ne__(self, other))

    def __lt__(self, other: int) -> Any:
        return _compared(self, other, "<", int.__lt__(self, other))

    def __le__(self, other: int) -> Any:
        return _compared(self, other, "<=", int.__le__(self, other))

    def __gt__(self, other: int) -> Any:
        return _compared(self, other, ">", int.__gt__(self, other))

    def __ge__(self, other: int) -> Any:
        return _compared(self, other, ">=", int.__ge__(self, other))

    def __bool__(self) -> bool:
        return bool(_compared(self, 0, "!=", int.__bool__(self)))

    __hash__ = int.__hash__

    def __deepcopy__(self, memo: object) -> Size:
        return self


def symbol(name: str, example: int) -> Size:
    """Return the size of that name."""
    size = _sized(Formula(((1, (Symbol(name),)),)), example)
    assert isinstance(size, Size)
    return size


def larger(one: int, other: int) -> int:
    """Return the larger of two sizes, whichever it is when the program runs."""
    return _extreme(one, other, is_larger=True)


def lesser(one: int, other: int) -> int:
    """Return the lesser of two sizes, whichever it is when the program runs."""
    return _extreme(one, other, is_larger=False)


def is_known(number: object) -> bool:
    """Say whether a number is known before the program runs."""
    return not isinstance(number, Size | Formula)


def is_one(number: object) -> bool:
    """Say whether a size is 1 whatever is run."""
    return is_known(number) and number == 1


def same(one: int, other: int) -> bool:
    """Say whether two sizes are equal whatever is run."""
    return formula(one).text == formula(other).text


def alike(one: Sequence[int] | None, other: Sequence[int] | None) -> bool:
    """Say whether two shapes are known and equal, for a choice that is right where they are not.

    That they are equal is asked of every run; that they are not, as at the examples, is not.
    """
    if one is None or other is None or len(one) != len(other):
        return False
    if any(int(a) != int(b) for a, b in zip(one, other, strict=True)):
        return False
    return all(a == b for a, b in zip(one, other, strict=True))


def typical(number: int) -> int:
    """Return a plain int to choose by, what is best and not what is right.

    A symbol counts as its example's `typical`, or as `_TYPICAL`; the result is 1 at least.
    """
    if is_known(number):
        return int(number)
    current = _CURRENT.get()
    found = formula(number).at(_Typical(current.typical if current is not None else {}))
    return max(1, found)


# A text of this length is what choices are good for, or a picture of this height that is counted in
# tiles: `H/32` is the name of how many of 32 rows there are.
_TYPICAL, _TYPICAL_SIDE = 128, 384


class _Typical(dict[str, int]):
    def __missing__(self, key: str) -> int:
        _, is_counted, rows = key.rpartition("/")
        return _TYPICAL_SIDE // int(rows) if is_counted else _TYPICAL


def _extreme(one: int, other: int, *, is_larger: bool) -> int:
    if is_known(one) and is_known(other):
        return max(one, other) if is_larger else min(one, other)
    a, b = formula(one), formula(other)
    if at_least(a - b, 0):
        return one if is_larger else other
    if at_least(b - a, 0):
        return other if is_larger else one
    first, second = sorted((a, b), key=str)
    result: Any = Formula(((1, (Extreme(is_larger, first, second),)),))
    if any(isinstance(number, Formula) for number in (one, other)):
        return result  # type: ignore[no-any-return]
    return _sized(result, max(int(one), int(other)) if is_larger else min(int(one), int(other)))


_IS_STRICT: ContextVar[bool] = ContextVar("is_strict", default=False)


@contextmanager
def strict_comparisons() -> Iterator[None]:
    """Note comparisons with 1 too: for what decides whether, or as what, a node can be run."""
    token = _IS_STRICT.set(True)
    try:
        yield
    finally:
        _IS_STRICT.reset(token)


_ABOUT_ONE = {("==", 1), ("!=", 1), (">", 1), ("<=", 1), (">=", 2), ("<", 2)}


def _compared(one: Size, other: object, operation: str, result: Any) -> Any:
    """Note how a comparison came out, which a run of other sizes must not contradict."""
    current = _CURRENT.get()
    if current is None or result is NotImplemented or not isinstance(other, int):
        return result
    difference = one.formula - formula(other)
    if not difference.terms or difference.constant is not None:
        return result
    # What is written for sizes of more than 1 is right for 1 too: strides of what has one element
    # are never used. What decides about a size is not.
    if not _IS_STRICT.get() and is_known(other) and (operation, int(other)) in _ABOUT_ONE:
        return result
    value = int(one) - int(other)
    sign = (value > 0) - (value < 0)
    if operation in ("==", "!="):
        guard = Guard(difference, 0 if sign == 0 else None)
    else:
        guard = Guard(_strict(difference, operation, sign), 1)
    if not guard.always_holds:
        current.guards.setdefault(f"{guard.difference} {guard.sign}", guard)
    return result


def _strict(difference: Formula, operation: str, sign: int) -> Formula:
    """Return what is over 0 exactly where the comparison comes out as it did."""
    is_above = sign > 0
    match operation:
        case "<":  # below 0, or not
            return -difference if sign < 0 else difference + 1
        case ">=":
            return difference + 1 if sign >= 0 else -difference
        case ">":
            return difference if is_above else -difference + 1
        case _:
            return difference if is_above else -difference + 1


def _with(
    one: Size,
    other: Any,
    plain: Callable[[int, int], Any],
    formulas: Callable[[Formula, Number], Formula],
) -> Any:
    value = plain(one, other)
    if value is NotImplemented or not isinstance(other, int):
        return value
    return _sized(formulas(one.formula, other), value)


def _sized(text: Formula, value: SupportsInt) -> int:
    if text.constant is not None:
        return int(value)
    size = Size(value)
    size.formula = text
    return size


@dataclass(frozen=True)
class Guard:
    """What must hold at the sizes of a run: a difference compared with 0 as it was at the example.

    `sign` is -1, 0, 1 for a difference that must be below, equal to or above 0, and None for one
    that must not be 0.
    """

    difference: Formula
    sign: int | None

    @property
    def always_holds(self) -> bool:
        """Whether it is known to hold whatever is run."""
        if self.sign == 0:
            return not self.difference.terms
        is_above = at_least(self.difference, 1)
        is_below = at_least(-self.difference, 1)
        if self.sign is None:
            return is_above or is_below
        return is_above if self.sign > 0 else is_below


@dataclass
class Examples:
    """The sizes of a model that is open: what each dimension's text stands for, and small tensors.

    `values` are tensors of whole numbers that follow from sizes alone, by their name. `typical` are
    the sizes that choices are made for, of symbols that have one of their own.
    """

    sizes: dict[str, int]
    values: dict[str, NDArray[Any]]
    guards: dict[str, Guard] = field(default_factory=dict)
    typical: dict[str, int] = field(default_factory=dict)


_CURRENT: ContextVar[Examples | None] = ContextVar("examples", default=None)


@contextmanager
def examples(current: Examples) -> Iterator[Examples]:
    """Take open dimensions for the sizes that these examples have, as long as this is entered."""
    token = _CURRENT.set(current)
    try:
        yield current
    finally:
        _CURRENT.reset(token)


def size_of(dimension: ir.SymbolicDim) -> int | None:
    """Return the size of an open dimension, None where no example says one."""
    current = _CURRENT.get()
    return None if current is None else current.sizes.get(str(dimension.value))


def known_value(name: str | None) -> NDArray[Any] | None:
    """Return a tensor of whole numbers that follows from sizes alone, None where it does not."""
    current = _CURRENT.get()
    return None if current is None or name is None else current.values.get(name)


def note_value(name: str | None, numbers: Sequence[int] | int) -> None:
    """Note whole numbers, or one, by their name, if some are sizes with a formula."""
    current = _CURRENT.get()
    is_single = isinstance(numbers, int)
    listed = [numbers] if isinstance(numbers, int) else list(numbers)
    if current is None or name is None or all(map(is_known, listed)):
        return
    vector = np.empty(len(listed), object)
    vector[:] = listed
    current.values[name] = vector.reshape(()) if is_single else vector


def shape_of_sizes(sizes: Iterable[int]) -> ir.Shape:
    """Return a graph's shape; sizes with a formula are open dimensions whose text is its."""
    import onnx_ir as ir  # who runs a program only computes formulas

    dims: list[int | ir.SymbolicDim] = []
    current = _CURRENT.get()
    for size in sizes:
        if isinstance(size, Size):
            assert current is not None, "sizes are read and written by the same examples"
            current.sizes.setdefault(str(size.formula), size)
            dims.append(ir.SymbolicDim(str(size.formula)))
        else:
            dims.append(int(size))
    return ir.Shape(dims)
