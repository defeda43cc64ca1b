"""Commands whose help shows no type beside an option that takes no value.

Typer shows `<bool>` there, as if one had to be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

Function = TypeVar("Function", bound=Callable[..., Any])


def _without_types(parameters: Iterable[Any]) -> list[Any]:
    found = list(parameters)
    for parameter in found:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return found


class _Command(TyperCommand):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class _Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class Verbs(typer.Typer):
    """A command line, or a verb that has verbs of its own."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """Return what makes a command of a function."""
        return super().command(name, cls=_Command, **settings)
