"""Commands with help of our own, in which no option is taken for the value of another."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, takewhile
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

Function = TypeVar("Function", bound=Callable[..., Any])


class _Command(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse `-o --json`, which would name a folder so. Raises: UsageError."""
        options = [one for one in self.get_params(ctx) if one.param_type_name == "option"]
        names = {word for one in options for word in (*one.opts, *one.secondary_opts)}
        takers = {word for one in options if not _is_flag(one) for word in one.opts}
        for word, value in pairwise(takewhile(lambda one: one != "--", args)):
            if word in takers and value in names and not ctx.resilient_parsing:
                ctx.fail(f"Option '{word}' needs a value, and `{value}` is an option")
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from vermilion.cli.help import help_text

        formatter.write(help_text(self, ctx))


def _is_flag(option: Any) -> bool:
    return bool(option.is_flag or option.count)


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
