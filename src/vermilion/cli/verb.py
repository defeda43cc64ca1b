"""What every verb shares: `--json`, `--verbose`, `--debug`, exit codes, errors without tracebacks.

A verb is a function from its options to a `Result`; `@verb("name")` makes a command of it.
"""

from __future__ import annotations

import inspect
import logging
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec, TextIO, get_args

import typer
from typer.models import ArgumentInfo, OptionInfo

from vermilion.cli.help import COMMON
from vermilion.cli.options import Threads
from vermilion.cli.output import (
    Failure,
    Result,
    console_on,
    emit,
    emit_failure,
    forgive_unprintable,
    give_up_stdout,
    say,
    stdout_for_result_only,
)
from vermilion.cli.values import completion_of
from vermilion.cores import at_most
from vermilion.errors import (
    ArtifactError,
    DeviceError,
    ModelError,
    OptionError,
    UnsupportedError,
    VermilionError,
    is_full,
)
from vermilion.files import hint_of
from vermilion.progress import Progress, no_progress

INTERRUPTED = 130
"""The exit code that shells give to what Ctrl-C ended: 128 + SIGINT."""

Json = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object on stdout.", rich_help_panel=COMMON),
]
Verbose = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Log each step on stderr.", rich_help_panel=COMMON),
]
Debug = Annotated[
    bool,
    typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=COMMON),
]

_COMMON = {"json": Json, "verbose": Verbose, "debug": Debug}

Options = ParamSpec("Options")
Work = Callable[Concatenate["Terminal", Options], Result]
Command = Callable[..., int]


@dataclass
class Terminal:
    """How a verb speaks while it works. What it found out, it returns."""

    verb: str
    as_json: bool = False
    verbose: bool = False
    debug: bool = False
    progress: Progress = no_progress
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        """Tell of something that the user should know about the result; also kept for JSON."""
        self.warnings.append(text)
        say("warning:", "bold yellow", text)

    @contextmanager
    def measuring(self, what: str) -> Iterator[None]:
        """Warn behind the block if other programs kept the processors busy meanwhile."""
        from vermilion.busy import Neighbours, disturbance

        neighbours = Neighbours()
        yield
        if disturbed := disturbance(what, neighbours.share()):
            self.warn(disturbed)


def verb(name: str, *, limits_threads: bool = False) -> Callable[[Work[Options]], Command]:
    """Return a decorator that makes a command from a function of a `Terminal` and options.

    Before → after: `def ls(terminal, *, root: Root) -> Result` becomes a function of `root`
    and the common options that prints the result and gives the exit code. `limits_threads` adds
    `--threads`, for verbs that run a model on the way.
    """

    def decorate(work: Work[Options]) -> Command:
        def command(*args: Any, json: bool, verbose: bool, debug: bool, **options: Any) -> int:
            terminal = Terminal(name, as_json=json, verbose=verbose, debug=debug)

            def checked() -> Result:
                _check_numbers(options, own)
                threads = options.pop("threads") if limits_threads else 0
                with at_most(threads):
                    return work(terminal, *args, **options)

            return carry_out(terminal, checked)

        own = list(inspect.signature(work, eval_str=True).parameters.values())[1:]
        for parameter in own:
            _name_value(parameter.annotation)
        own += [_option("threads", Threads, 0)] if limits_threads else []
        own += [_option(name, kind, False) for name, kind in _COMMON.items()]
        command.__signature__ = inspect.Signature(own, return_annotation=int)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in own}
        command.__doc__ = work.__doc__
        command.__name__ = work.__name__
        command.__module__ = work.__module__
        return command

    return decorate


# No option means a number as large as this, and what counts in C counts no further.
_LARGEST_NUMBER = 2**31 - 1


def _check_numbers(options: Mapping[str, object], own: Iterable[inspect.Parameter]) -> None:
    """Refuse numbers that no option means: NaN and infinity, which pass every bound, huge ones.

    Raises: OptionError.
    """
    for parameter in own:
        value = options.get(parameter.name)
        if isinstance(value, float | int) and not abs(value) <= _LARGEST_NUMBER:
            name = _written(parameter)
            raise OptionError(
                f"`{name}` is {value:g}, which is no number from "
                f"-{_LARGEST_NUMBER:,} to {_LARGEST_NUMBER:,}"
                if isinstance(value, float)
                else f"`{name}` is a number of {len(str(abs(value)))} digits, which is too large"
            )


def _written(parameter: inspect.Parameter) -> str:
    """Return how an option is written: typer takes the first of its names for a default value."""
    words: list[object] = []
    for one in get_args(parameter.annotation):
        if isinstance(one, OptionInfo):
            words += (one.default, *(one.param_decls or ()))
    names = [word for word in words if isinstance(word, str) and word.startswith("--")]
    return names[0] if names else f"--{parameter.name.replace('_', '-')}"


