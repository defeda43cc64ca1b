"""Texts name what exists: every option that one names in back quotes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import typer

from vermilion.cli import build_app, main

ROOT = Path(__file__).parents[3]
NAMED = re.compile(r"`vermilion ([a-z_]+)((?: [^`\n]*)?)`|^vermilion ([a-z_]+)(.*)$", re.MULTILINE)
OPTION = re.compile(r"(?<=\s)--[a-z][a-z0-9_-]+")


@cache
def options() -> dict[str, set[str]]:
    """Return the options of every verb by its name; of one in another, both names."""
    found = {}

    def walk(command: object, name: str) -> None:
        context = typer.Context(command, info_name=name or "vermilion")  # type: ignore[arg-type]
        parameters = command.get_params(context)  # type: ignore[attr-defined]
        found[name] = {word for one in parameters for word in (*one.opts, *one.secondary_opts)} | {
            "--help"
        }
        for inner, verb in getattr(command, "commands", {}).items():
            walk(verb, f"{name} {inner}".strip())

    walk(typer.main.get_command(build_app()), "")
    return found


def named() -> Iterator[tuple[str, str, str]]:
    """Yield (file, verb, option) for every option that a text names with its verb."""
    texts = [file for file in (ROOT / "src").rglob("*.py") if not file.name.endswith("_test.py")]
    for file in (*texts, ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for match in NAMED.finditer(file.read_text(encoding="utf-8")):
            verb, rest = (match[1], match[2]) if match[1] else (match[3], match[4])
            inner = f"{verb} {rest.split()[0]}" if rest.split() else verb
            name = inner if inner in options() else verb
            rest = rest.partition("#")[0]
            yield from ((file.name, name, option) for option in OPTION.findall(rest))


def test_every_option_that_a_text_names_exists() -> None:
    found = list(named())
    assert len(found) > 100
    wrong = [
        f"{file}: vermilion {verb} {option}"
        for file, verb, option in found
        if option not in options().get(verb, set())
    ]
    assert not wrong


@pytest.mark.parametrize(
    "words",
    [
        ["run", "m.onnx", "-o", "--threads", "1"],
        ["compile", "m.onnx", "--min-offload", "-o", "a.rai"],
        ["llm", "generate", "m", "-p", "--new-tokens", "3"],
    ],
)
def test_an_option_is_not_the_value_of_another(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert "needs a value, and `-" in capsys.readouterr().err
