"""Parts compiled to machine code by our own generator and run by our own workers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vermilion.backends.base import (
    Availability,
    Claim,
    CompileOptions,
    ModelFacts,
    Numerics,
    Part,
    PartFiles,
    Program,
)
from vermilion.backends.native_files import (
    FORMAT,
    TABLE_FILE,
    WEIGHTS_FILE,
    float_storage,
    write_program,
)
from vermilion.backends.native_open import (
    OpenClaims,
    OpenExecutable,
    check_open_part,
    compile_open_part,
    open_claims,
)
from vermilion.backends.native_run import BatchExecutable, NativeExecutable, words_of
from vermilion.codegen.isa import isa_of
from vermilion.codegen.load import LoadedProgram
from vermilion.codegen.open_table import OpenTable
from vermilion.codegen.table import Address, Call, ObjectCode, table_of
from vermilion.codegen.tensor import View
from vermilion.codegen.watch import NUMPY
from vermilion.codegen.workers import HEAP, Memory, aligned_bytes
from vermilion.cores import usable_cores
from vermilion.errors import ArtifactError, Refusal
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import Target

if TYPE_CHECKING:
    import onnx_ir as ir

    from vermilion.codegen.lower.open_sizes import OpenModel
    from vermilion.codegen.lower.part import LoweredPart

_PORTS = ("input", "output", "checks")


class NativeBackend:
    """The contract of `backends.base` for generated machine code."""

    name = "native"

    def __init__(self, memory: Memory = HEAP) -> None:
        self._memory = memory
        self._claims: OpenClaims | None = None

    def available(self, target: Target) -> Availability:
        """Say whether code for `target` runs here: its instructions must be this machine's."""
        missing = sorted(target.features - find_target("cpu").features)
        if missing:
            return Availability(
                usable=False,
                reason=f"this machine has no {', '.join(missing)}",
                hint="compile for `cpu`, which is what this machine is",
            )
        return Availability(usable=True)

    def claim(self, node: ir.Node, facts: ModelFacts, target: Target) -> Claim | Refusal:
        """Take what the generator has a rule for."""
        from vermilion.codegen.lower.rules import OPEN_SHAPE, refusal

        refused = refusal(node)
        if refused is not None and facts.symbolic_dimensions and facts.model is not None:
            refused = self._at_open_sizes(facts.model, node)
        if refused is not None and refused.reason == OPEN_SHAPE and facts.symbolic_dimensions:
            return replace(refused, hint=f"fix what is dynamic: `{facts.bind}`")
        return refused or Claim()

    def _at_open_sizes(self, model: ir.Model, node: ir.Node) -> Refusal | None:
        """Say why a node of a model with open dimensions is not taken, None where it is."""
        if self._claims is None or self._claims.model is not model:
            self._claims = open_claims(model)
        return self._claims.reasons[node]

    def check(self, part: Part, target: Target, options: CompileOptions) -> None:
        """Lower a part and write its kernels, without machine code."""
        from vermilion.codegen.lower.open_sizes import is_open
        from vermilion.codegen.program import module_text

        if is_open(part.model):
            check_open_part(part, isa_of(target), options)
            return
        lowered, _ = _lowered(part, target, options, None)
        module_text(lowered.steps, isa_of(target))

    def compile(self, part: Part, target: Target, options: CompileOptions, folder: Path) -> Program:
        """Write machine code, packed weights and the step table."""
        # The compiler is loaded by who compiles; who opens a bundle does without.
        from vermilion.codegen.dump import write_dump
        from vermilion.codegen.lower.batch_split import any_batch
        from vermilion.codegen.lower.open_sizes import is_open
        from vermilion.codegen.program import compile_steps

        isa = isa_of(target)
        entry = any_batch(part.model)
        if entry is None and is_open(part.model):
            return compile_open_part(part, isa, options, folder)
        lowered, entries = _lowered(part, target, options, entry)
        if options.dump is not None:
            dumped = options.dump / part.name
            write_dump(dumped, lowered.steps, isa)
        compiled = compile_steps(
            lowered.steps,
            [view.buffer for view in lowered.inputs],
            [view.buffer for view in lowered.outputs],
            isa,
            entries=entries,
            values=lowered.values,
        )
        table = {
            "arena_bytes": compiled.arena_bytes,
            "most_workers": compiled.most_workers,
            "entries": entries,
            "any_batch": entry is not None,
            "barriers_again": compiled.barriers_again,
            "inputs": [_tensor(view, entries) for view in lowered.inputs],
            "outputs": [_tensor(view, entries) for view in lowered.outputs],
            "checks": [asdict(check) for check in compiled.checks],
            "once": [asdict(call) for call in compiled.once],
            "calls": [asdict(call) for call in compiled.calls],
        }
        files = write_program(folder, isa, compiled.objects, compiled.packed, table)
        return Program(
            files,
            details={"steps": str(len(compiled.calls)), "llvm_cpu": isa.llvm_cpu},
            numerics=Numerics(
                "bf16" if options.precision == "bf16" else "fp32",
                compiled.tensors,
                any(step.spec.family.startswith("winograd") for step in lowered.steps),
            ),
        )

    def load(
        self, program: Program, files: PartFiles, target: Target, options: CompileOptions
    ) -> NativeExecutable | OpenExecutable:
        """Link the machine code into this process and resolve every address."""
        table = json.loads(bytes(files.read(TABLE_FILE)))
        if table.get("format") != FORMAT:
            raise ArtifactError(
                f"the step table has format {table.get('format')}, this program reads {FORMAT}",
                hint="compile the model again with this version",
            )
        objects = [
            ObjectCode(bytes(files.read(row["file"])), tuple(row["functions"]))
            for row in table["objects"]
        ]
        packed = np.frombuffer(files.read(WEIGHTS_FILE), np.uint8)
        if packed.ctypes.data % 64:
            copy = aligned_bytes(packed.size)
            copy[:] = packed
            packed = copy
        workers = min(options.threads or usable_cores(), int(table["most_workers"]))
        if "symbols" in table:
            return OpenExecutable(
                OpenTable(table, objects), str(table["llvm_cpu"]), isa_of(target), workers, packed,
                self._memory,
            )  # fmt: skip
        once, calls = ([_call(row) for row in table[kind]] for kind in ("once", "calls"))
        if table["entries"] > 1:
            calls = _all_entries(calls, table)
        loaded = LoadedProgram(
            table_of(objects, int(table["arena_bytes"]), calls, _buffers(table)),
            isa_of(target), workers, keep=packed, memory=self._memory,
        )  # fmt: skip
        kind = BatchExecutable if table["any_batch"] else NativeExecutable
        return kind(table, once, calls, loaded, packed, self._memory)


