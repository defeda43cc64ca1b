"""Parts that the vendor's NPU executes, through its provider in a child process.

A part is compiled, loaded and run once before it counts: a provider that crashes, hangs, leaves
outputs unwritten, gives NaN or wrong numbers, or runs everything on the CPU under the NPU's name is
caught here, and its part goes to the CPU with the reason.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import onnx_ir as ir

from vermilion.backends import npu_rules
from vermilion.backends.base import (
    Availability,
    Claim,
    CompileOptions,
    Executable,
    ModelFacts,
    Part,
    PartFiles,
    Program,
    Tensors,
)
from vermilion.backends.provider.child import WORKER, Limits, ProviderProcess, no_room
from vermilion.backends.provider.contract import MODEL_FILE, Closed, Opened, Request
from vermilion.backends.provider.faults import NanCheck
from vermilion.backends.provider.loaded import Loaded, keep_log, work_folder
from vermilion.backends.provider.part import (
    accepted_inputs,
    check_numbers,
    pack_folder,
    tensor_files,
    unpack_folder,
    write_model,
    written_files,
)
from vermilion.backends.provider.seen import part_nodes
from vermilion.backends.provider.stack import Stacks
from vermilion.backends.provider.worker import RECORD_ASSIGNMENT
from vermilion.backends.vitisai.evidence import NPU, Evidence, Verdict, judge
from vermilion.backends.vitisai.found import WORDS, Stack, find_stack, submitted_commands
from vermilion.backends.vitisai.reports import (
    REPORT_FILE,
    SUMMARIES,
    DeviceCounts,
    SummaryCounts,
    read_console,
    read_ep_report,
    read_plain_file,
    read_summary_counts,
)
from vermilion.errors import ArtifactError, DeviceError, Refusal
from vermilion.hardware.options.vitisai_build import (
    INSTALLATION,
    BuiltOptions,
    Precision,
    build_options,
)
from vermilion.hardware.options.vitisai_build import Request as OptionRequest
from vermilion.hardware.targets.target import Target
from vermilion.ir.execute import split_weights
from vermilion.ir.numbers import number_format
from vermilion.ir.opset import required_inputs
from vermilion.ir.passes.rewrite import Notes
from vermilion.ir.passes.write_attributes import write_attributes
from vermilion.process.child import LOG_FILE
from vermilion.proof.bounds import FormatName

# A report of every node's device; and exceptions of the compiler that are not swallowed.
# Source: github.com/zmaychek84/vaip, vitisai_compile_model.cpp; Ryzen AI documentation 1.8,
# modelrun.rst.
_ENVIRONMENT = {"XLNX_ONNX_EP_REPORT_FILE": REPORT_FILE, "XLNX_ENABLE_SKIP_FATAL": "0"}

OPTIONS_FILE = "provider_options.json"
CONFIG_FILE = "vaiml_config.json"
PROVIDER_FOLDER = "provider"
PROVIDER_FILE = "provider.tar"
_CACHE_KEY = "part"
WHO = "VitisAI provider"  # what errors call the child

# BF16 models take five to seven minutes (summaries in AMD's tutorials, 300 to 370 s), large ones
# longer; loading a compiled one takes seconds.
LIMITS = Limits(compile_s=3600.0, load_s=120.0, run_s=60.0)

FindStack = Callable[[Target], Stack | Availability]


class VitisAiBackend:
    """The contract of `backends.base` for a Ryzen AI NPU that is in this machine."""

    name = "vitisai"

    def __init__(
        self,
        *,
        worker: Sequence[str] = WORKER,
        find: FindStack = find_stack,
        limits: Limits | None = None,
    ) -> None:
        """Take another `worker`, or another way to `find` the provider."""
        self._worker = tuple(worker)
        self._stacks = Stacks(find, WORDS)
        self._limits = limits or LIMITS

    def available(self, target: Target) -> Availability:
        """Say whether provider, driver and NPU are here; the reason where they are not."""
        return self._stacks.available(target)

    def versions(self, target: Target) -> Mapping[str, str]:
        """Return what a compiled part depends on; empty where nothing is here."""
        return self._stacks.versions(target)

    def claim(self, node: ir.Node, facts: ModelFacts, target: Target) -> Claim | Refusal:
        """Say whether the vendor documents this node as supported."""
        return npu_rules.claim(node, facts, target)

    def compile(self, part: Part, target: Target, options: CompileOptions, folder: Path) -> Program:
        """Let the provider compile the part, run it once, and keep what it wrote if all is right.

        Raises: DeviceError with what went wrong.
        """
        stack = self._stacks.needed(target)
        folder.mkdir(parents=True, exist_ok=True)
        model = part.model.clone()
        write_attributes(model, Notes())  # the INT8 compiler aborts on a Conv without `strides`
        built = _options(model, stack, folder)
        with tempfile.TemporaryDirectory(prefix="vermilion-", ignore_cleanup_errors=True) as work:
            try:
                ran = self._run_once(part, model, _request(model, built, stack, True), Path(work))
            except OSError as error:
                raise no_room(error, Path(work)) from error
            keep_log(Path(work) / LOG_FILE, folder / LOG_FILE)
            (folder / MODEL_FILE).write_bytes(ran.serialized)
        said = _said((folder / LOG_FILE).read_text(encoding="utf-8"), folder / PROVIDER_FOLDER)
        verdict = judge(
            replace(
                said,
                nodes=part_nodes(model),
                providers=ran.opened.providers,
                assigned=ran.opened.assigned,
                assigned_nodes=ran.opened.assigned_nodes,
                events=ran.closed.events,
                event_nodes=ran.closed.nodes,
                submitted=ran.submitted,
            )
        )
        if verdict.contradictions:
            raise DeviceError(
                "; ".join(verdict.contradictions),
                where=part.name,
                hint="the part runs on the CPU instead; `vermilion doctor` looks for the cause",
            )
        check_numbers(part, ran.inputs, ran.found, *_numbers(part.model))
        pack_folder(folder / PROVIDER_FOLDER, folder / PROVIDER_FILE)
        files = sorted(path.name for path in folder.iterdir() if path.is_file())
        return Program(
            tuple(files),
            details=_details(stack, verdict),
            notes=tuple(f"{part.name}: {note}" for note in verdict.notes),
            elsewhere=verdict.elsewhere,
        )

    def _run_once(self, part: Part, model: ir.Model, request: Request, scratch: Path) -> _Ran:
        """Let the provider compile and run the part on a sample. Raises: DeviceError, OSError."""
        serialized, weights = split_weights(model)
        write_model(serialized, weights, scratch)
        inputs = accepted_inputs(part)
        with ProviderProcess(
            request,
            scratch,
            worker=self._worker,
            open_limit_s=self._limits.compile_s,
            run_limit_s=self._limits.run_s,
            who=WHO,
        ) as child:
            found = child.run(inputs)
            submitted = submitted_commands(child.process)
            closed = child.close()
            return _Ran(serialized, inputs, found, child.opened, closed, submitted)

    def load(
        self, program: Program, files: PartFiles, target: Target, options: CompileOptions
    ) -> Executable:
        """Start a child with the compiled part.

        Raises: ArtifactError where provider, driver or device are no longer what they were;
        DeviceError where the child fails.
        """
        stack = self._stacks.same(target, program.details)
        runs_on = f"{target.title}, Ryzen AI {stack.release}, in a child process"
        with ExitStack() as stays:
            work = work_folder(stays)
            child = self._open(program, files, stack, work)
            stays.callback(child.stop)
            if NPU not in child.opened.providers or (
                child.opened.assigned and not child.opened.assigned.get(NPU)
            ):
                words = ", ".join(child.opened.assigned or child.opened.providers)
                raise DeviceError(
                    f"the session runs on {words or 'nothing'}, not on the NPU",
                    hint="`vermilion doctor` says what is missing",
                )
            nan = NanCheck(bytes(files.read(MODEL_FILE)), files.weights())
            return Loaded(child, runs_on, stays.pop_all(), _RunCheck(nan, child.process))

    def _open(
        self, program: Program, files: PartFiles, stack: Stack, folder: Path
    ) -> ProviderProcess:
        """Write the compiled part into `folder`, and open it in a worker."""
        try:
            for name in (OPTIONS_FILE, CONFIG_FILE):
                if name in program.files:
                    (folder / name).write_bytes(files.read(name))
            unpack_folder(files.read(PROVIDER_FILE), folder / PROVIDER_FOLDER)
            write_model(bytes(files.read(MODEL_FILE)), files.weights(), folder)
        except OSError as error:
            raise no_room(error, folder) from error
        built = _stored_options(folder)
        return ProviderProcess(
            _request(ir.load(folder / MODEL_FILE), built, stack, False),
            folder,
            worker=self._worker,
            open_limit_s=self._limits.load_s,
            run_limit_s=self._limits.run_s,
            who=WHO,
        )


def _numbers(model: ir.Model) -> tuple[FormatName, ir.Model]:
    """Return the format that the NPU computes a part in, and the part with its roundings in it."""
    from vermilion.backends.npu_numbers import in_standard_operators

    if npu_rules.column_of(number_format(model)) != "bf16":
        return "fp32", model
    return "bf16", in_standard_operators(model, "bf16")


def _options(model: ir.Model, stack: Stack, folder: Path) -> BuiltOptions:
    """Build the options and write them beside the part, with the file they name."""
    column = npu_rules.column_of(number_format(model))
    precision: Precision = "bf16" if column == "bf16" else "int8"
    wanted = OptionRequest(
        device=stack.device,
        release=stack.release,
        precision=precision,
        cache_dir=str(folder / PROVIDER_FOLDER),
        cache_key=_CACHE_KEY,
        config_path=str(folder / CONFIG_FILE),
        installation=stack.installation or INSTALLATION,
    )
    built = build_options(wanted)
    if built.config is not None:
        (folder / CONFIG_FILE).write_text(built.config_text(), encoding="utf-8")
    stored = {
        "options": dict(built.options),
        "environment": dict(built.environment),
        "reasons": dict(built.reasons),
        "folder": str(folder),
    }
    (folder / OPTIONS_FILE).write_text(json.dumps(stored, indent=2), encoding="utf-8")
    return built


def _stored_options(folder: Path) -> BuiltOptions:
    """Return the options that the part was compiled with. Raises: ArtifactError."""
    try:
        stored = json.loads((folder / OPTIONS_FILE).read_text(encoding="utf-8"))
        return BuiltOptions(_moved(stored["options"], folder), {}, dict(stored["environment"]))
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"the part's `{OPTIONS_FILE}` cannot be read",
            hint="the provider may have changed it: compile the model again",
        ) from error


def _moved(options: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Point the options at where the part's files lie now."""
    places = {
        "cache_dir": str(folder / PROVIDER_FOLDER),
        "cacheDir": str(folder / PROVIDER_FOLDER),
    }
    if (folder / CONFIG_FILE).is_file():
        places["config_file"] = str(folder / CONFIG_FILE)
    return {name: places.get(name, value) for name, value in options.items()}


