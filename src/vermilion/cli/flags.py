"""Commands with help of our own: plain lines, no type beside an option that takes no value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

Function = TypeVar("Function", bound=Callable[..., Any])


class _Command(TyperCommand):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        from vermilion.cli.help import help_text

        formatter.write(help_text(self, ctx))


class _Group(TyperGroup):
    def format_help(self, ctx: Any, formatter: Any) -> None:
        from vermilion.cli.help import help_text

        formatter.write(help_text(self, ctx))


class Verbs(typer.Typer):
    """A command line, or a verb that has verbs of its own."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(cls=_Group, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Function], Function]:
        """Return what makes a command of a function."""
        return super().command(name, cls=_Command, **settings)
