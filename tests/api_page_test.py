"""The reference of the Python names: something of each. `readme_test.py` holds it up to date."""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

import vermilion
from pages import ROOT
from vermilion import export, genai


@pytest.fixture(scope="module")
def tool() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        yield import_module("api_page")
    finally:
        sys.path.remove(str(ROOT / "tools"))


def things(tool: ModuleType) -> Iterator[tuple[str, Any]]:
    for module in (vermilion, export, genai):
        for name in tool.public_names(module):
            yield f"{module.__name__}.{name}", getattr(module, name)
    for home in tool.RETURNED:
        module_name, _, name = home.partition(":")
        yield home, getattr(import_module(module_name), name)


def test_every_public_name_and_method_says_what_it_does(tool: ModuleType) -> None:
    silent = [name for name, thing in things(tool) if len(inspect.getdoc(thing) or "") < 20]
    for name, thing in things(tool):
        if inspect.isclass(thing):
            silent += [f"{name}.{key}" for key, value in tool.members(thing) if not value.__doc__]
    assert not silent


def test_functions_describe_each_argument(tool: ModuleType) -> None:
    functions = [thing for _, thing in things(tool) if inspect.isfunction(thing)]
    functions.append(vermilion.InferenceSession.__init__)
    assert len(functions) >= 5
    for function in functions:
        names = [name for name in inspect.signature(function).parameters if name != "self"]
        assert tool.arguments_described(function) == names, function.__qualname__


def test_every_name_has_a_section_and_the_page_no_address(tool: ModuleType) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name, thing in things(tool):
        assert f"\n### {name.rpartition('.')[2].rpartition(':')[2]}\n" in page, name
        if dataclasses.is_dataclass(thing):
            assert all(f"| `{field.name}` |" in page for field in dataclasses.fields(thing))
    assert " at 0x" not in page


def test_signatures_and_docstrings_as_markdown(tool: ModuleType) -> None:
    def long(first: int, *rest: str, second: bool = True, third: object = len) -> dict[str, int]:
        """Say it.

        Args:
            first: the first, of which
                there is more.
            rest: the others.

        Raises: nothing.
        """
        raise NotImplementedError

    assert tool.signature("f", long) == (
        "f(\n    first: int,\n    *rest: str,\n    second: bool = True,\n"
        "    third: object = <built-in function len>,\n) -> dict[str, int]"
    )
    assert tool.paragraphs(long.__doc__) == [
        "Say it.",
        "- `first`: the first, of which there is more.\n- `rest`: the others.",
        "Raises: nothing.",
    ]