def _request(model: ir.Model, built: BuiltOptions, stack: Stack, profile: bool) -> Request:
    return Request(
        provider=NPU,
        options=built.options,
        inputs=tensor_files("input", required_inputs(model)),
        outputs=tensor_files("output", model.graph.outputs),
        library=stack.library,
        environment={**built.environment, **(_ENVIRONMENT if profile else {})},
        session_entries={RECORD_ASSIGNMENT: "1"},
        profile=profile,
    )


@dataclass
class _RunCheck:
    """What each run of a loaded part is held against; the first, also against `xrt-smi`."""

    nan: NanCheck
    process: int
    was_seen: bool = False

    def __call__(self, inputs: Tensors, found: Tensors) -> None:
        """Raise DeviceError where the outputs are not the NPU's, or not numbers."""
        self.nan.check(inputs, found)
        if not self.was_seen and submitted_commands(self.process) == 0:
            raise DeviceError(
                "the part was run, and not one command was put to the NPU (`xrt-smi`)",
                where=f"{WHO}, running",
                hint="`vermilion doctor` looks for the cause; `--target cpu` computes it meanwhile",
            )
        self.was_seen = True


@dataclass(frozen=True)
class _Ran:
    """A part that was compiled and run once, and what was seen of it."""

    serialized: bytes
    inputs: Tensors
    found: Tensors
    opened: Opened
    closed: Closed
    submitted: int | None


