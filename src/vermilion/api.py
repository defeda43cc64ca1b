"""The path: load → simplify → place → compile → prove → save, one line a stage."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from vermilion.backends.base import Availability, Backend, CompileOptions, Tensors, Versioned
from vermilion.errors import OptionError, UnsupportedError
from vermilion.files import check_writable
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import Target
from vermilion.ir.numbers import number_format
from vermilion.ir.operator_rules import with_node
from vermilion.ir.passes.bind_dimensions import Dimensions
from vermilion.ir.source import ModelSource, label_of, open_source
from vermilion.progress import Progress, no_progress
from vermilion.runtime.artifact import SUMMARY_TEXT_FILE, sign_bundle
from vermilion.runtime.build import (
    CPU_BACKEND,
    SEEN_TO_RUN,
    BuildRequest,
    backends_for,
    build_artifact,
    check_provider_options,
)
from vermilion.runtime.cache import Cache
from vermilion.runtime.digest import model_digest
from vermilion.runtime.ep_context import EpContext, checked_ep_context, write_ep_context
from vermilion.runtime.manifest import tool_versions
from vermilion.runtime.placement_line import placement_line
from vermilion.runtime.prove import NotProvenError
from vermilion.runtime.report import OffloadGate, Report, read_report
from vermilion.runtime.session import Session
from vermilion.runtime.write import pack
from vermilion.store.digest import cache_digest
from vermilion.store.ed25519 import read_signing_key
from vermilion.version import code_digest

PRECISIONS = ("fp32", "bf16", "int8")
GPU_PRECISIONS = ("fp32", "fp16")
# Of float models. `bfp16`: products of blocks that share an exponent, all else bfloat16.
NPU_PRECISIONS = ("bf16", "bfp16")


class OffloadError(UnsupportedError):
    """Less than was asked for runs on the target; `compiled` says where every node went."""

    def __init__(self, error: UnsupportedError, compiled: Compiled) -> None:
        super().__init__(error.message, where=error.where, hint=error.hint)
        self.compiled = compiled


@dataclass(frozen=True)
class Compiled:
    """A compiled model: where it lies and what became of every node.

    `artifact` is the folder in the cache, or the `.rai` that was asked for. `digest` stands for
    all that it was compiled from; `cache_reason` says why it was compiled, or that it was there.
    `availability` says whether the target's device is here, else why not and what helps.
    `signed_by` is the public key that it was signed with this time, empty where it was not;
    `ep_context` the model for ONNX Runtime, where that was asked for.
    """

    artifact: Path
    cache_dir: Path
    cache_key: str
    digest: str
    cache_hit: bool
    cache_reason: str
    seconds: float
    target: Target
    availability: Availability
    report: Report
    signed_by: str = ""
    ep_context: EpContext | None = None

    @property
    def offload_is(self) -> str:
        """What `offloaded` means here: `ran` on the device, `modelled`, or `compiled`."""
        if self.target.kind == "cpu":
            return "compiled"
        return "modelled" if self.availability.reason else "ran"

    @property
    def placement(self) -> str:
        """Say in one line how many operators are native, and why the rest is not."""
        return placement_line(
            self.report.nodes,
            self.target.name,
            on_cpu=self.target.kind == "cpu",
            modelled=self.offload_is == "modelled" and self.report.summary.offloaded_operators > 0,
        )

    @property
    def summary_path(self) -> Path:
        """The summary in the vendor's text form, in the cache folder."""
        return self.cache_dir / self.cache_key / SUMMARY_TEXT_FILE

    def session(self, *, threads: int = 0) -> Session:
        """Open it for running."""
        return Session(self.artifact, threads=threads)


