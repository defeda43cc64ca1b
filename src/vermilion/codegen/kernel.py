"""A step of a compiled part: which kernel, on which tensors, in how many units of work."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from vermilion.codegen.emit.builder import Module
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import View


class Spec(Protocol):
    """Everything that a kernel's code depends on: equal specs share one function.

    A spec is a frozen dataclass, so that its repr tells it apart from every other.
    The function's signature is `void(ptr arguments, i64 begin, i64 end)`: an array of pointers,
    and the range of units that this call computes.
    """

    @property
    def family(self) -> str:
        """Short name of the kernel's family: `map`, `conv`."""

    @property
    def units(self) -> int:
        """Units of work that may run in parallel, in any order."""

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function into the module."""


@dataclass(frozen=True)
class Step:
    """One kernel call: `arguments` are pointers to the first elements of these views.

    `writes` lists the views that are written, all others are read. `nodes` names the ONNX nodes
    that the step computes.
    """

    spec: Spec
    arguments: tuple[View, ...]
    writes: tuple[View, ...]
    nodes: tuple[str, ...] = ()
    operations: int = 0

    @cached_property
    def function(self) -> str:
        """Name of the function: equal for equal specs."""
        return function_name(self.spec)


def function_name(spec: Spec) -> str:
    """Return a name that is equal for equal specs."""
    digest = hashlib.sha256(repr(spec).encode()).hexdigest()[:16]
    return f"{spec.family}_{digest}"