def _said(log: str, cache: Path) -> Evidence:
    """Collect the provider's own words: what it printed, its summaries and its report."""
    summary, report = SummaryCounts(), DeviceCounts()
    for path in written_files(cache):
        if path.name not in (*SUMMARIES, REPORT_FILE):
            continue
        text = read_plain_file(path)
        if text is None:
            continue
        if path.name == REPORT_FILE:
            report = _report(text)
        else:  # in order of their names: what the preliminary says, counts
            said = read_summary_counts(text)
            summary = SummaryCounts(
                *(
                    old if new is None else new
                    for old, new in zip(astuple(summary), astuple(said), strict=True)
                )
            )
    return Evidence((), summary, report, read_console(log))


def _report(text: str) -> DeviceCounts:
    try:
        return read_ep_report(text)
    except ArtifactError:
        return DeviceCounts()  # what cannot be read says nothing


def _details(stack: Stack, verdict: Verdict) -> dict[str, str]:
    columns = {
        "supported": verdict.supported,
        "offloaded": verdict.offloaded,
        "ran_on_npu": verdict.ran_on_npu,
        "not_seen_on_npu": len(verdict.elsewhere),
        "cpu_share": verdict.cpu_share,
    }
    known = {name: str(value) for name, value in columns.items() if value is not None}
    return {**stack.as_details(), **known}
