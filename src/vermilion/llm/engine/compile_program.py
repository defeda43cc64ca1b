"""Steps of a decoder → machine code, kept in the cache by what it depends on."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vermilion.codegen.emit.decoder.panel_product import PanelProductSpec
from vermilion.codegen.emit.decoder.strassen import SevenProductsSpec
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.table import ProgramTable, table_of
from vermilion.llm.engine.lowering import Lowered
from vermilion.store.entry import Entry, EntryWriter
from vermilion.store.namespaces import PROGRAMS
from vermilion.store.store import Store
from vermilion.version import code_digest

# Two groups of panels; a gate's unit has two. 1024 tokens on two cores took 2 % longer with an
# eighth of a product, and 1.2 % with twice as many panels of gates.
_MOST_PANELS = 8
_OBJECT = "decoder_{}.o"


def compile_program(lowered: Lowered, isa: Isa, cache: Path) -> ProgramTable:
    """Return the program of steps, from the cache where it was compiled before."""
    entry = Store(cache).get_or_make(
        PROGRAMS, _key(lowered, isa), lambda writer: _write(_compile(lowered, isa), writer)
    )
    return _compile(lowered, isa) if entry is None else _read(entry)


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


def _compile(lowered: Lowered, isa: Isa) -> ProgramTable:
    # The compiler is loaded by who compiles; who finds its work in the cache does without.
    from vermilion.codegen.program import compile_steps

    compiled = compile_steps(lowered.steps, lowered.inputs, [], isa, inputs_have_room=True)
    calls = [
        replace(call, chunk=_chunk(step))
        for call, step in zip(compiled.calls, lowered.steps, strict=True)
    ]
    buffers = {("input", index): buffer.name for index, buffer in enumerate(lowered.inputs)}
    return table_of(compiled.objects, compiled.arena_bytes, calls, buffers)


def _write(table: ProgramTable, writer: EntryWriter) -> dict[str, Any]:
    """Write the objects; return what else there is of the table."""
    for number, code in enumerate(table.objects):
        writer.write(_OBJECT.format(number), code.data)
    rows = {"calls": table.calls.tolist(), "addresses": table.addresses.tolist()}
    return {**table.about(), **rows}


def _read(entry: Entry) -> ProgramTable:
    about = entry.about
    objects = [
        bytes(entry.files[_OBJECT.format(number)]) for number in range(len(about["objects"]))
    ]
    calls, addresses = (
        np.array(about[kind], np.int64).reshape(-1, columns)
        for kind, columns in (("calls", 5), ("addresses", 2))
    )
    return ProgramTable.of(about, objects, calls, addresses)
