"""`vermilion compile`: a model → a cache folder or one `.rai` file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Column, Facts, FittedTable
from vermilion.cli.options import CacheDir, Dims, Model, load_inputs, parse_dims, parse_pairs
from vermilion.cli.output import Failure, Result
from vermilion.cli.values import PRECISIONS
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.ahead.link import Library
    from vermilion.api import Compiled
    from vermilion.runtime.report import Report


@verb("compile", limits_threads=True)
def compile(
    terminal: Terminal,
    model: Model,
    *,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            metavar="TARGET,…",
            help="What to compile for: `cpu`, this machine; a chip; or several GPUs with commas. "
            "`vermilion devices --targets` lists them.",
        ),
    ] = "cpu",
    precision: Annotated[
        str,
        typer.Option(
            "--precision",
            "-p",
            metavar=PRECISIONS,
            help="What to compute in; auto: as the model says. CPUs take fp32, bf16 and int8, GPUs "
            "also fp16, NPUs bf16 and bfp16.",
        ),
    ] = "auto",
    dim: Dims = None,
    cache_dir: CacheDir = None,
    cache_key: Annotated[
        str | None,
        typer.Option(
            "--cache-key",
            metavar="NAME",
            help="Name of the folder; by default a digest of everything.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="NAME.rai|.so|.a|.o",
            help="Also write one file: a bundle, or a library with NAME.h to call from C.",
        ),
    ] = None,
    min_offload: Annotated[
        str | None,
        typer.Option(
            "--min-offload",
            metavar="gops=95%",
            help="Fail if less than this runs on the target (`gops=…` or `operators=…`).",
        ),
    ] = None,
    fix: Annotated[
        bool,
        typer.Option("--fix", help="For an NPU: also rewrite what it does not take, if proven."),
    ] = False,
    winograd: Annotated[
        bool,
        typer.Option(
            "--winograd/--no-winograd", help="Fewer multiplications (Winograd, Strassen)."
        ),
    ] = True,
    dump: Annotated[
        Path | None,
        typer.Option(
            "--dump", metavar="DIR", help="Write kernels, IR and assembly to this folder."
        ),
    ] = None,
    bisect: Annotated[
        Path | None,
        typer.Option(
            "--bisect",
            metavar="DIR",
            help="For each part that fails to compile, write the smallest model that does, too.",
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option("--backend", metavar="iree|migraphx", help="What compiles for a GPU."),
    ] = None,
    provider_option: Annotated[
        list[str] | None,
        typer.Option(
            "--provider-option",
            metavar="NAME=VALUE",
            help="With --backend migraphx: an option of the provider's, or a session entry.",
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="IN.npz|NAME=FILE.npy",
            help="A sample of your own for the proof, tried before those that are drawn.",
        ),
    ] = None,
    require_proof: Annotated[
        bool,
        typer.Option(
            "--require-proof", help="Fail where no sample shows that the numbers are right."
        ),
    ] = False,
    sign: Annotated[
        Path | None,
        typer.Option(
            "--sign",
            metavar="KEY.pem",
            help="Sign with this private key (Ed25519): who trusts it runs the code elsewhere.",
        ),
    ] = None,
    ep_context: Annotated[
        Path | None,
        typer.Option(
            "--ep-context",
            metavar="M_ctx.onnx",
            help="Also write a model for ONNX Runtime with our plugin: machine code in its nodes.",
        ),
    ] = None,
    ep_context_embed: Annotated[
        bool,
        typer.Option("--ep-context-embed", help="Put the code into that model, not beside it."),
    ] = False,
    nodes: Annotated[bool, typer.Option("--nodes", help="List every node's place.")] = False,
) -> Result:
    """Compile a model for a target, or find it compiled before.

    Prints what is supported, what is offloaded, and why the rest is not.
    """
    from vermilion.ahead.link import compile_library, is_library
    from vermilion.api import OffloadError, compile_model
    from vermilion.inspection import bisect_model

    given = load_inputs(inputs) if inputs else None

    def compile_for(name: str) -> Compiled:
        return compile_model(
            model,
            target=name,
            precision=precision,
            dims=parse_dims(dim),
            cache_dir=cache_dir,
            cache_key=f"{cache_key}-{name}" if cache_key and "," in target else cache_key,
            output=None if is_library(output) else output,
            min_offload=min_offload,
            winograd=winograd,
            dump=dump,
            backend=backend,
            provider_options=parse_pairs(provider_option, "--provider-option"),
            fix=fix,
            inputs=given,
            require_proof=require_proof,
            sign=sign,
            ep_context=ep_context,
            ep_context_embed=ep_context_embed,
            elsewhere=is_library(output),
            progress=terminal.progress,
        )

    failure, library = None, None
    try:
        if output is not None and is_library(output):
            compiled, library = compile_library(compile_for, target, output)
        else:
            compiled = compile_for(target)
    except OffloadError as error:
        # What was found out is printed all the same: in a build job it is all that is left.
        compiled, failure = error.compiled, Failure(error.message, error.where, error.hint)
    _warn(terminal, compiled)
    data = as_json(compiled)
    if library is not None:
        data["library"] = library.as_json()
    if bisect is not None and compiled.report.summary.fallback.compile_error:
        culprits = bisect_model(
            model,
            target=target,
            folder=bisect,
            dims=parse_dims(dim),
            fix=fix,
            backend=backend,
            progress=terminal.progress,
        )
        for culprit in culprits:
            terminal.warn(f"{culprit.part}: {culprit.reason}; the least that fails: {culprit.path}")
        data["culprits"] = [culprit.as_json() for culprit in culprits]
    return Result(
        data,
        lambda: _view(compiled, library, every_node=nodes),
        ok=failure is None,
        failure=failure,
    )


def _warn(terminal: Terminal, compiled: Compiled) -> None:
    """Tell what went another way than asked for; above all, that the target got nothing."""
    if not compiled.cache_hit and "key" in compiled.cache_reason:
        terminal.warn(f"compiled again: {compiled.cache_reason}")
    from vermilion.runtime.placement_line import told

    for note in told(compiled.report.notes, compiled.placement):
        terminal.warn(note)
    if compiled.ep_context is not None:
        for note in compiled.ep_context.notes:
            terminal.warn(f"{compiled.ep_context.path}: {note}")


def as_json(compiled: Compiled) -> dict[str, object]:
    """Return the keys of `compile --json`."""
    report = compiled.report
    return {
        "artifact": compiled.artifact,
        "cache_dir": compiled.cache_dir,
        "cache_key": compiled.cache_key,
        "digest": compiled.digest,
        "cache_hit": compiled.cache_hit,
        "cache_reason": compiled.cache_reason,
        "seconds": compiled.seconds,
        "target": compiled.target.name,
        "execution": compiled.availability.reason or "on this machine",
        "offload_is": compiled.offload_is,
        "placement": compiled.placement,
        "summary": report.summary.as_json(),
        "summary_path": compiled.summary_path,
        "signed_by": compiled.signed_by,
        "ep_context": compiled.ep_context and list(compiled.ep_context.files),
        "nodes": [dict(row) for row in report.nodes],
        "passes": [dict(row) for row in report.passes],
        "verification": {"outputs": [dict(row) for row in report.verification]},
        "machine_code": [dict(row) for row in report.machine_code],
        **report.prediction(),
    }


def _view(compiled: Compiled, library: Library | None, *, every_node: bool) -> RenderableType:
    from rich.console import Group

    from vermilion.cli.placement import nodes_view, summary_view

    report, target = compiled.report, compiled.target
    state = "found in the cache" if compiled.cache_hit else "compiled"
    is_offloaded = target.kind != "cpu" and report.summary.offloaded_operators > 0
    stands_in = is_offloaded and compiled.offload_is == "modelled"
    ran = "CPU, modelled" if stands_in else target.kind.upper() if is_offloaded else "CPU"
    facts: list[tuple[str, str | Path]] = [
        ("artifact", Path(compiled.artifact)),
        ("summary", Path(compiled.summary_path)),
    ]
    if compiled.ep_context is not None:
        facts += [("for ONNX Runtime", Path(file)) for file in compiled.ep_context.files]
    if library is not None:
        facts.append(("library", f"{library.path}, for {', '.join(library.targets)}"))
        facts.append(("header", Path(library.header)))
    if compiled.signed_by:
        facts.append(("signed by", compiled.signed_by))
    facts += map(_proof_row, report.verification)
    views: list[RenderableType] = [
        f"{state} for {target.name} ({target.title}) in {compiled.seconds:.2f} s",
        compiled.placement,
        Facts(facts),
        "",
        summary_view(report.summary, ran=ran),
    ]
    if report.machine_code:
        views += ["", _machine_code_view(report.machine_code)]
    views += _latency_view(report)
    if stands_in and compiled.availability.reason:
        views.append(f"modelled: {compiled.availability.reason}")
    views += ["", *nodes_view(report.nodes, target.kind, every_node=every_node)]
    return Group(*views)


def _latency_view(report: Report) -> list[RenderableType]:
    """Return the line of a modelled latency: with its interval, or why there is none."""
    from vermilion.backends.npu_cost import interval_words

    if report.predicted_ms is not None and report.predicted_interval_ms is not None:
        words = interval_words(report.predicted_ms, report.predicted_interval_ms)
        return [f"modelled latency on the device: {words}"]
    reason = report.predicted_reason
    return [f"no latency is modelled: {reason}"] if reason else []


def _proof_row(row: Mapping[str, object]) -> tuple[str, str]:
    """Return what was proven of an output, and on how many samples."""
    name = f"output {row['name']}: "
    if row.get("status") == "not proven":
        return "not proven", f"{name}{row.get('reason', '')}"
    samples = row.get("samples")
    count = len(samples) if isinstance(samples, list) else 0
    words = (
        f"{name}SQNR {_number(row['sqnr_db'], '.1f')} dB, cosine {_number(row['cosine'], '.8f')} "
        f"against {row.get('against', 'the model as it came')}"
    )
    if count:
        words += f", {count} samples" if count > 1 else ", 1 sample"
    if row.get("amplified"):
        words += "; part by part within roundings, which the model amplifies"
    if "modelled_in" in row:
        words += f", modelled in {row['modelled_in']}"
    if "proven_of" in row:
        from vermilion.backends.base import ON_CPU

        words += f", of the {row['proven_of']}"
        own = row.get("interpreted")
        if own:
            words += f"; the GPU's own program, interpreted on this CPU, agrees on a sample: {own}"
        elif row["proven_of"] != ON_CPU:
            words += " alone: no GPU is here to run the GPU's own program"
    return "proven", words


def _machine_code_view(kernels: Sequence[Mapping[str, object]]) -> RenderableType:
    """Return a row a GPU; `--json` has the kernels one by one."""
    columns = (
        Column("machine code for", 0, "name"), Column("kernels", 1),
        Column("matrix\ninstructions", 2), Column("code\nKiB", 3),
        Column("most\nregisters", 4), Column("kernels\nthat spill", 5), Column("with\nscratch", 6),
    )  # fmt: skip
    rows = []
    for gpu in dict.fromkeys(str(kernel["gpu"]) for kernel in kernels):
        mine = [kernel for kernel in kernels if kernel["gpu"] == gpu]
        row = (
            gpu,
            str(len(mine)),
            str(_sum(mine, "matrix_instructions")),
            f"{_sum(mine, 'code_bytes') / 1024:.1f}",
            str(max(_integer(kernel, "vgprs") for kernel in mine)),
            str(sum(_integer(kernel, "vgpr_spills") > 0 for kernel in mine)),
            str(sum(_integer(kernel, "scratch_bytes") > 0 for kernel in mine)),
        )
        rows.append(row)
    return FittedTable(columns, rows)


def _sum(rows: Sequence[Mapping[str, object]], key: str) -> int:
    return sum(_integer(row, key) for row in rows)


def _integer(row: Mapping[str, object], key: str) -> int:
    value = row.get(key)
    return value if isinstance(value, int) else 0


def _number(value: object, form: str) -> str:
    return format(value, form) if isinstance(value, int | float) else str(value)
