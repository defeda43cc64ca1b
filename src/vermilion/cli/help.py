"""What `--help` prints: usage, purpose, and options by what they are for.

Plain lines, as long as the terminal is wide: they can be searched, copied and read in a pipe.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

from vermilion.cli.fitted import Definitions, Prose, draw
from vermilion.cli.output import console_on
from vermilion.cli.values import values_of

if TYPE_CHECKING:
    from rich.console import RenderableType

# What stands for so many values that they are listed behind the text.
_LISTED = ("SCHEME",)
# Longer lines than these are hard to read.
_MOST_COLUMNS = 100
COMMON = "Common options"
"""The last section of every verb: `--json`, `--verbose`, `--debug`, `--help`."""


def help_text(command: Any, context: Any) -> str:
    """Return a command's help as wide as stdout is, in bold where that is a terminal."""
    from rich.console import Group

    console = console_on(sys.stdout)
    console.width = min(console.width, _MOST_COLUMNS)
    with console.capture() as captured:
        draw(console, Group(*_parts(command, context)))
    return captured.get()


def _parts(command: Any, context: Any) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text.assemble(("Usage: ", "bold"), usage(command, context))
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        if paragraph:
            yield ""
            yield Prose(" ".join(paragraph.split()))
    for title, rows in (*_commands(command, context), *_parameters(command, context)):
        yield ""
        yield Text(f"{title}:", style="bold")
        yield Definitions(rows)
    if getattr(command, "commands", None):
        yield ""
        yield f"`{context.command_path} VERB --help` says more of one."


def usage(command: Any, context: Any) -> str:
    """Return a command's line of use: `vermilion bench [OPTIONS] [MODEL…]`."""
    words = [context.command_path, "[OPTIONS]"]
    for one in command.get_params(context):
        if one.param_type_name == "argument":
            name = str(one.metavar or one.name.upper())
            optional = not one.required and not name.startswith("[")
            words.append(f"[{name}]" if optional else name)
    return " ".join([*words, *(["VERB …"] if getattr(command, "commands", None) else [])])


def _commands(command: Any, context: Any) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the verbs of a group by their sections, in the order of both."""
    sections: dict[str, list[tuple[str, str]]] = {}
    commands = dict(getattr(command, "commands", {}))
    # Typer puts verbs that have verbs of their own at the end.
    order = context.obj if isinstance(context.obj, tuple) else ()
    names = [name for name in order if name in commands]
    for name in names if len(names) == len(commands) else commands:
        verb = commands[name]
        panel = getattr(verb, "rich_help_panel", None)
        title = panel if isinstance(panel, str) else "Verbs"
        sections.setdefault(title, []).append((name, _first_sentence(verb.help or "")))
    yield from sections.items()


def _first_sentence(text: str) -> str:
    return " ".join(cleandoc(text).partition("\n\n")[0].split()).rstrip(".")


def _parameters(command: Any, context: Any) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
    common: list[tuple[str, str]] = []
    for one in command.get_params(context):
        if getattr(one, "hidden", False):
            continue
        if one.param_type_name == "argument":
            sections["Arguments"].append((str(one.metavar or one.name.upper()), one.help or ""))
            continue
        panel = getattr(one, "rich_help_panel", None)
        row = (names(one), described(one))
        if panel == COMMON or "--help" in one.opts:
            common.append(row)
        else:
            sections.setdefault(panel if isinstance(panel, str) else "Options", []).append(row)
    if getattr(command, "commands", None):
        sections["Options"] += common
        common = []
    sections[COMMON] = common
    yield from ((title, rows) for title, rows in sections.items() if rows)


def names(option: Any) -> str:
    """Return how an option is written: `-o, --output FILE.html`, `--layers / --no-layers`."""
    opts = ", ".join(sorted(option.opts, key=len))
    if option.secondary_opts:
        return " / ".join((opts, *option.secondary_opts))
    return opts if is_flag(option) else f"{opts} {option.metavar or 'VALUE'}"


def is_flag(option: Any) -> bool:
    """Say whether an option takes no value."""
    return bool(getattr(option, "is_flag", False))


def described(option: Any) -> str:
    """Return what an option does, and what it is without being given."""
    words = [option.help or ""]
    if option.metavar in _LISTED:
        words.append(f"One of {', '.join(values_of(option.metavar))}.")
    default, shown = option.default, option.show_default
    if isinstance(shown, str):
        words.append(f"[default: {shown}]")
    elif option.required:
        words.append("[required]")
    elif shown and isinstance(default, bool) and option.secondary_opts:
        word = (option.opts if default else option.secondary_opts)[0]
        words.append(f"[default: {word}]")
    elif shown and not isinstance(default, bool) and default not in (None, ""):
        value = f"{default:g}" if isinstance(default, float) else str(default)
        words.append(f"[default: {value}]")
    return " ".join(filter(None, words))
