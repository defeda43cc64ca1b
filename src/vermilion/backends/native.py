"""Parts compiled to machine code by our own generator and run by our own workers."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from vermilion.backends.base import (
    Array,
    Availability,
    Claim,
    CompileOptions,
    ModelFacts,
    Numerics,
    Part,
    PartFiles,
    Program,
    Tensors,
)
from vermilion.codegen.isa import isa_of
from vermilion.codegen.load import KERNEL, LoadedProgram, call_kernel
from vermilion.codegen.table import Address, Call, Check, ObjectCode, StepTensor, table_of
from vermilion.codegen.tensor import SLACK_BYTES, View
from vermilion.codegen.watch import NUMPY, StepWatcher
from vermilion.codegen.workers import HEAP, Memory, aligned_bytes
from vermilion.cores import usable_cores
from vermilion.errors import ArtifactError, Refusal, UnsupportedError
from vermilion.forks import renew_after_fork
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import Target

if TYPE_CHECKING:
    import onnx_ir as ir

    from vermilion.codegen.lower.part import LoweredPart
    from vermilion.codegen.profile import StepTimer

OBJECT_FILE, WEIGHTS_FILE, TABLE_FILE = "program.o", "packed.bin", "kernels.json"
_FORMAT = 8
_PORTS = ("input", "output", "checks")
# What numpy's own arrays are aligned to, and kernels may count on.
_ALIGNED_BYTES = 16


class NativeBackend:
    """The contract of `backends.base` for generated machine code."""

    name = "native"

    def __init__(self, memory: Memory = HEAP) -> None:
        self._memory = memory

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
            return replace(refused, hint=f"bind what is open: `{facts.bind}`")
        return refused or Claim()

    def check(self, part: Part, target: Target, options: CompileOptions) -> None:
        """Lower a part and write its kernels, without machine code."""
        from vermilion.codegen.program import module_text

        lowered, _ = _lowered(part, target, options)
        module_text(lowered.steps, isa_of(target))

    def compile(self, part: Part, target: Target, options: CompileOptions, folder: Path) -> Program:
        """Write machine code, packed weights and the step table."""
        # The compiler is loaded by who compiles; who opens a bundle does without.
        from vermilion.codegen.dump import write_dump
        from vermilion.codegen.program import compile_steps

        isa = isa_of(target)
        lowered, entries = _lowered(part, target, options)
        if options.dump is not None:
            write_dump(options.dump / part.name, lowered.steps, isa)
        compiled = compile_steps(
            lowered.steps,
            [view.buffer for view in lowered.inputs],
            [view.buffer for view in lowered.outputs],
            isa,
            entries=entries,
            values=lowered.values,
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
            "entries": entries,
            "barriers_again": compiled.barriers_again,
            "inputs": [_tensor(view, entries) for view in lowered.inputs],
            "outputs": [_tensor(view, entries) for view in lowered.outputs],
            "checks": [asdict(check) for check in compiled.checks],
            "once": [asdict(call) for call in compiled.once],
            "calls": [asdict(call) for call in compiled.calls],
        }
        folder.mkdir(parents=True, exist_ok=True)
        for name, code in zip(names, compiled.objects, strict=True):
            (folder / name).write_bytes(code.data)
        with (folder / WEIGHTS_FILE).open("wb") as file:
            file.write(compiled.packed.data)
            file.write(bytes(SLACK_BYTES))
        (folder / TABLE_FILE).write_text(json.dumps(table), encoding="utf-8")
        return Program(
            (*names, WEIGHTS_FILE, TABLE_FILE),
            details={"steps": str(len(compiled.calls)), "llvm_cpu": isa.llvm_cpu},
            numerics=Numerics(
                "bf16" if options.precision == "bf16" else "fp32",
                compiled.tensors,
                any(step.spec.family.startswith("winograd") for step in lowered.steps),
            ),
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
        once, calls = ([_call(row) for row in table[kind]] for kind in ("once", "calls"))
        if table["entries"] > 1:
            calls = _all_entries(calls, table)
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
        loaded = LoadedProgram(
            table_of(objects, int(table["arena_bytes"]), calls, _buffers(table)),
            isa_of(target), workers, keep=packed, memory=self._memory,
        )  # fmt: skip
        return NativeExecutable(table, once, calls, loaded, packed, self._memory)


def _lowered(part: Part, target: Target, options: CompileOptions) -> tuple[LoweredPart, int]:
    """Return the steps of a part, and how many entries of a batch they are run for."""
    from vermilion.codegen.lower.batch_split import one_entry
    from vermilion.codegen.lower.part import lower_part

    storage: Literal["f32", "bf16"] = "bf16" if options.precision == "bf16" else "f32"
    entry = one_entry(part.model)
    model, entries = (part.model, 1) if entry is None else (entry.model, entry.batch)
    return lower_part(model, isa_of(target), storage, winograd=options.winograd), entries


@dataclass(frozen=True)
class _Port:
    """An input or output: what the caller sees, and the program's name for it."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    buffer: str