def _lowered(
    part: Part, target: Target, options: CompileOptions, any_entry: OpenModel | None
) -> tuple[LoweredPart, int]:
    """Return the steps of a part, and how many entries of a batch they are run for.

    `any_entry` is one entry of a batch of any size.
    """
    from vermilion.codegen.lower.batch_split import one_entry
    from vermilion.codegen.lower.open_sizes import at_batch
    from vermilion.codegen.lower.part import lower_part
    from vermilion.codegen.lower.rules import has_rule
    from vermilion.ir.symbolic import examples

    if any_entry is None and not all(map(has_rule, part.model.graph)):
        # A part of fixed sizes of a model with others: what follows from sizes has no kernel.
        any_entry = at_batch(part.model, 1)
    if any_entry is not None:
        with examples(any_entry.sizes):
            steps = lower_part(
                any_entry.model, isa_of(target), float_storage(options), winograd=options.winograd
            )
        return steps, 1
    entry = one_entry(part.model)
    model, entries = (part.model, 1) if entry is None else (entry.model, entry.batch)
    return lower_part(
        model, isa_of(target), float_storage(options), winograd=options.winograd
    ), entries


def _buffers(table: Mapping[str, Any]) -> dict[tuple[str, int], str]:
    """Return the names of what a program reads and writes beside its arena."""
    ports = {
        (place, index): f"{place} {index}"
        for place in ("input", "output")
        for index in range(len(table[f"{place}s"]))
    }
    return {("weights", 0): "weights", ("checks", 0): "checks", **ports}


def _tensor(view: View, entries: int) -> dict[str, object]:
    shape = list(view.shape) if entries == 1 else [entries, *view.shape[1:]]
    return {"name": view.buffer.name, "storage": view.storage, "shape": shape}


def _all_entries(calls: Sequence[Call], table: Mapping[str, Any]) -> list[Call]:
    """Return the calls of every entry of a batch: the same on other inputs and outputs."""
    sizes = {
        (place, index): math.prod(row["shape"]) * NUMPY[row["storage"]].itemsize
        for place in ("input", "output")
        for index, row in enumerate(table[f"{place}s"])
    }
    entries = int(table["entries"])
    sizes["checks", 0] = entries * words_of(table) * 8

    def moved(address: Address, entry: int) -> Address:
        size = sizes.get((address.place, address.index), 0) if address.place in _PORTS else 0
        return replace(address, offset=address.offset + entry * (size // entries))

    return [
        replace(
            call,
            arguments=tuple(moved(address, entry) for address in call.arguments),
            barrier=call.barrier if entry == 0 else again,
        )
        for entry in range(entries)
        for call, again in zip(
            calls, table["barriers_again"] or [c.barrier for c in calls], strict=True
        )
    ]


def _call(row: Mapping[str, Any]) -> Call:
    arguments = tuple(Address(**cast("dict[str, Any]", item)) for item in row["arguments"])
    return Call(**{**row, "arguments": arguments})
