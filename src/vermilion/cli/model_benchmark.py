"""`vermilion model_benchmark`: how fast a folder is, in the vendor's sections and fields."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from vermilion.cli.fitted import Verbatim
from vermilion.cli.onnx_utils import WithTool, vendor_result
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vermilion.llm.benchmark import Benchmark, Measured, Times


@verb("model_benchmark")
def model_benchmark(
    terminal: Terminal,
    *,
    input: Annotated[
        Path, typer.Option("--input_folder", "--input", "-i", metavar="DIR", help="The model.")
    ],
    prompt_file: Annotated[
        Path | None,
        typer.Option(
            "--prompt_file", "-f", metavar="FILE", help="A text to cut prompts from; else random."
        ),
    ] = None,
    lengths: Annotated[
        str,
        typer.Option(
            "--prompt_length",
            "-l",
            metavar="N,N…",
            help="Tokens of the prompts.",
            show_default=False,
        ),
    ] = "",
    generation_length: Annotated[
        int, typer.Option("--generation_length", "-g", help="Tokens to generate.")
    ] = 128,
    repetitions: Annotated[
        int, typer.Option("--iterations", "-r", help="Repetitions that are counted.")
    ] = 5,
    warmup: Annotated[int, typer.Option("--warmup", "-w", help="First runs, not counted.")] = 1,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="auto|native|onnxruntime|onnxruntime-genai",
            help="What runs it; `auto`: our own code where it takes the model.",
        ),
    ] = "auto",
    threads: Annotated[
        int, typer.Option("--threads", "-t", help="Of the CPU; 0: as many as the engine likes.")
    ] = 0,
    on_cpu: Annotated[
        bool, typer.Option("--cpu", help="Run on the CPU, whatever provider the folder names.")
    ] = False,
    with_: WithTool = "vermilion",
) -> Result:
    """Measure the prompt, generation, sampling and the whole loop, as the vendor's program does.

    No chat template is applied: the text is not what to judge a model by.
    """
    from vermilion.llm.benchmark import BenchmarkRequest, run_benchmark
    from vermilion.llm.decoder import EngineOptions
    from vermilion.llm.vendor_tools import is_for_vendor, run_vendor_tool

    if is_for_vendor(with_):
        given = ["-i", str(input), "-g", str(generation_length)]
        given += ["-r", str(repetitions), "-w", str(warmup)]
        given += ["-f", str(prompt_file)] if prompt_file is not None else []
        given += ["-l", lengths] if lengths else []
        given += ["--verbose"] * terminal.verbose
        return vendor_result(run_vendor_tool("model_benchmark", given))
    request = BenchmarkRequest(
        _lengths(lengths), prompt_file, generation_length, repetitions, warmup
    )
    options = EngineOptions(threads=threads, on_cpu=on_cpu, engine=cast("Any", engine))
    measured = run_benchmark(input, request, options, _say if terminal.verbose else _quiet)
    data = {
        "ran": "vermilion",
        "engine": measured.engine,
        "engine_reason": measured.reason,
        "load_s": measured.load_s,
        "threads": threads,
        "results": [_as_json(one) for one in measured.results],
    }
    return Result(data, lambda: Verbatim("\n".join(_lines(measured))))


def _lengths(text: str) -> tuple[int, ...]:
    """Read `128, 256, 512`."""
    from vermilion.errors import OptionError

    words = [word.strip() for word in text.split(",")] if text.strip() else []
    if not all(word.isascii() and word.isdigit() and len(word) < 9 for word in words):
        raise OptionError(f"`-l {text}` is no list of numbers", hint='`-l "128, 256, 512"`')
    return tuple(map(int, words))


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _quiet(text: str) -> None:
    pass


def _as_json(one: Measured) -> dict[str, object]:
    return {
        "prompt_tokens": one.prompt_tokens,
        "new_tokens": one.new_tokens,
        "ttft_ms": (one.prompt.average + one.sampling.average) * 1e3,
        "prefill_tokens_per_s": one.prompt.tokens_per_s,
        "decode_tokens_per_s": one.generation.tokens_per_s,
        "peak_rss_mb": one.peak_rss_mb,
        "prompt_us": _times_as_json(one.prompt),
        "generation_us": _times_as_json(one.generation),
        "sampling_us": _times_as_json(one.sampling),
        "whole_us": _times_as_json(one.whole),
    }


def _times_as_json(times: Times) -> dict[str, object]:
    return {
        "avg": times.average * 1e6,
        "p50": times.median * 1e6,
        "stddev": times.deviation * 1e6,
        "n": len(times.seconds),
        "tokens": times.tokens,
    }


def _lines(measured: Benchmark) -> Iterator[str]:
    for one in measured.results:
        yield (
            f"Batch size: 1, prompt tokens: {one.prompt_tokens}, tokens to generate:"
            f" {one.new_tokens}"
        )
        yield from _section("Prompt processing (time to first token):", one.prompt)
        yield from _section("Token generation:", one.generation)
        yield from _section("Token sampling:", one.sampling)
        yield "E2E generation (entire generation loop):"
        yield f"\tavg (ms):       {one.whole.average * 1e3:.6g}"
        yield f"\tp50 (ms):       {one.whole.median * 1e3:.6g}"
        yield f"\tstddev (ms):    {one.whole.deviation * 1e3:.6g}"
        yield f"\tn:              {len(one.whole.seconds)}"
        yield f"Peak working set size (bytes): {round(one.peak_rss_mb * 1e6)}"
        yield ""
    reason = f": {measured.reason}" if measured.reason else ""
    yield f"loaded in {measured.load_s:.2f} s; run by {measured.engine}{reason}"


def _section(title: str, times: Times) -> Iterator[str]:
    yield title
    yield f"\tavg (us):       {times.average * 1e6:.6g}"
    yield f"\tavg (tokens/s): {times.tokens_per_s:.6g}"
    yield f"\tp50 (us):       {times.median * 1e6:.6g}"
    yield f"\tstddev (us):    {times.deviation * 1e6:.6g}"
    yield f"\tn:              {len(times.seconds)} * {times.tokens} token(s)"
