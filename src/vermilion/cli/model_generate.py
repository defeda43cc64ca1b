"""`vermilion model_generate`: a folder of the model builder → a hybrid folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from vermilion.cli.onnx_utils import WithTool, vendor_result
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.llm.hybrid import Hybrid


@verb("model_generate")
def model_generate(
    terminal: Terminal,
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[OUT IN]", help="The new folder, then the model's.", show_default=False
        ),
    ] = None,
    *,
    hybrid: Annotated[
        bool, typer.Option("--hybrid", help="Prompts by compiled operators, tokens in int4.")
    ] = False,
    npu: Annotated[
        bool, typer.Option("--npu", help="All on the NPU: `--with vendor` only.")
    ] = False,
    input: Annotated[Path | None, typer.Option("--input", help="The model's folder.")] = None,
    output: Annotated[Path | None, typer.Option("--output", help="The new folder.")] = None,
    mode: Annotated[
        str,
        typer.Option(
            "--mode",
            "--ops_type",
            metavar="bfp16|bf16|int8",
            help="In what a prompt's products are computed.",
        ),
    ] = "bfp16",
    context_length: Annotated[
        int, typer.Option("--context_length", help="Longest prompt that operators are wanted for.")
    ] = 2048,
    target: Annotated[
        str, typer.Option("--target", metavar="TARGET,…", help="CPUs that it is to run on.")
    ] = "cpu",
    era: Annotated[
        str,
        typer.Option(
            "--era",
            metavar="stock|1.6|1.7",
            help="Keys of `genai_config.json`: onnxruntime-genai's own, or AMD's of a release.",
        ),
    ] = "stock",
    with_: WithTool = "vermilion",
) -> Result:
    """Make a hybrid model: a prompt's products from plugins, decoding in int4.

    Plugins are taken from `dd_plugins`, or from `DD_PLUGINS_ROOT`; `DD_PLUGINS_TRACING=1` tells
    every look-up. Operators that no plugin has are listed, with the command that compiles them.
    """
    from vermilion.errors import OptionError, UnsupportedError
    from vermilion.llm.hybrid import HybridRequest, generate_hybrid
    from vermilion.llm.plugins.find import is_tracing
    from vermilion.llm.plugins.identity import parse_number
    from vermilion.llm.plugins.wanted import OperatorRequest
    from vermilion.llm.vendor_tools import is_for_vendor, run_vendor_tool

    if hybrid == npu:
        raise OptionError("either `--hybrid` or `--npu`", hint="`model_generate --hybrid OUT IN`")
    source, place = _places(folders or [], input, output)
    if is_for_vendor(with_):
        kind = "--npu" if npu else "--hybrid"
        # The form with `--input` came with 1.8; each is handed on as it was given.
        named = ["--input", str(source), "--output", str(place)]
        given = [kind, *(named if input is not None else [str(place), str(source)])]
        return vendor_result(run_vendor_tool("model_generate", given))
    if npu:
        raise UnsupportedError(
            "models that run on the NPU alone are made by the vendor's tools: the form of their"
            " weights is not published",
            hint="`--with vendor`, or `--hybrid`",
        )
    request = HybridRequest(
        source,
        place,
        OperatorRequest(
            parse_number(mode), tuple(name.strip() for name in target.split(",")), context_length
        ),
        cast("Any", era),
    )
    made = generate_hybrid(request, _trace if is_tracing() else _quiet)
    data = {
        "ran": "vermilion",
        "output": str(made.folder),
        "era": era,
        "operators": len(made.needs.asked),
        "from_plugins": len(made.found),
        "engine_programs": made.has_programs,
        "plugins": list(made.plugins),
        "seconds": made.seconds,
    }
    return Result(data, lambda: _view(made, request.operators.number))


def _places(folders: list[Path], source: Path | None, place: Path | None) -> tuple[Path, Path]:
    from vermilion.errors import OptionError

    if len(folders) == 2 and source is None and place is None:
        return folders[1], folders[0]
    if not folders and source is not None and place is not None:
        return source, place
    raise OptionError(
        "two folders are wanted: the new one and the model's",
        hint="`model_generate --hybrid OUT IN`, or `--hybrid --input IN --output OUT`",
    )


def _trace(text: str) -> None:
    sys.stderr.write(f"dd_plugins: {text}\n")


def _quiet(text: str) -> None:
    pass


def _view(made: Hybrid, number: str) -> RenderableType:
    prompt = {one.identity.shape_words() for one in made.found if not one.identity.is_decode}
    token = {one.identity.shape_words() for one in made.found if one.identity.is_decode}
    names = ", ".join(made.plugins)
    lines = [f"{made.folder}: a hybrid model, written in {made.seconds:.1f} s"]
    if not made.found:
        lines.append("every operator shape is known: no plugin was needed")
    else:
        lines.append(f"prefill: {len(prompt)} operator shapes in {number}, from {names}")
    if token:
        lines.append(f"decode: {len(token)} operator shapes in int4, from {names}")
    if not made.has_programs:
        lines.append("the engine's programs are in no plugin: it compiles them at load")
    lines.append(f"run it: `vermilion model_benchmark -i {made.folder} -l 128`")
    return "\n".join(lines)
