"""`vermilion llm build`, `generate` and `bench`: what starts a builder or an engine."""

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
    from vermilion.llm.generate import Generated
    from vermilion.llm.speed import Speeds

Folder = Annotated[
    Path,
    typer.Argument(metavar="DIR", help="A folder with `genai_config.json`.", show_default=False),
]
Threads = Annotated[
    int, typer.Option("--threads", "-t", help="Of the CPU; 0: onnxruntime-genai chooses.")
]
OnCpu = Annotated[
    bool, typer.Option("--cpu", help="Run on the CPU, whatever provider the folder names.")
]
NewTokens = Annotated[int, typer.Option("--new-tokens", "-g", help="Tokens to generate.")]


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
            metavar="default|rtn|k_quant|k_quant_mixed",
            help="How scales are chosen; the last keeps some products in 8 bits.",
        ),
    ] = "default",
    symmetric: Annotated[
        bool, typer.Option("--symmetric/--asymmetric", help="Without or with zero points.")
    ] = True,
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
    from vermilion.llm.build import build as build_folder
    from vermilion.llm.build import free_bytes
    from vermilion.llm.build_plan import BuildRequest, check_room, plan_as_json, plan_build

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
    data |= {
        "built": True,
        "size_bytes": built.size_bytes,
        "seconds": built.seconds,
        "operators": len(built.operators.rows),
        "missing": len(built.operators.missing),
    }
    return Result(data, lambda: _built_view(built))


def _built_view(built: Built) -> RenderableType:
    missing, rows = len(built.operators.missing), len(built.operators.rows)
    return (
        f"{built.folder}: {bytes_for_people(built.size_bytes)} in {built.seconds:.0f} s\n"
        f"{missing} of its {rows} operators are in no model shipped for the NPU:"
        f" `vermilion llm ops {built.folder}`\n"
        f"run it: `vermilion llm generate {built.folder} -p 'What is the capital of France?'`"
    )


@verb("llm generate")
def generate(
    terminal: Terminal,
    folder: Folder,
    *,
    prompt: Annotated[str, typer.Option("--prompt", "-p", metavar="TEXT", help="What to answer.")],
    new_tokens: NewTokens = 128,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue the text as it is, without a chat template.")
    ] = False,
    temperature: Annotated[
        float, typer.Option("--temperature", help="0: always the likeliest token.")
    ] = 0.0,
    top_k: Annotated[int, typer.Option("--top-k", help="Choose among so many.")] = 50,
    top_p: Annotated[float, typer.Option("--top-p", help="Choose among this probability.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="The same seed, the same text.")] = 0,
    threads: Threads = 0,
    on_cpu: OnCpu = False,
) -> Result:
    """Answer a prompt, printing tokens as they come, and say how fast it was."""
    from dataclasses import asdict

    from vermilion.llm.generate import Sampling
    from vermilion.llm.generate import generate as generate_text
    from vermilion.llm.stock_engine import REASON, EngineOptions

    sampling = Sampling(new_tokens, temperature, top_k, top_p, seed)
    made = generate_text(
        folder,
        prompt,
        sampling,
        EngineOptions(threads, on_cpu),
        as_chat=not raw,
        on_text=None if terminal.as_json else _show,
    )
    data = {**asdict(made), "engine_reason": REASON}
    return Result(data, lambda: _generated_view(made, REASON))


def _show(piece: str) -> None:
    sys.stdout.write(piece)
    sys.stdout.flush()


def _generated_view(made: Generated, reason: str) -> RenderableType:
    return (
        f"\n\n{made.new_tokens} tokens at {made.decode_tokens_per_s:.1f} tokens/s after a prompt of"
        f" {made.prompt_tokens} at {made.prefill_tokens_per_s:.1f} tokens/s (first token after"
        f" {made.ttft_ms:.0f} ms), loaded in {made.load_s:.1f} s, peak {made.peak_rss_mb:.0f} MB\n"
        f"run by {made.engine}: {reason}"
    )


@verb("llm bench")
def bench(
    terminal: Terminal,
    folder: Folder,
    *,
    lengths: Annotated[
        str, typer.Option("--lengths", "-l", metavar="N,N…", help="Tokens of the prompts.")
    ] = "128,512",
    new_tokens: NewTokens = 64,
    repeat: Annotated[int, typer.Option("--repeat", "-r", help="The median of so many.")] = 5,
    warmup: Annotated[int, typer.Option("--warmup", "-w", help="First runs, not counted.")] = 1,
    threads: Threads = 0,
    on_cpu: OnCpu = False,
) -> Result:
    """Measure time to first token, prefill and decode speed, and memory."""
    from dataclasses import asdict

    from vermilion.errors import OptionError
    from vermilion.llm.speed import SpeedRequest, measure_speed
    from vermilion.llm.stock_engine import REASON, EngineOptions

    words = [word.strip() for word in lengths.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 9 for word in words):
        raise OptionError(f"`-l {lengths}` is no list of numbers", hint="`-l 128,512`")
    request = SpeedRequest(tuple(map(int, words)), new_tokens, repeat, warmup)
    measured = measure_speed(folder, request, EngineOptions(threads, on_cpu), terminal.progress)
    data = {
        "engine": measured.engine,
        "engine_reason": REASON,
        "load_s": measured.load_s,
        "threads": threads,
        "results": [asdict(one) for one in measured.results],
    }
    return Result(data, lambda: _bench_view(measured, REASON))


def _bench_view(measured: Speeds, reason: str) -> RenderableType:
    from rich.console import Group
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ("prompt", "new", "first token", "prefill", "decode", "peak so far")
    for column in columns:
        table.add_column(column, justify="right")
    for one in measured.results:
        table.add_row(
            str(one.prompt_tokens),
            str(one.new_tokens),
            f"{one.ttft_ms:.1f} ms",
            f"{one.prefill_tokens_per_s:.1f} tokens/s",
            f"{one.decode_tokens_per_s:.1f} tokens/s",
            f"{one.peak_rss_mb:.0f} MB",
        )
    last = f"loaded in {measured.load_s:.2f} s; run by {measured.engine}: {reason}"
    return Group(table, last)