class NativeExecutable:
    """A loaded part. Calls from several threads take turns."""

    def __init__(
        self,
        table: Mapping[str, Any],
        once: Sequence[Call],
        calls: Sequence[Call],
        program: LoadedProgram,
        packed: Array,
        memory: Memory = HEAP,
    ) -> None:
        """Point a program to its weights; make the calls that are made once: borders."""
        self._empty = memory.empty
        self._cpu = str(table["llvm_cpu"])
        self._turn = threading.Lock()
        self._checks = [Check(**row) for row in table["checks"]]
        self._words = memory.aligned(table["entries"] * _words_of(table) * 8).view(np.int64)
        # Compared as bytes in a tenth of the time that asking an array takes.
        self._words_seen, self._words_right = memoryview(self._words), bytes(self._words.nbytes)  # type: ignore[arg-type]
        self._inputs, self._outputs = (_ports(table, place) for place in ("input", "output"))
        self.entries = int(table["entries"])  # of a batch, computed one after the other
        self._calls, self._program = calls, program
        bases = {
            "arena": program.arena.ctypes.data,
            "weights": packed.ctypes.data,
            "checks": self._words.ctypes.data,
        }
        for place in ("weights", "checks"):
            program.point(place, bases[place])
        for call in once:
            at = [bases[address.place] + address.offset for address in call.arguments]
            call_kernel(KERNEL(program.functions[call.function]), at, call.units)
        renew_after_fork(self)

    @property
    def runs_on(self) -> str:
        """Say where it runs."""
        return f"CPU (native code for {self._cpu}, {self._program.workers} threads)"

    def run(self, inputs: Tensors) -> dict[str, Array]:
        """Compute every output of the part from all its inputs."""
        return self._computed(inputs, self._program.run)

    def run_into(self, inputs: Tensors, places: Tensors) -> dict[str, Array]:
        """Compute the same, outputs into `places` where these fit."""
        return self._computed(inputs, self._program.run, places)

    def step_timer(self) -> StepTimer:
        """Return what runs this part step by step; it belongs to this part alone."""
        from vermilion.codegen.profile import StepTimer

        return StepTimer(self._program, self._calls, self._program.workers)

    def step_watcher(self, tensors: Sequence[StepTensor]) -> StepWatcher:
        """Return what runs this part call by call and copies inner tensors."""
        return StepWatcher(self._program, self._calls, self.entries, tensors)

    def run_timed(self, inputs: Tensors, timer: StepTimer | StepWatcher) -> dict[str, Array]:
        """Compute the same step by step; the timer or watcher that this part gave has the rest."""
        return self._computed(inputs, timer.run)

    def _computed(
        self, inputs: Tensors, run: Callable[[], None], places: Tensors | None = None
    ) -> dict[str, Array]:
        held = [self._held(port, inputs[port.name]) for port in self._inputs]
        results = {
            port.name: self._empty(port.shape, port.dtype)
            if places is None
            else self._result(port, places.get(port.name), held)
            for port in self._outputs
        }
        with self._turn:
            for port, array in zip(self._inputs, held, strict=True):
                self._program.point(port.buffer, _address(array))
            for port in self._outputs:
                self._program.point(port.buffer, _address(results[port.name]))
            run()  # when it is left, by an exception even, no worker touches these arrays
            if self._checks and self._words_seen.tobytes() != self._words_right:
                self._complain()
        return results

    def _result(self, port: _Port, place: Array | None, held: Sequence[Array]) -> Array:
        """Return what an output is written to: its place, if that fits and is no input's memory."""
        fits = (
            place is not None
            and (place.shape, place.dtype) == (port.shape, port.dtype)
            and place.flags.c_contiguous
            and place.flags.writeable
            and _address(place) % _ALIGNED_BYTES == 0
            and not any(np.may_share_memory(place, array) for array in held)
        )
        return place if fits and place is not None else self._empty(port.shape, port.dtype)

    def _held(self, port: _Port, array: Array) -> Array:
        """Return an input as the kernels read it, and nothing that is shorter than they read."""
        if array.shape != port.shape:
            raise UnsupportedError(
                f"`{port.name}` has the shape {list(array.shape)}, this part was compiled for "
                f"{list(port.shape)}",
                hint="the model declares a shape that the part before does not give: fix that",
            )
        return np.ascontiguousarray(array, port.dtype)

    def _complain(self) -> None:
        """Raise the error that the first wrong number of a run deserves."""
        rows = self._words.reshape(-1, sum(check.count for check in self._checks))
        for check in self._checks:
            words = rows[:, check.offset : check.offset + check.count]
            if words.any():
                raise UnsupportedError(
                    f"running the model failed: {check.complaint(int(words[words != 0][0]))}",
                    where=check.where,
                    hint="what the node got does not fit it: check the model and its inputs",
                )

    def after_fork(self) -> None:
        """Renew the lock in a forked process: whoever had a turn is not there."""
        self._turn = threading.Lock()


def _ports(table: Mapping[str, Any], place: str) -> list[_Port]:
    return [
        _Port(row["name"], NUMPY[row["storage"]], tuple(row["shape"]), f"{place} {index}")
        for index, row in enumerate(table[f"{place}s"])
    ]


def _buffers(table: Mapping[str, Any]) -> dict[tuple[str, int], str]:
    """Return the names of what a program reads and writes beside its arena."""
    ports = {
        (place, index): f"{place} {index}"
        for place in ("input", "output")
        for index in range(len(table[f"{place}s"]))
    }
    return {("weights", 0): "weights", ("checks", 0): "checks", **ports}


def _address(array: Array) -> int:
    """Return where an array lies; asking `ctypes` takes a microsecond."""
    address: int = array.__array_interface__["data"][0]
    return address


def _words_of(table: Mapping[str, Any]) -> int:
    """Return how many words a run of one entry writes for its checks."""
    return sum(int(row["count"]) for row in table["checks"])


def _object_file(number: int) -> str:
    return OBJECT_FILE if number == 0 else f"program_{number}.o"


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
    sizes["checks", 0] = entries * _words_of(table) * 8

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
