"""What a chat template may do beside jinja2's own: mark answers, and no arithmetic without end."""

from __future__ import annotations

import re
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

_MOST_ITEMS = 1 << 20  # of a repeated text or list
_MOST_BITS = 1 << 12  # of a power
_FILLING = ("center", "expandtabs", "ljust", "rjust", "zfill")
_WIDE = re.compile(r"[0-9]{6}|\*")  # a field of so many columns, or of as many as an argument says


class Answers(Extension):  # type: ignore[misc]
    """`{% generation %}` marks what the model wrote, for training: the text is the same."""

    tags = {"generation"}  # noqa: RUF012  (as jinja2 declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        """Return what stands between the marks, with variables of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class BoundedEnvironment(ImmutableSandboxedEnvironment):  # type: ignore[misc]
    """A sandbox in which a short template makes no text that fills the memory."""

    intercepted_binops = frozenset(("*", "**", "%"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        del self.globals["lipsum"], self.filters["center"]

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Say whether a template may read something: no method that fills a text to a width."""
        is_filling = isinstance(obj, str) and attr in _FILLING
        return not is_filling and super().is_safe_attribute(obj, attr, value)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Return what an operator gives, or refuse what it would give."""
        if operator == "*":
            for own, count in ((left, right), (right, left)):
                if isinstance(own, str | list | tuple) and isinstance(count, int):
                    _check(len(own) * count, _MOST_ITEMS)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check(left.bit_length() * right, _MOST_BITS)
        elif operator == "%" and isinstance(left, str) and _WIDE.search(left):
            raise SecurityError("a field is too wide")
        return super().call_binop(context, operator, left, right)


def _check(size: int, most: int) -> None:
    if size > most:
        raise SecurityError(f"a result of {size:,} parts; {most:,} are the most")
