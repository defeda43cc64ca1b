"""Parts compiled ahead of time for AMD GPUs: one program an architecture, none of them needed here.

    part → float16 where asked for → IREE → gfx942.vmfb, gfx1100.vmfb, …, cpu.vmfb

`cpu.vmfb` is the same module compiled for this machine's CPU. It proves the numbers, and it
executes the part where no such GPU is; that is called modelled. The GPUs' own programs of small
parts are executed, too, one instruction at a time (`check_programs`). Large weights lie beside the
programs, once for all.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

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
from vermilion.backends.iree.any_sizes import AnySizes
from vermilion.backends.iree.check_programs import OwnProgram, check_programs
from vermilion.backends.iree.found import Device, choose, find_devices, program_for
from vermilion.backends.iree.half import to_half
from vermilion.backends.iree.machine_code import Kernel, findings
from vermilion.backends.iree.parameters import name_parameters, write_weights
from vermilion.backends.iree.rewrites import flatten_pointwise, pad_softmax, slice_strided
from vermilion.backends.iree.signature import (
    PART_FILE,
    Signature,
    read_signature,
    signature_of,
    write_signature,
)
from vermilion.backends.iree.size_rules import SizeClaims, follow_sizes, size_claims
from vermilion.backends.iree.toolchain import (
    COMPILE_LIMIT_S,
    Work,
    compile_for_cpu,
    compile_for_gpu,
    import_part,
    installed,
    linker,
)
from vermilion.backends.iree.worker import PROGRAM, WEIGHTS
from vermilion.backends.provider.child import ProviderProcess, no_room
from vermilion.backends.provider.contract import MODEL_FILE, Request
from vermilion.backends.provider.loaded import Loaded, keep_log, work_folder
from vermilion.errors import Refusal, UnsupportedError
from vermilion.hardware.targets.target import Target
from vermilion.ir.execute import split_weights
from vermilion.process.child import LOG_FILE
from vermilion.proof.bounds import FormatName

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
        self._claims: SizeClaims | None = None

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
        """Say whether IREE's importer is known to refuse the node, or its sizes are not known."""
        if facts.model is None:
            return claim(node)
        if self._claims is None or self._claims.model is not facts.model:
            self._claims = size_claims(facts.model)
        return self._claims.refused.get(node) or claim(node)

    def compile(self, part: Part, target: Target, options: CompileOptions, folder: Path) -> Program:
        """Write a program for each architecture and one for the CPU.

        Raises: UnsupportedError with the compiler's words.
        """
        packages = installed()
        if isinstance(packages, Refusal):
            raise UnsupportedError(packages.reason, hint=packages.hint)
        gpus = target.architectures
        folder.mkdir(parents=True, exist_ok=True)
        details, model, values = dict(packages), part.model.clone(), frozenset[str]()
        details["strided_products"] = str(slice_strided(model))
        if options.precision == "fp16":
            half = to_half(model)
            model, values = half.model, half.values
            details |= {
                "fp16_operators": str(half.converted),
                "fp16_kept_fp32": json.dumps(half.kept),
                "fp16_min_cosine": f"{half.min_cosine:.9f}",
            }
        details["flattened_convolutions"] = str(flatten_pointwise(model))
        details["padded_softmaxes"] = str(pad_softmax(model))
        sizes = follow_sizes(model)
        # As the programs read it: weights under their own names, once for all programs.
        serialized, weights = split_weights(model)
        (folder / MODEL_FILE).write_bytes(serialized)
        parameters = name_parameters(model)
        signature = signature_of(model, parameters, sizes)
        write_signature(signature, folder / PART_FILE)
        kernels, programs = list[Kernel](), list[OwnProgram]()
        with tempfile.TemporaryDirectory(prefix="vermilion-", ignore_cleanup_errors=True) as work:
            steps = Work(Path(work), Path(work) / LOG_FILE, options.progress, self._limit_s)
            try:
                options.progress("import into IREE", 0, len(gpus) + 2)
                mlir = import_part(model, steps, lend=bool(parameters))
                for at, gpu in enumerate(gpus):
                    options.progress(f"compile for {gpu}", at + 1, len(gpus) + 2)
                    place = folder / _program_of(gpu)
                    made = compile_for_gpu(mlir, gpu, place, steps)
                    kernels += made.kernels
                    programs.append(OwnProgram(gpu, place, made.assemblies))
                options.progress("compile for the CPU", len(gpus) + 1, len(gpus) + 2)
                compile_for_cpu(mlir, folder / CPU_PROGRAM, steps)
            finally:
                keep_log(steps.log, folder / LOG_FILE)
        names = (MODEL_FILE, PART_FILE, *map(_program_of, gpus), CPU_PROGRAM, LOG_FILE)
        is_here = isinstance(self._device(target), Device)
        form: FormatName = "fp16" if options.precision == "fp16" else "fp32"
        if not is_here:
            details[TWIN] = "CPU twin"
            details |= check_programs(part, programs, signature, weights, form, (linker(),))
        return Program(
            files=tuple(sorted(names)),
            modelled=not is_here,
            details=details,
            notes=tuple(findings(tuple(kernels))),
            machine_code=tuple(kernel.as_json() for kernel in kernels),
            numerics=Numerics(form, float16=values),
            weights=weights,
        )

    def load(
        self, program: Program, files: PartFiles, target: Target, options: CompileOptions
    ) -> Executable:
        """Start a child with the program of the GPU that is here, else with the CPU's.

        Raises: DeviceError where the child fails.
        """
        device = self._device(target)
        if isinstance(device, Device):
            uri = device.uri
            name = _program_of(program_for(device.gfx, target.architectures))
            runs_on = f"{device.gfx} ({uri}, IREE's HIP driver)"
        else:
            uri, name = CPU_DEVICE, CPU_PROGRAM
            runs_on = f"{target.name} (modelled: the same program compiled by IREE for this CPU)"
        signature = read_signature(bytes(files.read(PART_FILE)))
        with ExitStack() as stays:
            work = work_folder(stays)
            try:
                (work / name).write_bytes(files.read(name))
                lent = files.weights() if signature.parameters else {}
                places = write_weights(signature.parameters, lent, work)
            except OSError as error:
                raise no_room(error, work) from error
            return _opened(uri, {PROGRAM: name, WEIGHTS: places}, signature, work, stays, runs_on)

    def _device(self, target: Target) -> Device | Refusal:
        if self._found is None:
            self._found = self._find()
        if isinstance(self._found, Refusal):
            return self._found
        return choose(target.architectures, self._found)


