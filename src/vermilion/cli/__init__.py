"""The command line: arguments → one call → printed result.

A verb is one file and one line in `VERBS`. Only the file of the verb that is named is loaded, all
of them for `vermilion --help`; nothing heavy is imported there either, which a test holds.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Annotated, cast

import typer

from vermilion.cli.flags import Verbs
from vermilion.cli.output import Failure, emit_failure, give_up_stdout, open_streams
from vermilion.cli.verb import INTERRUPTED
from vermilion.version import VERSION

# By what people do, in the order in which `--help` lists them: a verb is a file of its name, and
# what in it is the verb, a function or, for a verb with verbs of its own, a `typer.Typer`.
SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Make a model ready": {
        "hello": "hello",
        "export": "export",
        "optimize": "optimize",
        "quantize": "quantize",
        "compile": "compile",
        "clib": "clib",
        "hipify": "hipify",
    },
    "Run it": {
        "run": "run",
        "batch": "batch",
        "serve": "serve",
        "top": "top",
        "cache": "app",
        "trust": "app",
    },
    "Measure and understand it": {
        "inspect": "inspect",
        "plan": "plan",
        "memory": "memory",
        "view": "view",
        "compare": "compare",
        "bench": "bench",
    },
    "Language models": {
        "llm": "app",
        "onnx_utils": "app",
        "model_generate": "model_generate",
        "model_benchmark": "model_benchmark",
    },
    "Devices": {
        "devices": "devices",
        "doctor": "doctor",
    },
}
VERBS: Mapping[str, str] = {
    name: found for verbs in SECTIONS.values() for name, found in verbs.items()
}

# What typer raises for wrong use: `UsageError`, which its versions keep in different modules.
_WRONG_USE = cast(type[Exception], typer.BadParameter.__base__)


def build_app(verbs: Sequence[str] = tuple(VERBS)) -> typer.Typer:
    """Return the command line with these verbs."""
    app = Verbs(
        name="vermilion",
        help="Take a model to AMD CPUs, GPUs and NPUs: quantize, place, compile, run, prove.",
        pretty_exceptions_enable=False,
        # An option's choices are ours to name; help is drawn by `cli/help.py`.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"], "obj": tuple(VERBS)},
    )
    app.callback()(_root)
    sections = {name: title for title, group in SECTIONS.items() for name in group}
    for name in verbs:
        command, section = load_verb(name), sections[name]
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=section)
        else:
            app.command(name, rich_help_panel=section)(command)
    return app


def load_verb(name: str) -> Callable[..., int] | typer.Typer:
    """Return what carries out a verb."""
    found = getattr(import_module(f"vermilion.cli.{name}"), VERBS[name])
    return cast("Callable[..., int] | typer.Typer", found)


# Bound by nanobind, which prints what is left of its objects at the end; torch.export loads triton.
_COUNTS_ITS_OBJECTS = ("triton", "iree.runtime")


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command line and give its exit code: 0 done, 1 failed, 2 wrong use."""
    open_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    # Without a verb in front, all are needed: for help, or to say which is nearest.
    begun = [*words, *_words_to_complete()]
    verbs = begun[:1] if begun and begun[0] in VERBS else tuple(VERBS)
    app = build_app(() if words == ["--version"] else verbs)
    try:
        try:
            code = app(words or ["--help"], prog_name="vermilion", standalone_mode=False)
        except (KeyboardInterrupt, typer.Abort):
            return INTERRUPTED
        except _WRONG_USE as error:
            code = _explain_wrong_use(error, as_json="--json" in words)
        sys.stdout.flush()
    except OSError as error:  # of help and of wrong use; verbs print their own results
        return give_up_stdout(error)
    if arguments is None and not any(name in sys.modules for name in _COUNTS_ITS_OBJECTS):
        gc.freeze()  # the process ends: what it holds is not to be looked through once more
    if not words:
        return 2
    return code if isinstance(code, int) else 0


def _words_to_complete() -> list[str]:
    """Return the words of the line that a shell completes, behind `vermilion`; none otherwise.

    Source: the completion scripts of typer, which `--show-completion` prints.
    """
    if "_VERMILION_COMPLETE" not in os.environ:
        return []
    line = os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", ""))
    whole = line.split()[1:]
    # The last word may be half a verb.
    return whole if len(whole) > 1 or line.endswith((" ", "\n")) else []


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
