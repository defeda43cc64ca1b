"""What the module is to be called with: read from text, filled with repeatable numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vermilion.errors import OptionError

if TYPE_CHECKING:
    import torch

# Types that ONNX Runtime takes from numpy, so that the export can be checked.
DATA_TYPES = (
    "float32",
    "float16",
    "float64",
    "int64",
    "int32",
    "int16",
    "int8",
    "uint8",
    "bool",
)

_SHAPE = re.compile(r"[1-9][0-9]*(x[1-9][0-9]*)*", re.ASCII)
_FORM = "write `1x3x224x224`, `ids:1x128` or `ids:1x128:int64`"


@dataclass(frozen=True)
class InputSpec:
    """One input: its name (empty if the user gave none), fixed shape and type."""

    name: str
    shape: tuple[int, ...]
    data_type: str = "float32"

    def __str__(self) -> str:
        name = f"{self.name}:" if self.name else ""
        sizes = "x".join(str(size) for size in self.shape)
        return f"{name}{sizes}" + ("" if self.data_type == "float32" else f":{self.data_type}")


def parse_inputs(texts: Sequence[str]) -> tuple[InputSpec, ...]:
    """Read every input of the module.

    Raises: OptionError, also where a dictionary is given: PyTorch's exporter takes a tuple of
    tensors, and what it says of a dictionary leads nobody to that.
    """
    if isinstance(texts, Mapping):
        raise _dictionary_given(texts)
    if isinstance(texts, str):
        raise OptionError("inputs are given as one text", hint=f'pass a list: `["{texts}"]`')
    if not texts:
        raise OptionError("the module's inputs are not given", hint=f"{_FORM}, one for each input")
    specs = tuple(parse_input(text) for text in texts)
    names = [spec.name for spec in specs if spec.name]
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"input `{name}` is given twice")
    return specs


def parse_input(text: str) -> InputSpec:
    """Read `SHAPE`, `NAME:SHAPE`, `SHAPE:TYPE` or `NAME:SHAPE:TYPE`.

    Raises: OptionError.
    """
    words = text.split(":")
    name = "" if _SHAPE.fullmatch(words[0]) else words.pop(0)
    if not words or not _SHAPE.fullmatch(words[0]) or len(words) > 2:
        raise OptionError(f"`{text}` is not an input", hint=_FORM)
    data_type = words[1] if len(words) == 2 else "float32"
    if data_type not in DATA_TYPES:
        known = ", ".join(DATA_TYPES)
        raise OptionError(f"`{data_type}` is not a type", where=text, hint=f"known are {known}")
    return InputSpec(name, tuple(int(size) for size in words[0].split("x")), data_type)


def sample(spec: InputSpec, seed: int) -> torch.Tensor:
    """Fill an input: normal numbers, zeros and ones for integers (safe as ids and as masks)."""
    import torch

    random = torch.Generator().manual_seed(seed)
    kind: torch.dtype = getattr(torch, spec.data_type)
    if kind.is_floating_point:
        return torch.randn(spec.shape, generator=random).to(kind)
    return torch.randint(0, 2, spec.shape, generator=random).to(kind)


def _dictionary_given(inputs: Mapping[object, object]) -> OptionError:
    rows = []
    for name, value in inputs.items():
        shape = getattr(value, "shape", value)
        if isinstance(shape, (tuple, list)):
            rows.append(f'"{name}:{"x".join(str(size) for size in shape)}"')
        else:
            rows.append(f'"{name}:{shape}"')
    return OptionError(
        "inputs are given as a dictionary, and `torch.onnx.export` takes its example inputs as a "
        "tuple of tensors: a dictionary in that place ends in a type error",
        hint=f"pass a list, one text an input: `[{', '.join(rows)}]`",
    )
