"""Parts compiled ahead of time for AMD GPUs: one program an architecture, none of them needed here.

    part → float16 where asked for → IREE → gfx942.vmfb, gfx1100.vmfb, …, cpu.vmfb

`cpu.vmfb` is the same module compiled for this machine's CPU. It proves the numbers, and it
executes the part where no such GPU is; that is called modelled.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnx_ir as ir

from vermilion.backends.base import (
    TWIN,
    Availability,
    Claim,
    CompileOptions,
    Executable,
    ModelFacts,
    Numerics,
    Part,
    PartFiles,
    Program,
)
from vermilion.backends.iree.found import Device, choose, find_devices
from vermilion.backends.iree.half import to_half
from vermilion.backends.iree.machine_code import Kernel, findings
from vermilion.backends.iree.rewrites import pad_softmax, slice_strided
from vermilion.backends.iree.toolchain import (
    COMPILE_LIMIT_S,
    Work,
    compile_for_cpu,
    compile_for_gpu,
    import_part,
    installed,
)
from vermilion.backends.iree.worker import PROGRAM
from vermilion.backends.provider.child import ProviderProcess
from vermilion.backends.provider.contract import Request
from vermilion.backends.provider.loaded import Loaded, keep_log, work_folder
from vermilion.backends.provider.part import tensor_files
from vermilion.errors import ArtifactError, Refusal, UnsupportedError
from vermilion.hardware.targets.target import Target
from vermilion.ir.opset import required_inputs
from vermilion.process.arrays import TensorFile
from vermilion.process.child import LOG_FILE

PART_FILE = "part.json"
CPU_PROGRAM = "cpu.vmfb"
CPU_DEVICE = "local-task"

_WORKER = ("vermilion.backends.iree.worker",)
_OPEN_LIMIT_S = 120.0
_RUN_LIMIT_S = 600.0  # a large network in float16 on a CPU without it takes seconds

FindDevices = Callable[[], tuple[Device, ...] | Refusal]


class IreeBackend:
    """The contract of `backends.base` for AMD GPUs."""

    name = "iree"

    def __init__(
        self, *, find: FindDevices = find_devices, compile_limit_s: float = COMPILE_LIMIT_S
    ) -> None:
        """Take another way to `find` the GPUs, or another limit for one run of the compiler."""
        self._find = find
        self._limit_s = compile_limit_s
        self._found: tuple[Device, ...] | Refusal | None = None

    def available(self, target: Target) -> Availability:
        """Say whether it can compile; the reason tells why no GPU executes the result here."""
        packages = installed()
        if isinstance(packages, Refusal):
            return Availability(usable=False, reason=packages.reason, hint=packages.hint)
        device = self._device(target)
        if isinstance(device, Device):
            return Availability(usable=True)
        return Availability(
            usable=True,
            reason=f"{device.reason}; the program is compiled for {target.name}, and its build for "
            "this CPU computes the numbers",
            hint=device.hint,
        )

    def versions(self, target: Target) -> Mapping[str, str]:
        """Return what a compiled part depends on; empty where nothing is here."""
        packages = installed()
        if isinstance(packages, Refusal):
            return {}
        device = self._device(target)
        return {**packages, "driven": device.gfx if isinstance(device, Device) else "none"}

    def claim(self, node: ir.Node, facts: ModelFacts, target: Target) -> Claim | Refusal:
        """Say whether IREE's importer is known to refuse the node."""
        return claim(node, facts)

    def compile(self, part: Part, target: Target, options: CompileOptions, folder: Path) -> Program:
        """Write a program for each architecture and one for the CPU.

        Raises: UnsupportedError with the compiler's words.
        """
        packages = installed()
        if isinstance(packages, Refusal):
            raise UnsupportedError(packages.reason, hint=packages.hint)
        gpus = target.architectures
        folder.mkdir(parents=True, exist_ok=True)
        details, model = dict(packages), part.model.clone()
        details["strided_products"] = str(slice_strided(model))
        if options.precision == "fp16":
            half = to_half(model)
            model = half.model
            details |= {
                "fp16_operators": str(half.converted),
                "fp16_kept_fp32": json.dumps(half.kept),
                "fp16_min_cosine": f"{half.min_cosine:.9f}",
            }
        details["padded_softmaxes"] = str(pad_softmax(model))
        _write_signature(model, folder / PART_FILE)
        kernels: list[Kernel] = []
        with tempfile.TemporaryDirectory(prefix="vermilion-", ignore_cleanup_errors=True) as work:
            steps = Work(Path(work), Path(work) / LOG_FILE, options.progress, self._limit_s)
            try:
                mlir = _import(model, steps, len(gpus) + 2)
                for at, gpu in enumerate(gpus):
                    options.progress(f"compile for {gpu}", at + 1, len(gpus) + 2)
                    kernels += compile_for_gpu(mlir, gpu, folder / _program_of(gpu), steps)
                options.progress("compile for the CPU", len(gpus) + 1, len(gpus) + 2)
                compile_for_cpu(mlir, folder / CPU_PROGRAM, steps)
            finally:
                keep_log(steps.log, folder / LOG_FILE)
        names = (PART_FILE, *map(_program_of, gpus), CPU_PROGRAM, LOG_FILE)
        is_here = isinstance(self._device(target), Device)
        if not is_here:
            details[TWIN] = "CPU twin"
        return Program(
            files=tuple(sorted(names)),
            modelled=not is_here,
            details=details,
            notes=tuple(findings(tuple(kernels))),
            machine_code=tuple(kernel.as_json() for kernel in kernels),
            numerics=Numerics("fp16" if options.precision == "fp16" else "fp32"),
        )

    def load(
        self, program: Program, files: PartFiles, target: Target, options: CompileOptions
    ) -> Executable:
        """Start a child with the program of the GPU that is here, else with the CPU's.

        Raises: DeviceError where the child fails.
        """
        device = self._device(target)
        if isinstance(device, Device):
            uri, name = device.uri, _program_of(device.gfx)
            runs_on = f"{device.gfx} ({uri}, IREE's HIP driver)"
        else:
            uri, name = CPU_DEVICE, CPU_PROGRAM
            runs_on = f"{target.name} (modelled: the same program compiled by IREE for this CPU)"
        inputs, outputs = _read_signature(bytes(files.read(PART_FILE)))
        with ExitStack() as stays:
            work = work_folder(stays)
            (work / name).write_bytes(files.read(name))
            child = ProviderProcess(
                Request(uri, {PROGRAM: name}, inputs, outputs),
                work,
                worker=_WORKER,
                open_limit_s=_OPEN_LIMIT_S,
                run_limit_s=_RUN_LIMIT_S,
                who=f"IREE on {uri}",
            )
            stays.callback(child.stop)
            return Loaded(child, runs_on, stays.pop_all())

    def _device(self, target: Target) -> Device | Refusal:
        if self._found is None:
            self._found = self._find()
        if isinstance(self._found, Refusal):
            return self._found
        return choose(target.architectures, self._found)