def compile_model(
    model: ModelSource,
    *,
    target: str = "cpu",
    precision: str = "auto",
    dims: Dimensions | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_key: str | None = None,
    output: str | os.PathLike[str] | None = None,
    min_offload: str | None = None,
    fix: bool = False,
    winograd: bool = True,
    dump: str | os.PathLike[str] | None = None,
    backend: str | None = None,
    provider_options: Mapping[str, str] | None = None,
    inputs: Tensors | None = None,
    require_proof: bool = False,
    sign: str | os.PathLike[str] | None = None,
    ep_context: str | os.PathLike[str] | None = None,
    ep_context_embed: bool = False,
    elsewhere: bool = False,
    progress: Progress = no_progress,
) -> Compiled:
    """Compile a model for a target, or find it compiled in the cache.

    Args:
        model: an ONNX file, its bytes, an `onnx.ModelProto`, or a graph of `onnx_ir`.
        target: what to compile for; the README's table lists them.
        precision: `fp32`, `bf16` or `int8` on a CPU target, `fp32` or `fp16` on a GPU,
            `bf16` or `bfp16` for float models on an NPU; `auto` computes in the model's own
            number format, on an NPU floats as bfloat16.
        dims: values for symbolic dimensions (`{"batch": 1}`) or whole inputs.
        cache_dir: folder of compiled models; the user's cache folder by default.
        cache_key: name of the folder in it; the digest of all that matters by default.
        output: also write everything as one file, NAME.rai.
        min_offload: a gate, `gops=95%` or `operators=90%`.
        fix: for an NPU, also rewrite what it does not take, where the outputs stay the same.
        winograd: compute with fewer multiplications where that is faster: 3×3 convolutions by
            Winograd's algorithm, large matrix products in float32 by Strassen's.
        dump: a folder for kernels, IR and assembly of generated parts; compiles anew.
        backend: what compiles for the device, `iree` or `migraphx` for a GPU; the best by default.
        provider_options: for a backend that is a provider: its options, and session entries.
        inputs: a sample of your own for the proof, by the names of the model's inputs; it is
            tried before those that are drawn.
        require_proof: raise NotProvenError where no sample could show that the numbers are right.
        sign: file of an Ed25519 private key; who trusts the key runs the machine code elsewhere.
        ep_context: also write a model for ONNX Runtime with our plugin, NAME_ctx.onnx.
        ep_context_embed: put machine code into that model instead of a file beside it.
        elsewhere: compile machine code also for a processor that this machine is not; the proof is
            then of the same model, compiled for this machine.
        progress: told of each step.

    Raises: VermilionError of the kind that says who can fix it; OffloadError, with everything that
    was found out, where the gate is not met.
    """
    begin = time.perf_counter()
    gate = OffloadGate.parse(min_offload) if min_offload else None
    signing_key = None if sign is None else read_signing_key(Path(sign))
    chosen = find_target(target)
    proven_on = find_target("cpu") if elsewhere and _is_other_processor(chosen) else chosen
    device_backend, cpu_backend, availability = backends_for(proven_on, backend or "")
    options = CompileOptions(
        precision=checked_precision(precision, chosen),
        winograd=winograd,
        dump=None if dump is None else Path(dump),
        progress=progress,
        provider_options=dict(provider_options or {}),
    )
    check_provider_options(device_backend, chosen, options)
    if options.dump is not None:
        check_writable(options.dump / "kernels.txt")
    fix = fix and chosen.kind == "npu"
    rai = _rai_path(output)
    context_path = checked_ep_context(ep_context, chosen.kind, (model, rai))
    source = open_source(model)
    _check_numbers(source, options.precision, chosen)
    label = label_of(model)
    parts = _cache_parts(source, chosen, device_backend, dims, options)
    parts["fix"] = str(fix)
    if proven_on is not chosen:
        parts["proven_on"] = proven_on.name
    if inputs is not None:
        parts["proof_inputs"] = _inputs_digest(inputs)
    digest = cache_digest(parts)
    cache = Cache(cache_dir)

    request = BuildRequest(
        source, label, proven_on, (device_backend, cpu_backend), options, dims or {}, fix, parts,
        backend or "",
        given=inputs,
        elsewhere=None if proven_on is chosen else chosen,
    )  # fmt: skip

    def build(folder: Path) -> None:
        try:
            build_artifact(request, folder, progress)
        except UnsupportedError as error:
            raise with_node(error, source) from error

    if options.dump is not None:
        cache.forget(cache_key or digest)
    entry = cache.get_or_build(digest, cache_key, build, parts=parts)
    report = read_report(entry.open())
    if require_proof:
        _check_proven(report, label)
    compiled = Compiled(
        artifact=entry.path,
        cache_dir=cache.root,
        cache_key=entry.key,
        digest=digest,
        cache_hit=entry.hit,
        cache_reason=entry.reason,
        seconds=time.perf_counter() - begin,
        target=chosen,
        availability=availability,
        report=report,
        signed_by="" if signing_key is None else signing_key.public,
    )
    if gate is not None:
        try:
            gate.check(report.summary, ran=device_backend.name in SEEN_TO_RUN)
        except UnsupportedError as error:
            raise OffloadError(error, compiled) from error
    if signing_key is not None:
        sign_bundle(entry.path, signing_key)
    if rai is not None:
        pack(entry.path, rai)
    if context_path is not None:
        context = write_ep_context(
            entry.path, context_path, embed=ep_context_embed, key=signing_key
        )
        compiled = replace(compiled, ep_context=context)
    return replace(compiled, artifact=rai or entry.path, seconds=time.perf_counter() - begin)


