"""`vermilion llm bench` and `perplexity`: what measures a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Column, FittedTable
from vermilion.cli.llm_options import (
    EngineOption,
    Folder,
    NewTokens,
    OnCpu,
    PrefillOption,
    Threads,
    engine_options,
    read_words,
)
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.llm.perplexity import Perplexity, Scored
    from vermilion.llm.speed import Comparison


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
    against: Annotated[
        str,
        typer.Option(
            "--against",
            metavar="ENGINE,…",
            help="onnxruntime-genai, openvino-genai, llama.cpp; installed: those that are; none.",
        ),
    ] = "installed",
    gguf: Annotated[
        Path | None,
        typer.Option(
            "--gguf", metavar="FILE", help="The same model, for engines that read no such folder."
        ),
    ] = None,
    engine: EngineOption = "auto",
    prefill: PrefillOption = "auto",
    threads: Annotated[int, typer.Option("--threads", "-t", help="Of the CPU.")] = 1,
    on_cpu: OnCpu = False,
) -> Result:
    """Measure time to first token, prefill and decode speed, and memory, beside other engines.

    Each engine has a process of its own, and they take turns. `1.29 × as fast`: the median
    over turns of the other engine's time ÷ ours.
    """
    from vermilion.errors import OptionError
    from vermilion.llm.speed import SpeedRequest, compare_speed
    from vermilion.llm.speed_engines import SpeedSetting, peers_for

    words = [word.strip() for word in lengths.split(",")]
    if not all(word.isascii() and word.isdigit() and len(word) < 9 for word in words):
        raise OptionError(f"`-l {lengths}` is no list of numbers", hint="`-l 128,512`")
    if gguf is not None and not gguf.is_file():
        raise OptionError("no such file", where=str(gguf), hint="check the path")
    if threads < 1:
        raise OptionError("`--threads` is 1 or more", hint="engines are compared on as many")
    request = SpeedRequest(tuple(map(int, words)), new_tokens, repeat, warmup)
    engine_options(threads, on_cpu, engine, prefill)
    setting = SpeedSetting(folder, gguf, threads, engine, prefill, on_cpu)
    with terminal.measuring(str(folder)):
        found = compare_speed(request, setting, peers_for(against, gguf), terminal.progress)
    return Result(_bench_data(found, threads), lambda: _bench_view(found))


def _bench_data(found: Comparison, threads: int) -> dict[str, object]:
    from dataclasses import asdict

    ours = found.engines[0]
    return {
        "engine": ours.engine,
        "engine_reason": ours.reason,
        "load_s": ours.load_s,
        "load_cpu_s": ours.load_cpu_s,
        "threads": threads,
        "results": [asdict(one) for one in ours.results],
        "peers": [asdict(one) for one in found.engines[1:]],
        "ratios": [asdict(one) for one in found.ratios],
        "limits": [{**asdict(one), "tokens_per_s": one.tokens_per_s} for one in found.limits],
    }


def _bench_view(found: Comparison) -> RenderableType:
    from rich.console import Group

    columns = (
        Column("engine", 0, "name"), Column("prompt\ntokens", 1), Column("first\ntoken ms", 3),
        Column("prefill\ntokens/s", 2), Column("decode\ntokens/s", 2),
        Column("peak so\nfar MB", 4),
    )  # fmt: skip
    rows = [
        (
            engine.name,
            str(one.prompt_tokens),
            f"{one.ttft_ms:.1f}",
            f"{one.prefill_tokens_per_s:.1f}",
            f"{one.decode_tokens_per_s:.1f}",
            f"{one.peak_rss_mb:.0f}",
        )
        for engine in found.engines
        for one in engine.results
    ]
    rows += [
        ("memory limit", str(length.prompt_tokens), "", "", f"{limit.tokens_per_s:.1f}", "")
        for length, limit in zip(found.engines[0].results, found.limits, strict=True)
    ]
    lines = [_engine_line(engine) for engine in found.engines]
    lines += [
        f"prompt of {one.prompt_tokens}: prefill {_inverse(one.prefill)} × as fast as {one.peer},"
        f" decode {_inverse(one.decode)} × (by processor time {_inverse(one.prefill_cpu)} ×,"
        f" {_inverse(one.decode_cpu)} ×): medians over turns"
        for one in found.ratios
    ]
    limit = found.limits[-1]
    lines.append(
        f"memory limit: {limit.bandwidth_gb_per_s:.1f} GB/s measured between the turns, over"
        f" {limit.bytes_per_token / 1e6:.0f} MB counted for a token"
    )
    return Group(FittedTable(columns, rows), *lines)


def _inverse(ratio: float) -> str:
    """Say how many times as fast ours is, from ours ÷ theirs."""
    return f"{1 / ratio:.2f}" if ratio else "∞"


def _engine_line(engine: object) -> str:
    from vermilion.llm.speed import EngineSpeed

    assert isinstance(engine, EngineSpeed), "the rows of a comparison"
    if engine.failed:
        return f"{engine.name}: not measured: {engine.failed}"
    reason = f": {engine.reason}" if engine.reason else ""
    load = f"{engine.load_s:.2f} s ({engine.load_cpu_s:.2f} s of the processor)"
    return f"{engine.name}: loaded in {load}, run by {engine.engine}{reason}"


@verb("llm perplexity")
def perplexity(
    terminal: Terminal,
    folder: Folder,
    *,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="DIR", help="A second folder, as the reference."),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option("--text", metavar="FILE", help="What is read; a built-in text without it."),
    ] = None,
    window: Annotated[
        int, typer.Option("--window", help="Tokens that are read at once, each window anew.")
    ] = 256,
    tokens: Annotated[int, typer.Option("--tokens", help="At most so many; 0: all.")] = 0,
    engine: EngineOption = "auto",
    against_engine: Annotated[
        str,
        typer.Option("--against-engine", metavar="NAME", help="The engine of the second folder."),
    ] = "",
    prefill: PrefillOption = "auto",
    threads: Threads = 0,
    on_cpu: OnCpu = False,
) -> Result:
    """Score a model on a text, and hold it against another build or engine.

    Lower is better. The divergence is the mean Kullback-Leibler divergence a token, in nats.
    """
    from dataclasses import asdict

    from vermilion.llm.perplexity import SAMPLE_TEXT, Text, measure_perplexity

    words = SAMPLE_TEXT if text is None else read_words(text)
    options = engine_options(threads, on_cpu, engine, prefill)
    other = None
    if against is not None or against_engine:
        reference = engine_options(threads, on_cpu, against_engine or engine, prefill)
        other = (against or folder, reference)
    found = measure_perplexity(
        folder, options, Text(words, window, tokens), against=other, progress=terminal.progress
    )
    return Result(asdict(found), lambda: _perplexity_view(found))


def _perplexity_view(found: Perplexity) -> RenderableType:
    lines = [_scored_line(found.scored)]
    if found.against is not None:
        lines.append(_scored_line(found.against))
        lines.append(
            f"divergence {found.divergence:.4f} nats a token; the same token is the likeliest at"
            f" {found.same_first:.1%} of the positions"
        )
    lines.append(f"{found.tokens:,} tokens in windows of {found.window}")
    return "\n".join(lines)


def _scored_line(scored: Scored) -> str:
    reason = f": {scored.engine_reason}" if scored.engine_reason else ""
    return f"{scored.folder}: perplexity {scored.perplexity:.3f}, run by {scored.engine}{reason}"
