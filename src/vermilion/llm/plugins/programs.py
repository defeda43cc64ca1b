"""The engine's programs for one architecture: what it would compile when it opens such a model.

The engine keeps its machine code in a cache, by keys of its own: shapes, numbers, processor and
version, no weights. Its files are taken as they are.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vermilion.errors import UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.llm.list_operators import OperatorList
from vermilion.llm.plugins.identity import Number
from vermilion.store.namespaces import PROGRAMS
from vermilion.version import code_digest


@dataclass(frozen=True)
class Programs:
    """The programs of one architecture, as the files of the engine's cache, by relative name."""

    architecture: str
    number: Number
    target: str
    files: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True)
class CompiledPrograms:
    """What the engine needs for a model; None with the reason where it does not take it."""

    programs: Programs | None
    compiled: bool
    reason: str = ""


def architecture_of(model: OperatorList, number: Number) -> str:
    """Return a digest that is equal for models whose programs are equal: fine-tunes have one."""
    operators = sorted((repr(row.operator.key), row.operator.count) for row in model.rows)
    parts = [
        *(model.family, model.layers, model.context, number, find_target("cpu").name),
        *(code_digest(), operators, sorted(model.other_nodes.items())),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def compile_programs(
    folder: Path, model: OperatorList, number: Number, have: Mapping[str, Programs]
) -> CompiledPrograms:
    """Let the engine open a model, with what is there already by architecture, and keep its code.

    Raises: ModelError for a damaged folder.
    """
    from vermilion.llm.engine import open_native_decoder

    architecture = architecture_of(model, number)
    known = have.get(architecture)
    with tempfile.TemporaryDirectory(prefix="vermilion.programs.") as name:
        cache = Path(name)
        if known is not None:
            write_programs(known, cache)
        try:
            open_native_decoder(folder, threads=1, prefill=number, cache=cache)
        except UnsupportedError as error:
            return CompiledPrograms(None, False, error.message)
        files = _files(cache)
    target = find_target("cpu").name
    is_new = known is None or set(files) != set(known.files)
    return CompiledPrograms(Programs(architecture, number, target, files), is_new)


def write_programs(programs: Programs, cache: Path) -> None:
    """Write programs into a cache of the engine, each where it will look."""
    for name, data in programs.files.items():
        path = cache / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _files(cache: Path) -> dict[str, bytes]:
    return {
        path.relative_to(cache).as_posix(): path.read_bytes()
        for path in sorted((cache / PROGRAMS.name).rglob("*"))
        if path.is_file()
    }
