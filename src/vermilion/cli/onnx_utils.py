"""`vermilion onnx_utils vaiml`: the operators that a language model misses, as a plugin."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.fitted import Column, FittedTable
from vermilion.cli.flags import Verbs
from vermilion.cli.options import bytes_for_people
from vermilion.cli.output import Result
from vermilion.cli.verb import Terminal, verb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from vermilion.llm.plugins.compile_plugin import CompiledPlugin
    from vermilion.llm.plugins.identity import Identity
    from vermilion.llm.plugins.verify import Verified
    from vermilion.llm.plugins.wanted import Needs
    from vermilion.llm.vendor_tools import VendorRun

app = Verbs(help="The vendor's tool for new operator shapes, with its own flags.")

WithTool = Annotated[
    str,
    typer.Option(
        "--with",
        metavar="vermilion|vendor",
        help="Whose tool runs: `vendor` hands the command over to Ryzen AI's, where installed.",
    ),
]


@app.callback()
def _only_group() -> None:
    # With one command alone, typer would take the group's name for the command's.
    pass


@app.command("vaiml")
@verb("onnx_utils vaiml")
def vaiml(
    terminal: Terminal,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DIR] [OPS]…",
            help="The model's folder, where `--model-dir` does not say it; more words of `--ops`.",
            show_default=False,
        ),
    ] = None,
    *,
    plugin_name: Annotated[
        str, typer.Option("--plugin_name", "--plugin-name", help="Name of the plugin.")
    ],
    model_dir: Annotated[
        Path | None,
        typer.Option("--model-dir", "--model_dir", help="A folder of the model builder."),
    ] = None,
    compile: Annotated[
        bool,
        typer.Option("--compile", help="Compile them; without it, only write which they are."),
    ] = False,
    ops_type: Annotated[
        str,
        typer.Option(
            "--ops_type",
            "--ops-type",
            metavar="bfp16|bf16|int8",
            help="In what a prompt's products are computed; tokens decode in int4.",
        ),
    ] = "bfp16",
    ops: Annotated[
        list[str] | None,
        typer.Option("--ops", metavar="gemm|bmm1|…", help="Only these operators."),
    ] = None,
    context_length: Annotated[
        int, typer.Option("--context_length", help="Longest prompt to compile for.")
    ] = 2048,
    exact_length: Annotated[
        int, typer.Option("--exact_length", help="Compile for this length alone.")
    ] = 0,
    target: Annotated[
        str, typer.Option("--target", metavar="TARGET,…", help="CPUs to compile for.")
    ] = "cpu",
    known: Annotated[
        bool, typer.Option("--known", help="Compile the shapes too that the runtime has.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run what was compiled on the model's weights.")
    ] = False,
    with_: WithTool = "vermilion",
) -> Result:
    """Find the operator shapes that no shipped model has, and compile them to a plugin.

    Writes `P/P_OPS.json` with the list, and with `--compile` `transaction-plugin/P.zip`.
    """
    from vermilion.errors import OptionError
    from vermilion.llm.plugins.compile_plugin import FOLDER, compile_plugin, write_operator_list
    from vermilion.llm.plugins.identity import parse_number
    from vermilion.llm.plugins.verify import verify_plugin
    from vermilion.llm.plugins.wanted import GROUPS, OperatorRequest, needs_of
    from vermilion.llm.vendor_tools import is_for_vendor, run_vendor_tool

    groups = [*(ops or ()), *(word for word in words or () if word in GROUPS)]
    folders = [word for word in words or () if word not in GROUPS]
    if len(folders) + (model_dir is not None) != 1:
        raise OptionError(
            "one folder of a model is wanted", hint="`onnx_utils vaiml --model-dir DIR`"
        )
    folder = model_dir or Path(folders[0])
    if is_for_vendor(with_):
        given = ["vaiml", "--model-dir", str(folder), "--plugin_name", plugin_name]
        given += ["--compile"] * compile + ["--ops_type", ops_type]
        given += ["--ops", *groups] if groups else []
        return vendor_result(run_vendor_tool("onnx_utils", given))
    request = OperatorRequest(
        parse_number(ops_type),
        tuple(name.strip() for name in target.split(",")),
        context_length,
        exact_length,
        tuple(groups),
        known,
    )
    needs = needs_of(folder, request)
    listed = write_operator_list(needs, plugin_name, groups, Path())
    made: CompiledPlugin | None = None
    checked: tuple[Verified, ...] = ()
    if compile:
        made = compile_plugin(needs, plugin_name, Path(FOLDER), terminal.progress)
        if verify and made.plugin is not None:
            checked = verify_plugin(made.plugin, folder, terminal.progress)
    data = {
        "ran": "vermilion",
        "operators": len(needs.asked),
        "missing": sum(not one.row.verdict.is_known for one in needs.asked),
        "list": str(listed),
        "plugin": str(made.plugin.path) if made is not None and made.plugin is not None else None,
        "compiled": made.compiled if made is not None else 0,
        "reused": made.reused if made is not None else 0,
        "engine_programs": made.programs if made is not None else "",
        "seconds": made.seconds if made is not None else 0.0,
        "entries": [identity.as_json() for identity in needs.identities],
        "verified": [_verified_as_json(one) for one in checked],
    }
    is_right = all(one.is_right for one in checked)
    return Result(data, lambda: _view(needs, listed, made, checked), ok=is_right)


def vendor_result(run: VendorRun) -> Result:
    """Say that the vendor's tool ran, and how it ended."""
    data = {
        "ran": "vendor",
        "program": run.program,
        "words": run.words,
        "exit_code": run.exit_code,
    }
    ended = "done" if run.exit_code == 0 else f"failed with {run.exit_code}"
    return Result(data, lambda: f"ran {run.program}: {ended}", ok=run.exit_code == 0)


