"""One call of an operator: what its function is given, and how functions are listed in tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import ModelError, UnsupportedError
from vermilion.ir.attributes import integer, integers, number, text
from vermilion.ir.opset import where

Array = NDArray[Any]


@dataclass(frozen=True)
class Typed:
    """A result whose type is not the one of the operator's first float input."""

    array: Array
    dtype: ir.DataType


# A tensor, a sequence of tensors, or an optional that holds nothing.
Held: TypeAlias = Any
Result: TypeAlias = Any
RunGraph = Callable[[ir.Graph, Sequence[Held]], list[Held]]


@dataclass(frozen=True)
class Call:
    """One node with its inputs. `types` are the declared ones, which float64 does not show."""

    node: ir.Node
    version: int
    inputs: tuple[Held, ...]
    types: tuple[ir.DataType | None, ...]
    is_wide: bool
    run_graph: RunGraph

    def has(self, index: int) -> bool:
        """Say whether an input is there."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def __getitem__(self, index: int) -> Array:
        """Return an input that has to be there."""
        if not self.has(index):
            raise self.error(f"its input {index} is missing")
        array: Array = self.inputs[index]
        return array

    def get(self, index: int) -> Array | None:
        """Return an input, None where it is left out."""
        return self[index] if self.has(index) else None

    def type(self, index: int) -> ir.DataType:
        """Return the declared type of an input that has to be there."""
        found = self.types[index] if index < len(self.types) else None
        if found is None:
            raise self.error(f"its input {index} is missing")
        return found

    def ints(self, index: int) -> list[int]:
        """Return an input of whole numbers as a list."""
        return [int(value) for value in self[index].reshape(-1)]

    def scalar(self, index: int) -> Any:
        """Return an input that is one number.

        Raises: ModelError where it is none or several.
        """
        array = self[index]
        if array.size != 1:
            raise self.error(f"its input {index} has {array.size} elements, and has to be one")
        return array.reshape(-1)[0]

    def reads(self, index: int) -> bool:
        """Say whether an output is wanted."""
        return index < len(self.node.outputs) and bool(self.node.outputs[index].name)

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a whole number of the node."""
        return integer(self.node, name, default)

    def integers(self, name: str) -> list[int] | None:
        """Return a list of whole numbers, None where it is not written."""
        found = integers(self.node, name, None)
        return None if found is None else list(found)

    def number(self, name: str, default: float) -> float:
        """Return a float attribute."""
        return number(self.node, name, default)

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        return text(self.node, name, default)

    def axis(self, value: int, rank: int) -> int:
        """Return an axis counted from the front.

        Raises: ModelError where the tensor has no such axis.
        """
        if not -rank <= value < rank:
            raise self.error(f"axis {value} is not in a tensor of {rank} dimensions")
        return value % rank

    def error(self, message: str) -> ModelError:
        """Return the error for data that the operator must not be given."""
        return ModelError(
            message,
            where=where(self.node),
            hint="what the node got does not fit it: check the model and its inputs",
        )

    def unsupported(self, message: str) -> UnsupportedError:
        """Return the error for a form of the operator that is not interpreted."""
        return UnsupportedError(
            message, where=where(self.node), hint="ONNX Runtime may have a kernel for it"
        )


Function = Callable[[Call], Result]


@dataclass(frozen=True)
class Row:
    """What an operator does from version `since` on.

    One that moves data gets floats as they are held and its results are left alone; any other
    gets them in float64, and what it returns in float64 is rounded to the type of the first.
    """

    function: Function
    moves: bool = False
    since: int = 1


Table = Mapping[str, tuple[Row, ...]]


def computes(function: Function) -> tuple[Row, ...]:
    """Return the row of an operator whose meaning never changed."""
    return (Row(function),)


def moves(function: Function) -> tuple[Row, ...]:
    """Return the row of an operator that moves data and whose meaning never changed."""
    return (Row(function, moves=True),)


def versions(*rows: tuple[int, Function]) -> tuple[Row, ...]:
    """Return rows of an operator that means something else from some version on."""
    return tuple(Row(function, since=since) for since, function in rows)


def over_axis(array: Array, axis: int, rank: int) -> Array:
    """Return a vector with dimensions of 1 so that it runs along `axis` of `rank` dimensions."""
    shape = [1] * rank
    shape[axis] = array.size
    return array.reshape(shape)


def wrapped_int32(array: Array) -> Array:
    """Return exact whole numbers in float64 as int32, which wraps."""
    return array.astype(np.int64).astype(np.int32)
