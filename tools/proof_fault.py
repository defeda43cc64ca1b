"""What a fault is: one line of the compiler, changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# Number format → precision and target of `compile_model`. The sizes of inputs are dynamic in some.
FORMATS: Mapping[str, tuple[str, str]] = {
    "fp32": ("fp32", "cpu"),
    "bf16": ("bf16", "cpu"),
    "int8": ("auto", "cpu"),
    "exact": ("auto", "cpu"),
    "dynamic-fp32": ("fp32", "cpu"),
    "dynamic-bf16": ("bf16", "cpu"),
    "gpu-fp32": ("fp32", "gfx1100"),
    "gpu-fp16": ("fp16", "gfx1100"),
}


@dataclass(frozen=True)
class Fault:
    """One change: `old` stands in `file` once and becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    kind: str
    model: str
    formats: tuple[str, ...] = ("fp32",)
    target: str = ""


EMIT, LOWER = "src/vermilion/codegen/emit/", "src/vermilion/codegen/lower/"
CODE, IR = "src/vermilion/codegen/", "src/vermilion/ir/"
IREE = "src/vermilion/backends/iree/"

_Row = tuple[str, str, str, str, str]


def in_file(
    file: str, formats: tuple[str, ...], rows: Iterable[_Row], target: str = ""
) -> list[Fault]:
    """Return faults of one file: kind, name, model, old text, new text."""
    return [
        Fault(name, file, old, new, kind, model, formats, target)
        for kind, name, model, old, new in rows
    ]
