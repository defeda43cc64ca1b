"""The reference of the command line, from what `--help` prints."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc
from typing import Any

import typer

from vermilion.cli import SECTIONS, VERBS, build_app
from vermilion.cli.help import COMMON, described, names, usage
from vermilion.cli.values import values_of

# What a metavar stands for, where it names a list.
_LISTS = {
    "TARGET": "targets.md#targets",
    "GPU": "targets.md#targets",
    "SCHEME": "targets.md#data-types",
}


def cli_page() -> str:
    """Return the page, as Markdown."""
    root: Any = typer.main.get_command(build_app())
    context: Any = typer.Context(root, info_name="vermilion")
    lines = [
        "# Command line",
        "",
        "Made by `python tools/tables.py` from what `vermilion VERB --help` prints.",
        "",
        "Results go to stdout, all else to stderr. `--json` prints one object "
        "([its keys](json.md)). Exit codes: 0 done, 1 the work failed or a gate was not met, "
        "2 wrong use, 130 interrupted. `NO_COLOR` is obeyed; `VERMILION_CACHE` names the cache "
        "folder. `vermilion --install-completion` teaches the shell all verbs, options and values.",
        "",
        f"Every verb has the {COMMON.lower()} `--json`, `--verbose` (`-v`), `--debug`, `--help`.",
    ]
    for title, group in SECTIONS.items():
        lines += ["", f"## {title}"]
        for name in group:
            lines += _verb(root.commands[name], context, name)
    assert all(name in root.commands for name in VERBS)
    return "\n".join(lines) + "\n"


def _verb(command: Any, parent: Any, name: str) -> Iterator[str]:
    context: Any = typer.Context(command, info_name=name, parent=parent)
    yield ""
    yield f"### {context.command_path}"
    yield ""
    yield f"```text\n{usage(command, context)}\n```"
    for paragraph in cleandoc(command.help or "").split("\n\n"):
        yield ""
        yield " ".join(paragraph.split())
    rows = [row for one in command.get_params(context) if (row := _row(one))]
    if rows:
        yield ""
        yield "| option | what it does |"
        yield "|---|---|"
        yield from rows
    for inner, verb in getattr(command, "commands", {}).items():
        yield from _verb(verb, context, inner)


def _row(option: Any) -> str:
    panel = getattr(option, "rich_help_panel", None)
    if panel == COMMON or "--help" in option.opts or getattr(option, "hidden", False):
        return ""
    if option.param_type_name == "argument":
        name, words = str(option.metavar or option.name.upper()), option.help or ""
    else:
        name, words = names(option), described(option)
    metavar = str(option.metavar or "").removesuffix(",…").partition("|")[0]
    link = _LISTS.get(metavar)
    if link:
        words += f" ([{metavar}]({link}))"
    elif metavar not in _LISTS and metavar.isupper() and values_of(metavar):
        words += f" {metavar}: {', '.join(values_of(metavar))}."
    return f"| `{_cell(name)}` | {_cell(words)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
