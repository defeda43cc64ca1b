"""CUDA C++ source as tokens that tile it: every character belongs to exactly one token.

One regular expression cuts the whole text, so that nothing can get lost between tokens and a file
of 200,000 lines takes seconds. Line splices are part of the token that they are in, as the C++
standard's second translation phase says; a raw string keeps its own.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

SPLICE = r"\\\r?\n"
# What may stand between the words of a directive: `#include /* ours */ <a.h>`.
BETWEEN = r"(?:[ \t]|/\*[^*\n]*\*/)*"

# Alternatives are tried in this order; the last takes any character, so a match never fails.
_TOKEN = re.compile(
    rf"""
    (?P<space>(?:[ \t\r\n\f\v]|{SPLICE})+)
  | (?P<include>\#{BETWEEN}(?:include|include_next|import){BETWEEN}(?:<[^>\n]*>|"[^"\n]*"))
  | (?P<comment>/(?:{SPLICE})*/(?:{SPLICE}|[^\n])*
      | /(?:{SPLICE})*\*[\s\S]*?\*(?:{SPLICE})*/)
  | (?P<raw>(?:u8|[uUL])?R"(?P<mark>[^()\\\s]{{0,16}})\([\s\S]*?\)(?P=mark)")
  | (?P<broken>/(?:{SPLICE})*\*[\s\S]*|(?:u8|[uUL])?R"[^()\\\s]{{0,16}}\([\s\S]*)
  | (?P<string>(?:u8|[uUL])?"(?:\\\r\n|\\[\s\S]|[^"\\\n])*")
  | (?P<char>(?:u8|[uUL])?'(?:\\\r\n|\\[\s\S]|[^'\\\n])+')
  | (?P<word>[^\W\d](?:(?:{SPLICE})*[\w$])*)
  | (?P<number>\.?\d(?:[eEpP][+-]|'(?=\w)|[\w.]|{SPLICE}(?=[\w.]))*)
  | (?P<punctuation><<<|>>>|<<=|>>=|->\*?|\.\.\.|::|[-+*/%&|^=!<>]=|&&|\|\||\+\+|--|<<|>>
      |\#\#|[^\s\w])
  | (?P<other>[\s\S])
    """,
    re.VERBOSE,
)

_SPLICES = re.compile(SPLICE)

# What a reader of the program's meaning does not see.
_BLANK = frozenset({"space", "comment"})


@dataclass(frozen=True)
class Tokens:
    """A text and where its tokens begin; token `i` reaches to where the next one begins."""

    text: str
    kinds: Sequence[str]
    starts: Sequence[int]  # one more than kinds: the last is the length of the text

    def __len__(self) -> int:
        return len(self.kinds)

    def raw(self, index: int) -> str:
        """Return a token as it is written, splices and all."""
        return self.text[self.starts[index] : self.starts[index + 1]]

    def word(self, index: int) -> str:
        """Return a token as the compiler sees it: without splices."""
        raw = self.raw(index)
        return _SPLICES.sub("", raw) if "\\" in raw else raw

    @cached_property
    def meaningful(self) -> list[int]:
        """Return the indices of the tokens that are neither space nor comment."""
        return [i for i, kind in enumerate(self.kinds) if kind not in _BLANK]

    @cached_property
    def line_starts(self) -> list[int]:
        """Return the offset at which each line begins."""
        return [0, *(found.end() for found in re.finditer("\n", self.text))]

    def position(self, offset: int) -> tuple[int, int]:
        """Return the line and column of an offset, both counted from 1."""
        line = bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1


def tokenize(text: str) -> Tokens:
    """Cut a source text into tokens; never fails, and loses nothing."""
    kinds: list[str] = []
    starts: list[int] = []
    for found in _TOKEN.finditer(text):
        kinds.append(found.lastgroup or "other")
        starts.append(found.start())
    starts.append(len(text))
    return Tokens(text, kinds, starts)


def broken_tokens(tokens: Tokens) -> list[int]:
    """Return the tokens that begin a comment, string or character that nothing ends.

    A quote in a line that a directive begins is left alone: `#error don't` is correct C++.
    """
    found = []
    for index in tokens.meaningful:
        raw = tokens.raw(index)
        if tokens.kinds[index] == "broken" or (raw == '"' and not in_directive(tokens, index)):
            found.append(index)
    return found


def in_directive(tokens: Tokens, index: int) -> bool:
    """Say whether a token stands in a line that begins with `#`, splices counted as no end."""
    begin = tokens.starts[index]
    while True:
        line_start = tokens.text.rfind("\n", 0, begin) + 1
        if not tokens.text.endswith(("\\\n", "\\\r\n"), 0, line_start):
            break
        begin = line_start - 1
    return tokens.text[line_start : tokens.starts[index] + 1].lstrip().startswith("#")


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
