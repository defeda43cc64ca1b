"""The step table of a compiled part: what loading it needs, and nothing of how it was made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vermilion.codegen.tensor import Storage


@dataclass(frozen=True)
class Address:
    """Where an argument points: arena, weights, or input or output number `index`."""

    place: str
    offset: int
    index: int = 0


@dataclass(frozen=True)
class Call:
    """One row of the step table."""

    function: str
    arguments: tuple[Address, ...]
    units: int
    chunk: int
    barrier: bool
    label: str
    operations: int


@dataclass(frozen=True)
class Check:
    """Words that are 0 after a run, unless what `where` names was given a wrong number.

    `offset` and `count` are in words. The number is an index of a dimension of `size`; where that
    is 0, it says that something was divided by 0.
    """

    offset: int
    count: int
    where: str
    size: int

    def complaint(self, word: int) -> str:
        """Say what was wrong, in ONNX Runtime's words."""
        if not self.size:
            return "Integer division by zero"
        return (
            f"indices element out of data bounds, idx={word} must be within the inclusive range "
            f"[{-self.size},{self.size - 1}]"
        )


@dataclass(frozen=True)
class ObjectCode:
    """One object file and the kernels in it."""

    data: bytes
    functions: tuple[str, ...]


@dataclass(frozen=True)
class StepTensor:
    """A tensor that a program keeps in memory, whole after call number `after`.

    Units: `address.offset` in bytes, `strides` in elements.
    """

    name: str
    after: int
    address: Address
    storage: Storage
    shape: tuple[int, ...]
    strides: tuple[int, ...]
