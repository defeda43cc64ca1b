"""`vermilion llm build`: what starts a builder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from vermilion.cli.options import bytes_for_people
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.llm.build import Built


@verb("llm build")
def build(
    terminal: Terminal,
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SRC", help="A Hugging Face folder, or a `.gguf` file.", show_default=False
        ),
    ],
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The new folder.")],
    precision: Annotated[
        str,
        typer.Option("--precision", metavar="int4|int8|fp16|fp32", help="Of the weights."),
    ] = "int4",
    graph: Annotated[
        str,
        typer.Option(
            "--graph",
            metavar="cpu|dml",
            help="For the CPU, or what AMD's hybrid recipe starts from.",
        ),
    ] = "cpu",
    block: Annotated[
        int,
        typer.Option(
            "--block", help="Weights that share a scale: fewer, better text; more, faster."
        ),
    ] = 32,
    accuracy: Annotated[
        int,
        typer.Option("--accuracy", help="Of activations: 4 is int8 and fast, 1 is float32."),
    ] = 4,
    algorithm: Annotated[
        str,
        typer.Option(
            "--algorithm",
            metavar="gptq|default|rtn|k_quant|k_quant_mixed",
            help="How weights are rounded: so that errors cancel; the last keeps some in 8 bits.",
        ),
    ] = "default",
    calibration: Annotated[
        Path | None,
        typer.Option(
            "--calibration",
            metavar="FILE",
            help="gptq: the text to round for; without it, the model writes one.",
        ),
    ] = None,
    bits: Annotated[
        float | None,
        typer.Option(
            "--bits",
            help="gptq: of a weight on average, 4 to 8; what 4 bits cost most has 8.",
            show_default="by what is lost",
        ),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Hold the folder against its source: perplexity, divergence."),
    ] = False,
    symmetric: Annotated[
        bool | None,
        typer.Option(
            "--symmetric/--asymmetric",
            help="Without or with zero points, which gptq has by itself.",
        ),
    ] = None,
    prune_head: Annotated[
        bool,
        typer.Option(
            "--prune-head", help="Logits of the last token only: faster, smaller prefill."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what it needs, and build nothing.")
    ] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Build although disk or memory may not do.")
    ] = False,
) -> Result:
    """Build an ONNX Runtime GenAI folder, with onnxruntime-genai's own model builder.

    Code that a model brings along is never run, and nothing is downloaded.
    """
    from dataclasses import asdict

    from vermilion.llm.build import build as build_folder
    from vermilion.llm.build import free_bytes
    from vermilion.llm.build_plan import (
        BuildRequest,
        check_room,
        closer_rounding,
        plan_as_json,
        plan_build,
    )

    wanted = BuildRequest(
        source,
        output,
        cast("Any", precision),
        cast("Any", graph),
        block,
        accuracy,
        cast("Any", algorithm),
        symmetric,
        prune_head,
        calibration,
        check,
        bits,
    )
    plan = plan_build(wanted)
    needs = (
        f"{plan.architecture.parameters / 1e6:,.0f} M parameters; the build needs about"
        f" {bytes_for_people(plan.memory_bytes)} of memory and"
        f" {bytes_for_people(plan.disk_bytes)} of disk, the folder will have"
        f" {bytes_for_people(plan.output_bytes)}"
    )
    for text in plan.warnings:
        terminal.warn(text)
    data = plan_as_json(plan)
    if dry_run:
        return Result({**data, "built": False}, lambda: needs)
    sys.stderr.write(f"{needs}\n")
    if not anyway:
        check_room(plan, *free_bytes(output))
    built = build_folder(plan, terminal.progress)
    for text in built.mended:
        terminal.warn(text)
    data |= {
        "built": True,
        "size_bytes": built.size_bytes,
        "seconds": built.seconds,
        "mended": list(built.mended),
        "operators": len(built.operators.rows),
        "missing": len(built.operators.missing),
    }
    if built.compensated is not None:
        data["rounding"] = asdict(built.compensated)
    if built.checked is not None:
        data["check"] = asdict(built.checked)
    closer = closer_rounding(wanted)
    return Result(data, lambda: _built_view(built, closer))


def _built_view(built: Built, closer: str) -> RenderableType:
    missing, rows = len(built.operators.missing), len(built.operators.rows)
    return (
        f"{built.folder}: {bytes_for_people(built.size_bytes)} in {built.seconds:.0f} s\n"
        f"{missing} of its {rows} operators are in no model shipped for the NPU:"
        f" `vermilion llm ops {built.folder}`\n"
        f"{_checked_words(built)}"
        f"{closer}"
        f"run it: `vermilion llm generate {built.folder} -p 'What is the capital of France?'`"
    )


def _checked_words(built: Built) -> str:
    words = ""
    if built.compensated is not None:
        done = built.compensated
        words += (
            f"{done.rounded} of {done.products} products rounded for {done.tokens:,} tokens of"
            f" {done.text}, {len(done.in_bytes)} of them to 8 bits\n"
        )
    checked = built.checked
    if checked is not None and checked.against is not None:
        own, source = checked.scored.perplexity, checked.against.perplexity
        words += (
            f"perplexity {own:.2f}, the source's {source:.2f}; divergence"
            f" {checked.divergence or 0:.3f}, the same token first at"
            f" {checked.same_first or 0:.1%}\n"
        )
    return words
