"""Elementwise arithmetic as a small expression tree, shared by every kernel that has an epilogue.

A tree's leaves are operands of the kernel (`Operand(0)` is its first) and constants. `kind` is the
type in which a node is computed: whatever a tensor is stored as, `float` means float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

Kind = Literal["float", "int", "long", "bool"]

COMPARISONS = frozenset({"equal", "less", "less_equal", "greater", "greater_equal"})


@dataclass(frozen=True)
class Operand:
    """The kernel's operand of that number."""

    index: int
    kind: Kind = "float"


@dataclass(frozen=True)
class Constant:
    """A number."""

    value: float
    kind: Kind = "float"


@dataclass(frozen=True)
class Element:
    """One 32-bit number of an operand that is a table: kernels share code that differ in it."""

    operand: int
    position: int
    kind: Kind = "float"


@dataclass(frozen=True)
class Apply:
    """An operation on one, two or three expressions (`select` takes a condition first)."""

    operation: str
    arguments: tuple[Expression, ...]
    kind: Kind = "float"


@dataclass(frozen=True)
class Convert:
    """The same number in another kind."""

    argument: Expression
    kind: Kind


Expression = Operand | Constant | Element | Apply | Convert


def apply(operation: str, *arguments: Expression) -> Expression:
    """Apply an operation; comparisons give `bool`, all else the kind of the last argument."""
    kind: Kind = "bool" if operation in COMPARISONS else arguments[-1].kind
    return Apply(operation, arguments, kind)


def substitute(expression: Expression, operands: Mapping[int, Expression]) -> Expression:
    """Return the expression with operands replaced."""
    match expression:
        case Operand():
            return operands.get(expression.index, expression)
        case Constant() | Element():
            return expression
        case Apply():
            arguments = tuple(substitute(a, operands) for a in expression.arguments)
            return replace(expression, arguments=arguments)
        case Convert():
            return replace(expression, argument=substitute(expression.argument, operands))


def operands_of(expression: Expression) -> Iterator[Operand]:
    """Yield every operand leaf, repeats included."""
    match expression:
        case Operand():
            yield expression
        case Apply():
            for argument in expression.arguments:
                yield from operands_of(argument)
        case Convert():
            yield from operands_of(expression.argument)
        case Constant() | Element():
            return
