"""Parts that an AMD GPU executes through the MIGraphX provider, in a child process.

A part is compiled, loaded and run once before it counts: a provider that crashes, hangs, gives
wrong numbers, or leaves everything to the CPU under its own name is caught here, and its part goes
to the CPU with the reason. What it compiled lies in a folder of this content's own.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path

import onnx
import onnx_ir as ir

from vermilion.backends.base import (
    Availability,
    Claim,
    CompileOptions,
    Executable,
    ModelFacts,
    Part,
    PartFiles,
    Program,
)
from vermilion.backends.migraphx.found import WORDS, Stack, find_stack
from vermilion.backends.migraphx.options import (
    CONTEXT_FILE,
    NO_CPU_FALLBACK,
    SessionOptions,
    content_key,
    session_options,
    with_folder,
)
from vermilion.backends.migraphx.rules import claim
from vermilion.backends.provider.child import WORKER, Limits, ProviderProcess
from vermilion.backends.provider.contract import (
    CPU,
    MODEL_FILE,
    Closed,
    Opened,
    Request,
)
from vermilion.backends.provider.faults import NanCheck
from vermilion.backends.provider.loaded import Loaded, keep_log, work_folder
from vermilion.backends.provider.part import (
    accepted_inputs,
    check_numbers,
    pack_folder,
    tensor_files,
    unpack_folder,
    write_model,
)
from vermilion.backends.provider.seen import (
    nodes_elsewhere,
    part_nodes,
    runtime_sightings,
    sighting_notes,
)
from vermilion.backends.provider.stack import Stacks
from vermilion.backends.provider.worker import RECORD_ASSIGNMENT
from vermilion.errors import ArtifactError, DeviceError, Refusal
from vermilion.hardware.options.gpu import PLUGIN
from vermilion.hardware.targets.target import Target
from vermilion.ir.execute import split_weights
from vermilion.ir.opset import required_inputs
from vermilion.process.child import LOG_FILE
from vermilion.proof.bounds import FormatName

OPTIONS_FILE = "provider_options.json"
PROVIDER_FILE = "provider.tar"
WHO = "MIGraphX provider"

# The first start compiles; with exhaustive tuning a large model takes the better part of an hour.
LIMITS = Limits(compile_s=3600.0, load_s=300.0, run_s=60.0)

FindStack = Callable[[Target], Stack | Availability]


class MigraphxBackend:
    """The contract of `backends.base` for an AMD GPU that is in this machine."""

    name = "migraphx"

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
        """Say whether provider, libraries and GPU are here; the reason where they are not."""
        return self._stacks.available(target)

    def versions(self, target: Target) -> Mapping[str, str]:
        """Return what a compiled part depends on; empty where nothing is here."""
        return self._stacks.versions(target)

    def claim(self, node: ir.Node, facts: ModelFacts, target: Target) -> Claim | Refusal:
        """Say whether the provider lists this node."""
        return claim(node, facts)

    def check_options(self, target: Target, options: CompileOptions) -> None:
        """Raise OptionError for what this build of the provider does not take."""
        stack = self._stacks.needed(target)
        session_options(stack, options.precision, options.provider_options)

    def compile(self, part: Part, target: Target, options: CompileOptions, folder: Path) -> Program:
        """Let the provider compile the part, run it once, and keep what it wrote if all is right.

        Raises: OptionError for options that the build does not take; DeviceError with what went
        wrong.
        """
        stack = self._stacks.needed(target)
        folder.mkdir(parents=True, exist_ok=True)
        wanted = session_options(stack, options.precision, options.provider_options)
        serialized, weights = split_weights(part.model)
        key = content_key(serialized, weights, wanted, stack)
        inputs = accepted_inputs(part)
        with tempfile.TemporaryDirectory(prefix="vermilion-", ignore_cleanup_errors=True) as work:
            scratch = Path(work)
            provider = scratch / key
            provider.mkdir()
            write_model(serialized, weights, scratch)
            request = _compile_request(part.model, wanted, stack, provider)
            with ProviderProcess(
                request,
                scratch,
                worker=self._worker,
                open_limit_s=self._limits.compile_s,
                run_limit_s=self._limits.run_s,
                who=WHO,
            ) as child:
                opened = child.opened
                found = child.run(inputs)
                closed = child.close()
            share = _ran_on_the_gpu(part, stack, opened, closed)
            nodes = part_nodes(part.model)
            sightings = list(runtime_sightings(nodes, stack.provider, opened, closed))
            elsewhere = nodes_elsewhere(nodes, sightings)
            if nodes and len(elsewhere) == len(nodes):
                raise _silent_cpu(part, next(iter(elsewhere.values())))
            check_numbers(part, inputs, found, _form(options))
            if (context := provider / CONTEXT_FILE).is_file():
                check_context(context, stack)
            pack_folder(provider, folder / PROVIDER_FILE)
            keep_log(scratch / LOG_FILE, folder / LOG_FILE)
        (folder / MODEL_FILE).write_bytes(serialized)
        (folder / OPTIONS_FILE).write_text(json.dumps(asdict(wanted), indent=2), encoding="utf-8")
        details = {**stack.as_details(), "content": key, "cpu_share": f"{share:.4f}"}
        notes = (*_notes(opened, share), *sighting_notes(nodes, sightings, elsewhere, "GPU"))
        return Program(
            (LOG_FILE, MODEL_FILE, OPTIONS_FILE, PROVIDER_FILE),
            details=details,
            notes=notes,
            elsewhere=elsewhere,
        )

    def load(
        self, program: Program, files: PartFiles, target: Target, options: CompileOptions
    ) -> Executable:
        """Start a child with the compiled part.

        Raises: ArtifactError where provider, libraries or GPU are no longer what they were, or the
        part is not the one that was compiled; DeviceError where the child fails.
        """
        stack = self._stacks.same(target, program.details)
        with ExitStack() as stays:
            work = work_folder(stays)
            child, fresh = self._open(program, files, stack, work)
            stays.callback(child.stop)
            if stack.provider not in child.opened.providers:
                raise DeviceError(
                    f"the session runs on {', '.join(child.opened.providers)}, not on the GPU",
                    hint="`vermilion doctor` says what is missing",
                )
            again = ", compiled anew by the provider" if fresh else ""
            runs_on = f"{stack.gfx}, {stack.provider} {stack.provider_version}, in a child process"
            check = NanCheck(bytes(files.read(MODEL_FILE)), files.weights()).check
            return Loaded(child, runs_on + again, stays.pop_all(), check)

    def _open(
        self, program: Program, files: PartFiles, stack: Stack, folder: Path
    ) -> tuple[ProviderProcess, bool]:
        """Open the compiled part in a child; say whether the provider wrote new programs."""
        serialized, weights = bytes(files.read(MODEL_FILE)), files.weights()
        wanted = _stored_options(files)
        key = content_key(serialized, weights, wanted, stack)
        if key != program.details.get("content"):
            raise ArtifactError(
                "the part's programs were compiled from another model or with other options",
                hint="compile the model again",
            )
        provider = folder / key
        unpack_folder(files.read(PROVIDER_FILE), provider)
        before = set(provider.rglob("*"))
        write_model(serialized, weights, folder)
        request = _request(ir.load(folder / MODEL_FILE), wanted, stack, provider)
        if (context := provider / CONTEXT_FILE).is_file():
            check_context(context, stack)
            request = replace(request, model=context.relative_to(folder).as_posix())
        child = ProviderProcess(
            request,
            folder,
            worker=self._worker,
            open_limit_s=self._limits.load_s,
            run_limit_s=self._limits.run_s,
            who=WHO,
        )
        return child, bool(set(provider.rglob("*")) - before)


def _form(options: CompileOptions) -> FormatName:
    """Return the coarsest number format that the provider was told to compute in."""
    switches = {
        name.lower() for name, value in options.provider_options.items()
        if value.lower() in ("1", "true", "on")
    }  # fmt: skip
    if any("fp8" in name or "int8" in name for name in switches):
        return "fp8"
    if any("bf16" in name for name in switches):
        return "bf16"
    if options.precision == "fp16" or any("fp16" in name for name in switches):
        return "fp16"
    return "fp32"


def _request(
    model: ir.Model, wanted: SessionOptions, stack: Stack, provider_folder: Path
) -> Request:
    return Request(
        provider=stack.provider,
        options=with_folder(wanted, stack, str(provider_folder)),
        inputs=tensor_files("input", required_inputs(model)),
        outputs=tensor_files("output", model.graph.outputs),
        library=stack.library,
        # The plugin writes embedded programs to one fixed name in the folder for temporary files
        # (src/migraphx/mgx_ep_ctx.cc): two processes would read each other's.
        environment={"TMPDIR": str(provider_folder.parent), "TMP": str(provider_folder.parent)},
        session_entries=wanted.entries,
    )


def _compile_request(
    model: ir.Model, wanted: SessionOptions, stack: Stack, provider_folder: Path
) -> Request:
    """Return the request that also records who runs what, and has a plugin write its context."""
    request = _request(model, wanted, stack, provider_folder)
    entries = {RECORD_ASSIGNMENT: "1", **request.session_entries}
    if stack.build == PLUGIN:
        entries |= {
            "ep.context_enable": "1",
            "ep.context_embed_mode": "0",
            "ep.context_file_path": str(provider_folder / CONTEXT_FILE),
        }
    return replace(request, session_entries=entries, profile=True)


def _stored_options(files: PartFiles) -> SessionOptions:
    try:
        stored = json.loads(bytes(files.read(OPTIONS_FILE)))
        return SessionOptions(dict(stored["provider"]), dict(stored["entries"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"the compiled part's {OPTIONS_FILE} is not what it should be: {error}",
            hint="compile the model again",
        ) from error


def _ran_on_the_gpu(part: Part, stack: Stack, opened: Opened, closed: Closed) -> float:
    """Return the share of nodes that ONNX Runtime's own CPU provider took.

    Raises: DeviceError where nothing was seen to run on the GPU.
    """
    mine = stack.provider
    if mine not in opened.providers:
        raise _silent_cpu(
            part, f"the session has no `{mine}`: it has {', '.join(opened.providers)}"
        )
    if closed.events and not closed.events.get(mine):
        seen = sum(closed.events.values())
        raise _silent_cpu(
            part, f"the session lists `{mine}`, and all of {seen} node runs were on the CPU"
        )
    counts = opened.assigned or closed.events
    if not counts.get(mine):
        raise _silent_cpu(part, f"the session lists `{mine}`, and it was given no node")
    return counts.get(CPU, 0) / sum(counts.values())


def _silent_cpu(part: Part, words: str) -> DeviceError:
    return DeviceError(
        words, where=part.name, hint="`vermilion doctor` says what the provider is missing"
    )


def _notes(opened: Opened, share: float) -> tuple[str, ...]:
    if not share:
        return ()
    return (
        f"ONNX Runtime kept {opened.assigned.get(CPU, 0) or 'some'} nodes of the GPU's part on the"
        f" CPU ({share:.0%}); hint: `--provider-option {NO_CPU_FALLBACK}=1` makes that an error",
    )


_AGAIN = "compile the model again on this machine"


def check_context(file: Path, stack: Stack) -> None:
    """Refuse the model around compiled programs, if for another GPU or out of its folder.

    Raises: ArtifactError.
    Source: ONNX Runtime, "EP Context Design" (the operator's attributes).
    """
    try:
        nodes = onnx.load(file, load_external_data=False).graph.node
    except Exception as error:  # protobuf's exceptions share no base but Exception
        raise ArtifactError(
            f"the provider's context cannot be read: {error}", hint=_AGAIN
        ) from error
    contexts = [node for node in nodes if node.op_type == "EPContext"]
    if not contexts:
        raise ArtifactError("the provider's context holds no compiled program", hint=_AGAIN)
    for node in contexts:
        said = {a.name: a.s.decode("utf-8", "replace") for a in node.attribute if a.s}
        _check_path(said.get("ep_cache_context", ""), node)
        made_for = said.get("hardware_architecture", "").partition(":")[0]
        if made_for and made_for != stack.gfx:
            raise ArtifactError(
                f"the program was compiled for {made_for}, and this GPU is {stack.gfx}", hint=_AGAIN
            )


def _check_path(named: str, node: onnx.NodeProto) -> None:
    """Refuse a program outside of the folder; an embedded one is no path."""
    embedded = any(a.name == "embed_mode" and a.i == 1 for a in node.attribute)
    path = Path(named.replace("\\", "/"))
    if not embedded and (path.is_absolute() or ".." in path.parts or ":" in named):
        raise ArtifactError(f"the provider's context names `{named}`, outside of it", hint=_AGAIN)
