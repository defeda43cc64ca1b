"""The command line: arguments → one call → printed result.

A verb is one file and one line in `VERBS`. Nothing heavy is imported here or at the top of a
verb's file, so that `vermilion --help` is instant; a test holds that.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, cast

import typer

from vermilion.cli import (
    batch,
    bench,
    cache,
    compare,
    compile,
    devices,
    doctor,
    export,
    hello,
    hipify,
    inspect,
    llm,
    model_benchmark,
    model_generate,
    onnx_utils,
    optimize,
    quantize,
    run,
)
from vermilion.cli.output import Failure, emit_failure
from vermilion.cli.verb import INTERRUPTED
from vermilion.version import VERSION

# In the order in which `--help` lists them. A verb with verbs of its own is a `typer.Typer`.
VERBS: Mapping[str, Callable[..., int] | typer.Typer] = {
    "hello": hello.hello,
    "devices": devices.devices,
    "doctor": doctor.doctor,
    "export": export.export,
    "inspect": inspect.inspect,
    "optimize": optimize.optimize,
    "quantize": quantize.quantize,
    "compile": compile.compile,
    "run": run.run,
    "batch": batch.batch,
    "compare": compare.compare,
    "bench": bench.bench,
    "cache": cache.app,
    "llm": llm.app,
    "onnx_utils": onnx_utils.app,
    "model_generate": model_generate.model_generate,
    "model_benchmark": model_benchmark.model_benchmark,
    "hipify": hipify.hipify,
}

# What typer raises for wrong use: `UsageError`, which its versions keep in different modules.
_WRONG_USE = cast(type[Exception], typer.BadParameter.__base__)


def build_app() -> typer.Typer:
    """Give the whole command line."""
    app = typer.Typer(
        name="vermilion",
        help="Take a model to AMD CPUs, GPUs and NPUs: quantize, place, compile, run, prove.",
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, command in VERBS.items():
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line and give its exit code: 0 done, 1 failed, 2 wrong use."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = build_app()(words or ["--help"], prog_name="vermilion", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except _WRONG_USE as error:
        return _explain_wrong_use(error, as_json="--json" in words)
    if not words:
        return 2
    return code if isinstance(code, int) else 0


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"vermilion {VERSION}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    # Holds the options of `vermilion` itself; the verbs do the work.
    pass


def _explain_wrong_use(error: BaseException, *, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "vermilion"
    message = getattr(error, "format_message", error.__str__)().rstrip(".")
    failure = Failure(message, hint=f"`{path} --help` lists what it takes", exit_code=2)
    verb = path.removeprefix("vermilion").strip()
    emit_failure(verb, failure, as_json=as_json, out=sys.stdout)
    return failure.exit_code