# What stands in `--help` for a value, where the option itself does not say.
_METAVARS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}


def _name_value(annotation: object) -> None:
    """Give an option a word for its value, and the shell what to complete it with."""
    kind, *settings = get_args(annotation)
    kinds = get_args(kind) or (kind,)
    for option in settings:
        if not isinstance(option, OptionInfo | ArgumentInfo) or bool in kinds:
            continue
        if option.metavar is None:
            inner = [one for outer in kinds for one in (get_args(outer) or (outer,))]
            option.metavar = next((_METAVARS[one] for one in inner if one in _METAVARS), None)
        if option.autocompletion is None and option.metavar is not None:
            option.autocompletion = completion_of(option.metavar)


def carry_out(terminal: Terminal, work: Callable[[], Result]) -> int:
    """Do the work, print its result or why there is none, and give the exit code."""
    forgive_unprintable()
    _set_noise(terminal.verbose)
    with ExitStack() as stack:
        out = stack.enter_context(stdout_for_result_only()) if terminal.as_json else sys.stdout
        try:
            found: Result | Failure = _with_progress(terminal, work)
        except BrokenPipeError as error:  # of verbs that print as they go
            return give_up_stdout(error)
        except (KeyboardInterrupt, Exception) as error:
            found = _failure_of(error, terminal)
        try:
            return _print(found, terminal, out)
        except OSError as error:
            return give_up_stdout(error)


def _print(found: Result | Failure, terminal: Terminal, out: TextIO) -> int:
    """Print what a verb came to, and give the exit code. Raises: OSError where it cannot."""
    if isinstance(found, Result):
        warned = terminal.warnings
        try:
            emit(terminal.verb, found, as_json=terminal.as_json, out=out, warnings=warned)
            return 0 if found.ok else 1
        except OSError:
            raise
        except (KeyboardInterrupt, Exception) as error:
            found = _failure_of(error, terminal)
    emit_failure(terminal.verb, found, as_json=terminal.as_json, out=out)
    return found.exit_code


def _failure_of(error: KeyboardInterrupt | Exception, terminal: Terminal) -> Failure:
    """Return what to say; this is the last door: nothing may leave it as a traceback."""
    if isinstance(error, KeyboardInterrupt):
        return Failure("interrupted", exit_code=INTERRUPTED)
    if terminal.debug:
        traceback.print_exc()
    return describe(error, terminal.verb)


# What to do about an error that brings no advice of its own, by who can fix it.
_ADVICE = {
    OptionError: "`vermilion {verb} --help` lists what it takes",
    ModelError: "check that the file is complete; if it is, make it again, or report what it has",
    UnsupportedError: "leave that out or choose another way; if it is needed, report it",
    DeviceError: "`vermilion doctor` looks for what is wrong with this machine",
    ArtifactError: "make it again from the model",
}


def describe(error: Exception, verb: str) -> Failure:
    """Say in the user's words what went wrong in `vermilion VERB`, and what to do about it."""
    if isinstance(error, VermilionError):
        kinds = [text for kind, text in _ADVICE.items() if isinstance(error, kind)]
        hint = error.hint or "".join(kinds[:1]).format(verb=verb)
        return Failure(error.message, error.where, hint, error.exit_code)
    if isinstance(error, OSError) and error.strerror:
        return Failure(error.strerror, where=str(error.filename or ""), hint=hint_of(error))
    if is_full(error):
        return Failure("no space left on the disk", hint="make room, or write to another disk")
    if isinstance(error, MemoryError):
        return Failure("out of memory", hint="close other programs, or use a smaller batch")
    return Failure(
        f"this is a fault in vermilion: {type(error).__name__}: {_first_line(error)}",
        hint="run it again with `--debug` to see where, and report that",
    )


def _with_progress(terminal: Terminal, work: Callable[[], Result]) -> Result:
    if not sys.stderr.isatty():
        return work()
    from vermilion.cli.output import Bars

    with Bars(console_on(sys.stderr)) as bars:
        terminal.progress = bars
        return work()


def _set_noise(verbose: bool) -> None:
    """Let the libraries below speak only when asked to."""
    logging.basicConfig(format="%(name)s: %(message)s", level=logging.ERROR)
    logging.getLogger("vermilion").setLevel(logging.DEBUG if verbose else logging.WARNING)
    if not verbose and not sys.warnoptions:
        warnings.simplefilter("ignore")


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else ""


def _option(name: str, annotation: object, default: object) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
