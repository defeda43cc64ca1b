"""A step of a compiled part: which kernel, on which tensors, in how many units of work."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from vermilion.codegen.emit.builder import Module
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import View
from vermilion.ir.formula import Formula, Symbol
from vermilion.ir.symbolic import Size


class Spec(Protocol):
    """Everything that a kernel's code depends on: equal specs share one function.

    A spec is a frozen dataclass, so that its repr tells it apart from every other.
    The function's signature is `void(ptr arguments, i64 begin, i64 end)`: an array of pointers,
    and the range of units that this call computes. Sizes that only a run has follow the pointers,
    each an i64.
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
    that the step computes. `only_if` is 1 where the step is run and 0 where it is left out, which
    may depend on the sizes of a run.
    """

    spec: Spec
    arguments: tuple[View, ...]
    writes: tuple[View, ...]
    nodes: tuple[str, ...] = ()
    operations: int = 0
    only_if: int = 1

    @cached_property
    def code(self) -> RunTimeSpec:
        """What the code depends on: the spec, its sizes of a run by number."""
        return without_sizes(self.spec)

    @cached_property
    def function(self) -> str:
        """Name of the function: equal for equal specs."""
        return function_name(self.code.spec)


@dataclass(frozen=True)
class RunTimeSpec:
    """A spec in which sizes of a run stand as formulas of their numbers, and those sizes."""

    spec: Spec
    sizes: tuple[Size, ...]


def size_name(number: int) -> str:
    """Return the name of a kernel's size of that number; `emit.builder` reads it."""
    return f"#{number}"


def without_sizes(spec: Spec) -> RunTimeSpec:
    """Return a spec with every size that only a run has replaced by its number."""
    found: dict[str, Size] = {}

    def settled(part: Any) -> Any:
        if isinstance(part, Size):
            found.setdefault(str(part.formula), part)
            number = list(found).index(str(part.formula))
            return Formula(((1, (Symbol(size_name(number)),)),))
        if isinstance(part, tuple):
            items = [settled(item) for item in part]
            return part if all(a is b for a, b in zip(items, part, strict=True)) else tuple(items)
        if is_dataclass(part) and not isinstance(part, type):
            changed = {}
            for field in fields(part):
                value = getattr(part, field.name)
                new = settled(value)
                if new is not value:
                    changed[field.name] = new
            return replace(part, **changed) if changed else part
        return part

    changed = settled(spec)
    return RunTimeSpec(changed, tuple(found.values()))


def function_name(spec: Spec) -> str:
    """Return a name that is equal for equal specs."""
    digest = hashlib.sha256(repr(spec).encode()).hexdigest()[:16]
    return f"{spec.family}_{digest}"
