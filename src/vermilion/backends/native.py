"""Parts compiled to machine code by our own generator and run by our own workers."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import ml_dtypes
import numpy as np

from vermilion.backends.base import (
    Array,
    Availability,
    Claim,
    CompileOptions,
    ModelFacts,
    Part,
    PartFiles,
    Program,
    Tensors,
)
from vermilion.codegen.isa import isa_of
from vermilion.codegen.layout import ROW_WORDS, RUN, WAIT
from vermilion.codegen.load import load_object
from vermilion.codegen.table import Address, Call
from vermilion.codegen.tensor import SLACK_BYTES, Storage, View
from vermilion.codegen.workers import Crew, aligned_bytes, usable_cores
from vermilion.errors import ArtifactError, Refusal
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import Target

if TYPE_CHECKING:
    import onnx_ir as ir

OBJECT_FILE, WEIGHTS_FILE, TABLE_FILE = "program.o", "packed.bin", "kernels.json"
_FORMAT = 3

_NUMPY: Mapping[Storage, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f16": np.dtype(np.float16),
    "u8": np.dtype(np.uint8),
    "s8": np.dtype(np.int8),
    "u16": np.dtype(np.uint16),
    "s16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "bool": np.dtype(np.bool_),
}


class NativeBackend:
    """The contract of `backends.base` for generated machine code."""

    name = "native"

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
        if refused is not None and refused.reason == OPEN_SHAPE and facts.symbolic_dimensions:
            options = " ".join(f"--dim {name}=1" for name in facts.symbolic_dimensions)
            return replace(refused, hint=f"bind what is open: `{options}`")
        return refused or Claim()

    def compile(self, part: Part, target: Target, options: CompileOptions, folder: Path) -> Program:
        """Write machine code, packed weights and the step table."""
        # The compiler is loaded by who compiles; who opens a bundle does without.
        from vermilion.codegen.dump import write_dump
        from vermilion.codegen.lower.part import lower_part
        from vermilion.codegen.program import compile_steps

        isa = isa_of(target)
        storage = "bf16" if options.precision == "bf16" else "f32"
        lowered = lower_part(part.model, isa, storage, winograd=options.winograd)  # type: ignore[arg-type]
        if options.dump is not None:
            write_dump(options.dump / part.name, lowered.steps, isa)
        compiled = compile_steps(
            lowered.steps,
            [view.buffer for view in lowered.inputs],
            [view.buffer for view in lowered.outputs],
            isa,
        )
        names = [_object_file(number) for number in range(len(compiled.objects))]
        table = {
            "format": _FORMAT,
            "llvm_cpu": isa.llvm_cpu,
            "arena_bytes": compiled.arena_bytes,
            "most_workers": compiled.most_workers,
            "objects": [
                {"file": name, "functions": code.functions}
                for name, code in zip(names, compiled.objects, strict=True)
            ],
            "inputs": [_tensor(view) for view in lowered.inputs],
            "outputs": [_tensor(view) for view in lowered.outputs],
            "calls": [asdict(call) for call in compiled.calls],
        }
        folder.mkdir(parents=True, exist_ok=True)
        for name, code in zip(names, compiled.objects, strict=True):
            (folder / name).write_bytes(code.data)
        (folder / WEIGHTS_FILE).write_bytes(compiled.packed + bytes(SLACK_BYTES))
        (folder / TABLE_FILE).write_text(json.dumps(table), encoding="utf-8")
        return Program(
            (*names, WEIGHTS_FILE, TABLE_FILE),
            details={"steps": str(len(compiled.calls)), "llvm_cpu": isa.llvm_cpu},
        )

    def load(
        self, program: Program, files: PartFiles, target: Target, options: CompileOptions
    ) -> NativeExecutable:
        """Link the machine code into this process and resolve every address."""
        table = json.loads(bytes(files.read(TABLE_FILE)))
        if table.get("format") != _FORMAT:
            raise ArtifactError(
                f"the step table has format {table.get('format')}, this program reads {_FORMAT}",
                hint="compile the model again with this version",
            )
        calls = [_call(row) for row in table["calls"]]
        libraries: list[object] = []
        functions: dict[str, int] = {}
        for row in table["objects"]:
            names = [*row["functions"], *((RUN, WAIT) if row["file"] == OBJECT_FILE else ())]
            library, found = load_object(bytes(files.read(row["file"])), names, isa_of(target))
            libraries.append(library)
            functions.update(found)
        packed = np.frombuffer(files.read(WEIGHTS_FILE), np.uint8)
        if packed.ctypes.data % 64:
            copy = aligned_bytes(packed.size)
            copy[:] = packed
            packed = copy
        return NativeExecutable(table, calls, functions, packed, options.threads, libraries)


@dataclass(frozen=True)
class _Port:
    """An input or output: what the caller sees, and where in the arguments its address stands."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    patches: tuple[tuple[int, int], ...]  # argument number, offset in bytes


