"""What a library's callers see: names of C for inputs and outputs, their types, and `NAME.h`."""

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


_TEXT = """\
/* {name}: a model compiled by Vermilion {version} for {targets}.

   {name}_open makes one, {name}_run runs it, {name}_close frees it. A function that returns an
   int returns 0, or a number of `enum vermilion_code`: 1 damaged, 2 wrong use, 3 not supported,
   4 wrong processor, 5 sizes that the code is not for, 7 no memory, 8 a wrong number in an input.
   {name}_error then says what is wrong, where, and what to do about it.

   Threads may share one {name}: their runs take turns. Runs at the same time want one each; code
   and weights are shared. Memory that is handed over stays the caller's. A forked process may go
   on with it. */
#ifndef {upper}_H
#define {upper}_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

typedef struct {name} {name};

{sizes}/* Tensors are dense, in C order, aligned as their elements are. */
typedef struct {name}_inputs {{
{inputs}}} {name}_inputs;

/* An output whose pointer is NULL is not handed out. What is aligned to 16 bytes is written in
   place. `_room` is how many elements there is room for; `_shape` is set by the run. */
typedef struct {name}_outputs {{
{outputs}}} {name}_outputs;

/* Threads of the caller's: `parallel_for` calls task(work, 0) to task(work, count - 1), side by
   side or not, and returns 0 when all have returned. */
typedef struct {name}_pool {{
  size_t workers;
  void *context;
  int (*parallel_for)(void *context, void (*task)(void *work, size_t index), size_t count,
                      void *work);
}} {name}_pool;

/* `workers` threads run it, the caller's among them; 0: as many as are of use here. */
int {name}_open({name} **model, int workers);

int {name}_run({name} *model, const {name}_inputs *inputs, {name}_outputs *outputs);

/* The same on threads of the caller's. */
int {name}_run_on({name} *model, const {name}_inputs *inputs, {name}_outputs *outputs,
                  const {name}_pool *pool);

/* Set the outputs' `_shape` for inputs of these shapes, without computing anything. */
int {name}_shapes({name} *model, const {name}_inputs *inputs, {name}_outputs *outputs);

void {name}_close({name} *model);

/* What the last call that failed in this thread had to say. */
const char *{name}_error(void);

/* The target whose code was chosen for this processor. */
const char *{name}_target(const {name} *model);

#ifdef __cplusplus
}}
#endif
#endif
"""


def header_text(interface: Interface, targets: str, version: str) -> str:
    """Return the text of the header."""
    name = interface.name
    fixed = [field for field in (*interface.inputs, *interface.outputs) if not field.is_open]
    sizes = "".join(
        f"#define {name.upper()}_{field.name.upper()}_SIZE {field.elements}"
        f" /* elements of `{_plain(field.tensor)}` */\n"
        for field in fixed
    )
    return _TEXT.format(
        name=name,
        upper=name.upper(),
        version=version,
        targets=targets,
        sizes=sizes + ("\n" if sizes else ""),
        inputs="".join(_lines(field, is_output=False) for field in interface.inputs)
        or "  char nothing;\n",
        outputs="".join(_lines(field, is_output=True) for field in interface.outputs)
        or "  char nothing;\n",
    )


def _lines(field: Field, *, is_output: bool) -> str:
    constant = "" if is_output else "const "
    about = f"`{_plain(field.tensor)}`, {_plain(field.shape_text)}"
    lines = [f"  {constant}{field.type} *{field.name}; /* {about} */\n"]
    if field.is_open:
        lines.append(f"  int64_t {field.name}_shape[{len(field.shape)}];\n")
        if is_output:
            lines.append(f"  size_t {field.name}_room;\n")
    return "".join(lines)


def _plain(text: str) -> str:
    """Return a name of the model's that cannot end the comment that it stands in."""
    return "".join(c if c.isprintable() else "?" for c in text).replace("*/", "* /")[:200]
