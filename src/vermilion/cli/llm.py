"""`vermilion llm`: what a language model needs, building, setting up, running and measuring it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from vermilion.cli.flags import Verbs
from vermilion.cli.llm_build import build
from vermilion.cli.llm_compile import compile
from vermilion.cli.llm_options import Folder
from vermilion.cli.llm_run import chat, generate
from vermilion.cli.llm_speed import bench, perplexity
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from vermilion.llm.architecture import Quantization

app = Verbs(help="Language models: list their operators, build, set up, run and measure.")
app.command("build")(build)
app.command("compile")(compile)
app.command("generate")(generate)
app.command("chat")(chat)
app.command("bench")(bench)
app.command("perplexity")(perplexity)


@app.command("ops")
@verb("llm ops")
def ops(
    terminal: Terminal,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="PATH",
            help="A folder with `genai_config.json`, a `config.json` or its folder, a `.gguf`.",
            show_default=False,
        ),
    ],
    *,
    prompt: Annotated[
        int, typer.Option("--prompt", "-l", metavar="TOKENS", help="Length of the prefill.")
    ] = 512,
    context: Annotated[
        int,
        typer.Option(
            "--context", metavar="TOKENS", help="Tokens in the cache at decode; 0: prompt + 1."
        ),
    ] = 0,
    bits: Annotated[
        int, typer.Option("--bits", help="Of the weights, where no graph says; 0: what it states.")
    ] = 0,
    block: Annotated[
        int, typer.Option("--block", help="Weights that share a scale; 0: what the model states.")
    ] = 0,
    symmetric: Annotated[
        bool, typer.Option("--symmetric/--asymmetric", help="Without or with zero points.")
    ] = True,
    graph: Annotated[
        str,
        typer.Option(
            "--graph", metavar="cpu|dml", help="The builder's graph: QKV fused, or apart."
        ),
    ] = "cpu",
) -> Result:
    """List every operator and shape that a device must have, and what each costs.

    Nothing is downloaded or run: a `config.json` is enough. `GOPs` and bytes are for one decoded
    token, and for one token of the prompt.
    """
    from vermilion.cli.llm_views import ops_as_json, ops_view
    from vermilion.errors import OptionError
    from vermilion.llm.architecture import Quantization
    from vermilion.llm.list_operators import Wanted, list_operators

    if graph not in ("cpu", "dml"):
        raise OptionError(f"`--graph {graph}`", hint="`cpu` or `dml`")
    asked: Quantization | None = None
    if bits or block or not symmetric:
        asked = Quantization(bits or 4, block or 32, symmetric)
    wanted = Wanted(prompt, context, asked, cast("Any", graph))
    found = list_operators(path, wanted)
    return Result(ops_as_json(found), lambda: ops_view(found))


@app.command("config")
@verb("llm config")
def config(
    terminal: Terminal,
    folder: Folder,
    *,
    provider: Annotated[
        str,
        typer.Option(
            "--provider",
            metavar="cpu|migraphx|amdgpu|ryzenai",
            help="Write the entries of this provider; without it, check what is there.",
        ),
    ] = "",
    build: Annotated[
        str,
        typer.Option(
            "--build",
            metavar="built-in|plugin",
            help="The MIGraphX provider inside ONNX Runtime, or the plugin library.",
        ),
    ] = "built-in",
    era: Annotated[
        str,
        typer.Option("--era", metavar="1.6|1.7", help="RyzenAI's keys: up to 1.6, or from 1.7 on."),
    ] = "1.7",
    device_id: Annotated[int, typer.Option("--device-id", help="Which GPU.")] = 0,
    fp16: Annotated[bool, typer.Option("--fp16", help="Let MIGraphX compute in FP16.")] = False,
    exhaustive_tune: Annotated[
        bool, typer.Option("--exhaustive-tune", help="Measure every kernel; compiling takes long.")
    ] = False,
    cache_dir: Annotated[
        str, typer.Option("--cache-dir", metavar="DIR", help="Where compiled programs are kept.")
    ] = "",
    max_length: Annotated[
        int, typer.Option("--max-length", help="RyzenAI: the longest sequence; 0: 4096.")
    ] = 0,
    stage: Annotated[str, typer.Option("--stage", help="Of a pipeline, only this stage.")] = "",
    int8: Annotated[
        bool, typer.Option("--int8", help="Let MIGraphX compute in INT8; needs a table.")
    ] = False,
    calibration_table: Annotated[
        str,
        typer.Option("--calibration-table", metavar="FILE", help="The INT8 calibration table."),
    ] = "",
    native_table: Annotated[
        bool, typer.Option("--native-table", help="The table is in MIGraphX' own form.")
    ] = False,
    mem_limit: Annotated[
        int, typer.Option("--mem-limit", metavar="BYTES", help="What the arena may take; 0: all.")
    ] = 0,
    arena: Annotated[
        str,
        typer.Option(
            "--arena", metavar="kNextPowerOfTwo|kSameAsRequested", help="How the arena grows."
        ),
    ] = "",
) -> Result:
    """Check `genai_config.json`, or write the entries of a provider into it.

    The exit code is 1 where something keeps the folder from loading.
    """
    from vermilion.cli.llm_views import config_view
    from vermilion.llm.genai_check import check_genai_config
    from vermilion.llm.genai_config import read_genai_config
    from vermilion.llm.genai_write import (
        ProviderRequest,
        changed_options,
        with_provider,
        write_genai_config,
    )

    found = read_genai_config(folder)
    changed: dict[str, object] = {}
    if provider:
        request = ProviderRequest(
            cast("Any", provider),
            cast("Any", build),
            cast("Any", era),
            device_id,
            fp16,
            exhaustive_tune,
            cache_dir,
            max_length,
            stage,
            int8,
            calibration_table,
            native_table,
            mem_limit,
            arena,
        )
        written = with_provider(found, request)
        changed = dict(changed_options(found, written))
        write_genai_config(written)
        found = read_genai_config(folder)
    findings = check_genai_config(found)
    errors = sum(one.level == "error" for one in findings)
    data = {
        "path": found.where,
        "provider": provider,
        "session_options": changed,
        "errors": errors,
        "findings": [one.as_json() for one in findings],
    }
    return Result(data, lambda: config_view(found.where, changed, findings), ok=errors == 0)
