"""The step table of a compiled part: what loading it needs, and nothing of how it was made."""

from __future__ import annotations

from dataclasses import dataclass


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
    meet: bool
    label: str
    operations: int


@dataclass(frozen=True)
class ObjectCode:
    """One object file and the kernels in it."""

    data: bytes
    functions: tuple[str, ...]