def _program_of(gpu: str) -> str:
    return f"{gpu}.vmfb"


def _opened(
    uri: str,
    options: Mapping[str, str],
    signature: Signature,
    work: Path,
    stays: ExitStack,
    runs_on: str,
) -> Executable:
    """Start a worker with a program. Raises: DeviceError."""
    if signature.is_open:
        return AnySizes(
            _WORKER,
            Request(uri, options, (), ()),
            signature,
            work,
            stays,
            runs_on=runs_on,
            open_limit_s=_OPEN_LIMIT_S,
            run_limit_s=_RUN_LIMIT_S,
        )
    child = ProviderProcess(
        Request(uri, options, signature.files("input"), signature.files("output")),
        work,
        worker=_WORKER,
        open_limit_s=_OPEN_LIMIT_S,
        run_limit_s=_RUN_LIMIT_S,
        who=f"IREE on {uri}",
    )
    stays.callback(child.stop)
    return Loaded(child, runs_on, stays.pop_all())


# The sizes of their results depend on what they read.
_OPEN_RESULTS = frozenset({"NonZero", "NonMaxSuppression", "Unique", "Compress"})
_NOT_TENSORS = (
    *("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"),
    *("SequenceLength", "SplitToSequence", "ConcatFromSequence", "SequenceMap"),
    *("Optional", "OptionalGetElement", "OptionalHasElement", "StringConcat", "StringNormalizer"),
    *("StringSplit", "RegexFullMatch", "ImageDecoder", "TfIdfVectorizer"),
)
_CONTROL = frozenset({"If", "Loop", "Scan"})


def claim(node: ir.Node) -> Claim | Refusal:
    """Take a node of the standard domain; sizes of the model's inputs may be open.

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
    return Claim()