def _verified_as_json(one: Verified) -> dict[str, object]:
    return {
        **one.entry.identity.as_json(),
        "node": one.node,
        "error": one.error,
        "ok": one.is_right,
        "cpu_ms": one.milliseconds,
    }


def _view(
    needs: Needs, listed: Path, made: CompiledPlugin | None, checked: Sequence[Verified]
) -> RenderableType:
    from rich.console import Group

    columns = (
        Column("operator", 0, "name"), Column("shape", 0, "words"), Column("runs", 2),
        Column("compiled for", 1, "words"),
    )  # fmt: skip
    rows = []
    for one in needs.asked:
        operator = one.row.operator
        what = _compiled_for(one.identities) or f"— ({one.reason})"
        rows.append((operator.op_type, operator.shape_words(), str(operator.count), what))
    views: list[RenderableType] = [FittedTable(columns, rows), f"list: {listed}"]
    if made is not None and made.plugin is None:
        views.append("nothing is missing: no plugin is needed")
    elif made is not None and made.plugin is not None:
        size = bytes_for_people(made.plugin.path.stat().st_size)
        views.append(
            f"plugin: {made.plugin.path}, {len(made.plugin.entries)} operators, {size}"
            f" ({made.compiled} compiled in {made.seconds:.1f} s, {made.reused} were there)"
        )
        views.append(f"the engine's programs: {made.programs}")
    for result in checked:
        word = "right" if result.is_right else "WRONG"
        views.append(
            f"{word}: {result.entry.identity.words()}: error {result.error:.2%} against float64"
            f" on the weights of {result.node}"
        )
    return Group(*views)


def _compiled_for(identities: Sequence[Identity]) -> str:
    """Return formats and rows: `bfp16: 128, 256 rows; int4: a token`."""
    prompt = [one for one in identities if not one.is_decode]
    rows = ", ".join(dict.fromkeys(str(one.rows) for one in prompt))
    words = [f"{prompt[0].number}: {rows} rows"] if prompt else []
    words += dict.fromkeys(f"{one.number}: a token" for one in identities if one.is_decode)
    return "; ".join(words)