def find_compiled(model: ir.Model, *, dims: Dimensions | None = None) -> Path | None:
    """Return the bundle that `compile_model(model, dims=dims)` would find in the cache, or None."""
    chosen = find_target("cpu")
    device_backend, _, _ = backends_for(chosen, "")
    parts = _cache_parts(model, chosen, device_backend, dims, CompileOptions())
    return Cache().find(cache_digest({**parts, "fix": "False"}))


def _is_other_processor(target: Target) -> bool:
    """Say whether a target is a processor with features that this machine does not have."""
    return target.kind == "cpu" and not target.features <= find_target("cpu").features


def checked_precision(precision: str, target: Target) -> str:
    """Return `precision` if the target computes in it.

    Raises: OptionError for a word that is none, or where the target has no choice.
    """
    if precision == "auto":
        return precision
    words = {"gpu": GPU_PRECISIONS, "npu": NPU_PRECISIONS}.get(target.kind, PRECISIONS)
    if precision not in words:
        raise OptionError(
            f"unknown precision `{precision}`",
            where=f"for {target.name}",
            hint=f"it is one of {', '.join(words)}",
        )
    if target.kind == "npu" and "bf16" not in target.formats:
        raise OptionError(
            f"{target.name} computes in the model's own number format",
            where="--precision",
            hint="quantize the model first, or leave the option out",
        )
    return precision


def _check_numbers(model: ir.Model, precision: str, target: Target) -> None:
    """Refuse `int8` for a model without integers, and a float format for one that has them."""
    found = number_format(model)
    if target.kind == "npu" and precision != "auto" and not found.startswith("fp"):
        raise OptionError(
            f"the model is {found}, which {target.name} computes as it is",
            where=f"--precision {precision}",
            hint="leave the option out, or give the float model",
        )
    if precision == "int8" and target.kind == "cpu" and found.startswith(("fp", "bf")):
        raise OptionError(
            f"the model is {found}: compiling does not quantize it",
            where="--precision int8",
            hint="quantize it first: `vermilion quantize MODEL --scheme a8w8 --calib DATA`",
        )


def _check_proven(report: Report, label: str) -> None:
    """Raise NotProvenError for the first output that no sample was found for."""
    for row in report.verification:
        if row.get("status") != "proven":
            raise NotProvenError(
                f"`{row['name']}` is not proven: {row.get('reason', 'no sample was found')}",
                where=label,
                hint="give a sample that the model takes (`--input`), or leave out --require-proof",
            )


def _inputs_digest(inputs: Tensors) -> str:
    digest = hashlib.sha256()
    for name, array in sorted(inputs.items()):
        digest.update(f"{name} {array.dtype} {array.shape} ".encode())
        digest.update(repr(array.tolist()).encode() if array.dtype == object else array.tobytes())
    return digest.hexdigest()


def _rai_path(output: str | os.PathLike[str] | None) -> Path | None:
    if output is None:
        return None
    path = Path(output)
    if path.suffix != ".rai":
        raise OptionError(
            f"the output `{path}` does not end in .rai",
            hint="name it NAME.rai, for a library NAME.so, NAME.a or NAME.o; "
            "folders of compiled models lie in `--cache-dir`",
        )
    check_writable(path)
    return path


def _cache_parts(
    model: ir.Model,
    target: Target,
    device_backend: Backend,
    dims: Dimensions | None,
    options: CompileOptions,
) -> dict[str, str]:
    """Return everything that can change the bytes of what is compiled, by name."""
    return {
        "model": model_digest(model),
        "dims": repr(sorted((dims or {}).items(), key=lambda item: item[0])),
        "target": target.name,
        "precision": options.precision,
        "winograd": str(options.winograd),
        "provider_options": repr(sorted(options.provider_options.items())),
        "backend": f"{device_backend.name}, {CPU_BACKEND}",
        "device": repr(sorted(_versions(device_backend, target).items())),
        "tools": repr(sorted(tool_versions().items())),
        "compiler": code_digest(),
    }


def _versions(backend: Backend, target: Target) -> Mapping[str, str]:
    return backend.versions(target) if isinstance(backend, Versioned) else {}