def _program_of(gpu: str) -> str:
    return f"{gpu}.vmfb"


def _import(model: ir.Model, steps: Work, total: int) -> Path:
    steps.progress("import into IREE", 0, total)
    return import_part(model, steps)


def _write_signature(model: ir.Model, place: Path) -> None:
    inputs = tensor_files("input", required_inputs(model))
    outputs = tensor_files("output", model.graph.outputs)
    data = {"inputs": [asdict(t) for t in inputs], "outputs": [asdict(t) for t in outputs]}
    place.write_text(json.dumps(data), encoding="utf-8")


def _read_signature(data: bytes) -> tuple[tuple[TensorFile, ...], tuple[TensorFile, ...]]:
    try:
        read = json.loads(data)
        return _tensors(read["inputs"], "input"), _tensors(read["outputs"], "output")
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"the compiled part's {PART_FILE} is not what it should be: {error}",
            hint="compile the model again",
        ) from error


def _plain(dtype: str) -> str:
    if np.dtype(dtype).kind not in "fiub":
        raise ValueError(f"`{dtype}` is no plain type")
    return dtype


def _tensors(rows: list[dict[str, object]], kind: str) -> tuple[TensorFile, ...]:
    """Read the rows; names of files are ours, so that a bundle cannot name a place."""
    return tuple(
        TensorFile(
            str(row["name"]),
            f"{kind}{number}.raw",
            _plain(str(row["dtype"])),
            tuple(int(str(size)) for size in row["shape"]),  # type: ignore[attr-defined]
        )
        for number, row in enumerate(rows)
    )


# The sizes of their results depend on what they read.
_OPEN_RESULTS = frozenset({"NonZero", "NonMaxSuppression", "Unique", "Compress"})
_NOT_TENSORS = (
    *("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"),
    *("SequenceLength", "SplitToSequence", "ConcatFromSequence", "SequenceMap"),
    *("Optional", "OptionalGetElement", "OptionalHasElement", "StringConcat", "StringNormalizer"),
    *("StringSplit", "RegexFullMatch", "ImageDecoder", "TfIdfVectorizer"),
)
_CONTROL = frozenset({"If", "Loop", "Scan"})


def claim(node: ir.Node, facts: ModelFacts) -> Claim | Refusal:
    """Take a node of the standard domain with fixed sizes.

    What else IREE's importer refuses shows when the part is compiled.
    """
    if node.domain not in ("", "ai.onnx"):
        return Refusal(
            f"IREE's importer has no operators of the domain `{node.domain}`",
            "rewrite the node with standard operators",
        )
    if node.op_type in _CONTROL or any(
        attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
        for attribute in node.attributes.values()
    ):
        return Refusal(
            f"`{node.op_type}` decides at run time what is computed",
            "export the model with the branch or the number of rounds fixed",
        )
    if node.op_type in _OPEN_RESULTS:
        return Refusal(
            f"the size of what `{node.op_type}` gives depends on its input",
            "keep it behind the network: it runs on the CPU",
        )
    if node.op_type in _NOT_TENSORS:
        return Refusal(f"`{node.op_type}` does not compute on plain tensors")
    if facts.symbolic_dimensions:
        open_sizes = ", ".join(facts.symbolic_dimensions)
        return Refusal(
            f"the program is compiled for fixed shapes; {open_sizes} is open",
            f"bind it: `{facts.bind}`",
        )
    return Claim()
