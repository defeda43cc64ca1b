"""What a library's callers see: names of C for the model's inputs and outputs, and their types."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from vermilion.errors import OptionError, UnsupportedError
from vermilion.runtime.manifest import TensorRecord

# ONNX Runtime's spelling → the type in C, and its name in `vermilion.h`. Halves are given as bits.
C_TYPES = {
    "tensor(float)": ("float", "VERMILION_FLOAT"),
    "tensor(uint8)": ("uint8_t", "VERMILION_UINT8"),
    "tensor(int8)": ("int8_t", "VERMILION_INT8"),
    "tensor(uint16)": ("uint16_t", "VERMILION_UINT16"),
    "tensor(int16)": ("int16_t", "VERMILION_INT16"),
    "tensor(int32)": ("int32_t", "VERMILION_INT32"),
    "tensor(int64)": ("int64_t", "VERMILION_INT64"),
    "tensor(bool)": ("uint8_t", "VERMILION_BOOL"),
    "tensor(float16)": ("uint16_t", "VERMILION_FLOAT16"),
    "tensor(bfloat16)": ("uint16_t", "VERMILION_BFLOAT16"),
}
_MOST_RANK = 16
# Words of C and C++ that no field can be called.
# fmt: off
_RESERVED = frozenset((
    "alignas", "alignof", "and", "asm", "auto", "bool", "break", "case", "catch", "char", "class",
    "const", "continue", "default", "delete", "do", "double", "else", "enum", "explicit",
    "export", "extern", "false", "float", "for", "friend", "goto", "if", "inline", "int", "long",
    "mutable", "namespace", "new", "not", "operator", "or", "private", "protected", "public",
    "register", "restrict", "return", "short", "signed", "sizeof", "static", "struct", "switch",
    "template", "this", "throw", "true", "try", "typedef", "typename", "union", "unsigned",
    "using", "virtual", "void", "volatile", "while", "xor",
))
# fmt: on


@dataclass(frozen=True)
class Field:
    """An input or output as a field of a structure. An open dimension of `shape` is None."""

    name: str
    tensor: str
    type: str
    number: str
    shape: tuple[int | None, ...]
    dimensions: tuple[str, ...]  # as the model calls them

    @cached_property
    def is_open(self) -> bool:
        """Whether a size is known only when it runs."""
        return None in self.shape

    @property
    def elements(self) -> int:
        """How many elements a tensor of fixed sizes has."""
        return math.prod(size or 0 for size in self.shape)

    @property
    def shape_text(self) -> str:
        """The shape for people: `1×3×h×224`."""
        return "×".join(self.dimensions) or "scalar"


@dataclass(frozen=True)
class Interface:
    """The structures of a model called `name`."""

    name: str
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]


def interface_of(
    name: str, inputs: Sequence[TensorRecord], outputs: Sequence[TensorRecord]
) -> Interface:
    """Return the names and types that a model has in C.

    Raises: UnsupportedError for tensors that have no type in C.
    """
    return Interface(checked_name(name), _fields(inputs), _fields(outputs))


def checked_name(name: str) -> str:
    """Return a name of functions and types in C, from that of a file.

    Raises: OptionError where nothing of it is left.
    """
    found = re.sub(r"\W+", "_", name.removeprefix("lib"), flags=re.ASCII).strip("_")
    if not found:
        raise OptionError(f"`{name}` has no letter that C knows", hint="name the file in ASCII")
    return f"m_{found}" if found[0].isdigit() or found in _RESERVED else found


def _fields(records: Iterable[TensorRecord]) -> tuple[Field, ...]:
    fields: list[Field] = []
    taken: set[str] = set()
    for number, record in enumerate(records):
        if record.type not in C_TYPES or record.shape is None or len(record.shape) > _MOST_RANK:
            raise UnsupportedError(
                f"`{record.name}` is {record.type}, of shape {record.shape}: C has no such tensor",
                hint="run it in Python, with `vermilion run`",
            )
        name = re.sub(r"\W+", "_", record.name, flags=re.ASCII).strip("_") or f"tensor_{number}"
        if name[0].isdigit() or name in _RESERVED:
            name = f"t_{name}"
        while name in taken or f"{name}_shape" in taken or name.removesuffix("_shape") in taken:
            name += f"_{number}"
        taken |= {name, f"{name}_shape", f"{name}_room"} if None in _shape(record) else {name}
        fields.append(
            Field(
                name, record.name, *C_TYPES[record.type], _shape(record),
                tuple("?" if size is None else str(size) for size in record.shape),
            )
        )  # fmt: skip
    return tuple(fields)


def _shape(record: TensorRecord) -> tuple[int | None, ...]:
    return tuple(size if isinstance(size, int) else None for size in record.shape or ())
