"""Steps of a decoder → machine code, kept in the cache by what it depends on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vermilion.codegen.emit.decoder.panel_product import PanelProductSpec
from vermilion.codegen.emit.decoder.strassen import SevenProductsSpec
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.table import Address, Call
from vermilion.errors import ArtifactError
from vermilion.llm.engine.lowering import Lowered
from vermilion.llm.engine.table import ProgramTable, table_of
from vermilion.runtime.engine_cache import is_our_program, sealed_program
from vermilion.version import code_digest

# Two groups of panels; a gate's unit has two. 1024 tokens on two cores took 2 % longer with an
# eighth of a product, and 1.2 % with twice as many panels of gates.
_MOST_PANELS = 8
_OBJECT, _TABLE = "decoder_{}.o", "decoder.json"


@dataclass(frozen=True, eq=False)
class _Compiled:
    objects: tuple[tuple[bytes, tuple[str, ...]], ...]
    arena_bytes: int
    calls: tuple[Call, ...]


def compile_program(lowered: Lowered, isa: Isa, cache: Path) -> ProgramTable:
    """Return the program of steps, from the cache where it was compiled before."""
    found = _compiled(lowered, isa, cache)
    buffers = [buffer.name for buffer in lowered.inputs]
    return table_of(found.objects, found.arena_bytes, found.calls, buffers)


def _chunk(step: Step) -> int:
    """Return the units a worker takes at a time, 0 where that follows from their number.

    Below 0 it follows from it too, but they are no more than so many: whoever is done with a long
    product waits less for the last.

    A kernel makes of its units those that are there, so that a few hundred may be a few dozen. Of
    few rows one worker does all.
    """
    family, units = step.spec.family, step.spec.units
    max_rows = getattr(step.spec, "max_rows", 0)
    if family in ("row", "heads", "halved_rows"):
        return units if max_rows <= 16 else 4
    if family == "cached_attention":
        return 1 if max_rows <= 16 else units // max_rows
    if isinstance(step.spec, SevenProductsSpec):
        return 1  # of one pair of panels there is enough to do
    if isinstance(step.spec, PanelProductSpec) and max_rows > 16:
        return -_MOST_PANELS // (2 if step.spec.gate else 1)
    return 0


def _key(lowered: Lowered, isa: Isa) -> str:
    """Return what the machine code depends on: shapes and numbers, not the weights' values."""
    names = {id(buffer): index for index, buffer in enumerate(lowered.inputs)}
    parts: list[str] = [code_digest(), repr(isa)]
    for step in lowered.steps:
        parts.append(repr(step.spec))
        for view in step.arguments:
            buffer = view.buffer
            index = names.get(id(buffer), -1)
            parts.append(f"{buffer.place} {index} {buffer.size_bytes} {view.offset} {buffer.name}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _compiled(lowered: Lowered, isa: Isa, cache: Path) -> _Compiled:
    folder = cache / "decoder" / _key(lowered, isa)
    found = _read(folder)
    if found is not None:
        _touch(folder)
    else:
        found = _compile(lowered, isa)
        _write(found, folder)
    return found


def _compile(lowered: Lowered, isa: Isa) -> _Compiled:
    # The compiler is loaded by who compiles; who finds its work in the cache does without.
    from vermilion.codegen.program import compile_steps

    compiled = compile_steps(lowered.steps, lowered.inputs, [], isa, inputs_have_room=True)
    calls = tuple(
        replace(call, chunk=_chunk(step))
        for call, step in zip(compiled.calls, lowered.steps, strict=True)
    )
    objects = tuple((code.data, code.functions) for code in compiled.objects)
    return _Compiled(objects, compiled.arena_bytes, calls)


def _write(compiled: _Compiled, folder: Path) -> None:
    """Write a cache entry aside and rename it: it is there as a whole or not at all."""
    table: dict[str, Any] = {
        "arena_bytes": compiled.arena_bytes,
        "objects": [list(names) for _, names in compiled.objects],
        "digests": [hashlib.sha256(data).hexdigest() for data, _ in compiled.objects],
        "calls": [asdict(call) for call in compiled.calls],
    }
    table = sealed_program(table, folder.name)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
        for number, (data, _) in enumerate(compiled.objects):
            (aside / _OBJECT.format(number)).write_bytes(data)
        (aside / _TABLE).write_text(json.dumps(table), encoding="utf-8")
        if folder.exists():  # damaged: whoever reads it meanwhile finds nothing, and compiles
            shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        raise ArtifactError(
            f"the cache cannot be written: {error.strerror or error}",
            where=str(folder.parent),
            hint="choose another folder with the variable VERMILION_CACHE",
        ) from error
    try:
        aside.rename(folder)
    except OSError:  # another process was faster: its entry is as good
        shutil.rmtree(aside, ignore_errors=True)


def _read(folder: Path) -> _Compiled | None:
    """Read a cache entry; None where it is missing or not what this user wrote there."""
    try:
        table = json.loads((folder / _TABLE).read_text(encoding="utf-8"))
        # What it says is where compiled code reads and writes: every number has to be ours.
        if not is_our_program(table, folder.name):
            return None
        count = len(table["objects"])
        datas = [(folder / _OBJECT.format(number)).read_bytes() for number in range(count)]
    except (OSError, ValueError):
        return None
    if [hashlib.sha256(data).hexdigest() for data in datas] != table["digests"]:
        return None
    calls = tuple(
        Call(**{**row, "arguments": tuple(Address(**one) for one in row["arguments"])})
        for row in table["calls"]
    )
    objects = tuple(
        (data, tuple(names)) for data, names in zip(datas, table["objects"], strict=True)
    )
    return _Compiled(objects, int(table["arena_bytes"]), calls)


def _touch(folder: Path) -> None:
    """Note that an entry was used: what `cache prune` goes by."""
    with contextlib.suppress(OSError):  # a cache that may only be read works as well
        os.utime(folder / _TABLE)