class NativeExecutable:
    """A loaded part. Calls from several threads take turns."""

    def __init__(
        self,
        table: Mapping[str, Any],
        calls: Sequence[Call],
        functions: Mapping[str, int],
        packed: Array,
        threads: int,
        library: object,
    ) -> None:
        self._keep = (library, packed)
        self._arena = aligned_bytes(int(table["arena_bytes"]) + SLACK_BYTES)
        self._cpu = str(table["llvm_cpu"])
        self._turn = threading.Lock()
        bases = {"arena": self._arena.ctypes.data, "weights": packed.ctypes.data}
        flat = [address for call in calls for address in call.arguments]
        self._arguments = aligned_bytes(8 * max(1, len(flat))).view(np.int64)
        # Items of a memoryview are set in a tenth of the time that an array's take.
        self._slots = memoryview(self._arguments)  # type: ignore[arg-type]
        patches = self._resolve(flat, bases)
        self._inputs = _ports(table["inputs"], "input", patches)
        self._outputs = _ports(table["outputs"], "output", patches)
        rows = np.zeros((len(calls), ROW_WORDS), np.int64)
        at = self._arguments.ctypes.data
        before = 0
        for row, call in zip(rows, calls, strict=True):
            wanted = before if call.meet else 0
            row[:] = (functions[call.function], at, call.units, call.chunk, wanted)
            at += 8 * len(call.arguments)
            before += call.units
        workers = min(threads or usable_cores(), int(table["most_workers"]))
        self._crew = Crew(functions, rows.reshape(-1), workers)

    @property
    def runs_on(self) -> str:
        """Say where it runs."""
        return f"CPU (native code for {self._cpu}, {self._crew.workers} threads)"

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute every output of the part from all its inputs."""
        held = [np.ascontiguousarray(inputs[port.name], port.dtype) for port in self._inputs]
        results = {port.name: np.empty(port.shape, port.dtype) for port in self._outputs}
        with self._turn:
            for port, array in zip(self._inputs, held, strict=True):
                self._point(port, array)
            for port in self._outputs:
                self._point(port, results[port.name])
            self._crew.run()
        return results

    def _resolve(
        self, flat: Sequence[Address], bases: Mapping[str, int]
    ) -> dict[tuple[str, int], list[tuple[int, int]]]:
        """Write the addresses that stay; give where those of inputs and outputs stand."""
        places: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for position, address in enumerate(flat):
            if address.place in bases:
                self._arguments[position] = bases[address.place] + address.offset
            else:
                key = (address.place, address.index)
                places.setdefault(key, []).append((position, address.offset))
        return places

    def _point(self, port: _Port, array: Array) -> None:
        address = array.__array_interface__["data"][0]
        for position, offset in port.patches:
            self._slots[position] = address + offset

    def __del__(self) -> None:
        crew = getattr(self, "_crew", None)
        if crew is not None:
            crew.close()


def _ports(
    rows: Sequence[Mapping[str, Any]],
    place: str,
    patches: Mapping[tuple[str, int], Sequence[tuple[int, int]]],
) -> list[_Port]:
    return [
        _Port(
            row["name"], _NUMPY[row["storage"]], tuple(row["shape"]),
            tuple(patches.get((place, index), ())),
        )
        for index, row in enumerate(rows)
    ]  # fmt: skip


def _object_file(number: int) -> str:
    return OBJECT_FILE if number == 0 else f"program_{number}.o"


def _tensor(view: View) -> dict[str, object]:
    return {"name": view.buffer.name, "storage": view.storage, "shape": list(view.shape)}


def _call(row: Mapping[str, Any]) -> Call:
    arguments = tuple(Address(**cast("dict[str, Any]", item)) for item in row["arguments"])
    return Call(**{**row, "arguments": arguments})
