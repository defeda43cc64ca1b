"""The files of a part in machine code: objects, packed weights, the step table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from vermilion.backends.base import Array, CompileOptions
from vermilion.codegen.isa import Isa
from vermilion.codegen.table import ObjectCode
from vermilion.codegen.tensor import SLACK_BYTES

OBJECT_FILE, WEIGHTS_FILE, TABLE_FILE = "program.o", "packed.bin", "kernels.json"
FORMAT = 9


def write_program(
    folder: Path,
    isa: Isa,
    objects: Sequence[ObjectCode],
    packed: Array,
    table: Mapping[str, object],
) -> tuple[str, ...]:
    """Write a program's files; return their names."""
    names = [object_file(number) for number in range(len(objects))]
    about = {
        "format": FORMAT,
        "llvm_cpu": isa.llvm_cpu,
        "objects": [
            {"file": name, "functions": code.functions}
            for name, code in zip(names, objects, strict=True)
        ],
        **table,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, code in zip(names, objects, strict=True):
        (folder / name).write_bytes(code.data)
    with (folder / WEIGHTS_FILE).open("wb") as file:
        file.write(packed.data)
        file.write(bytes(SLACK_BYTES))
    (folder / TABLE_FILE).write_text(json.dumps(about), encoding="utf-8")
    return (*names, WEIGHTS_FILE, TABLE_FILE)


def object_file(number: int) -> str:
    """Return the name of an object file."""
    return OBJECT_FILE if number == 0 else f"program_{number}.o"


def float_storage(options: CompileOptions) -> Literal["f32", "bf16"]:
    """Return how floats are stored in the precision asked for."""
    return "bf16" if options.precision == "bf16" else "f32"
