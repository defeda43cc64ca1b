"""The arguments of a call, found by its parentheses."""

from __future__ import annotations

from collections.abc import Sequence

from vermilion.hipify.tokens import Tokens

Span = tuple[int, int]
"""The first and last token of a piece of source, counted in all tokens."""

_DEPTH = {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}


def split_arguments(tokens: Tokens, meaningful: Sequence[int], opening: int) -> list[Span]:
    """Return each argument of the call whose `(` stands at `opening`, counted in `meaningful`."""
    if opening >= len(meaningful) or tokens.word(meaningful[opening]) != "(":
        return []
    spans: list[Span] = []
    depth, first = 0, opening + 1
    for place in range(opening, len(meaningful)):
        word = tokens.word(meaningful[place])
        depth += _DEPTH.get(word, 0)
        between = depth == 1 and word == "," and not _in_angles(tokens, meaningful, first, place)
        if depth == 0 or between:
            if place > first:
                spans.append((meaningful[first], meaningful[place - 1]))
            first = place + 1
        if depth == 0:
            return spans
    return []


def closing(tokens: Tokens, meaningful: Sequence[int], opening: int) -> int:
    """Return the place of the bracket that ends the one at `opening`.

    The last place if none does.
    """
    depth = 0
    for place in range(opening, len(meaningful)):
        depth += _DEPTH.get(tokens.word(meaningful[place]), 0)
        if depth == 0:
            return place
    return len(meaningful) - 1


def text_of(tokens: Tokens, span: Span) -> str:
    """Return a piece of source as it is written."""
    return tokens.text[tokens.starts[span[0]] : tokens.starts[span[1] + 1]]


def _in_angles(tokens: Tokens, meaningful: Sequence[int], first: int, place: int) -> bool:
    """Say whether a comma stands between the angles of a template: `f<a, b>` is one argument."""
    words = [tokens.word(index) for index in meaningful[first:place]]
    opens = len(words) > 1 and tokens.kinds[meaningful[first]] == "word" and words[1] == "<"
    return opens and words.count("<") > words.count(">")
