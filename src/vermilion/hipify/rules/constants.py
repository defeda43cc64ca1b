"""Where C++ wants a constant, and what stands for the size of a wave there."""

from __future__ import annotations

from vermilion.hipify.finding import Edit
from vermilion.hipify.rules.source import Source

WAVE_SIZE = "HIPIFY_WAVE_SIZE"

# The host's pass has no GPU: it takes the smaller, unless a build says otherwise.
_DEFINITION = f"""\
#ifndef {WAVE_SIZE}  // lanes of a wave at compile time
#if defined(__GFX8__) || defined(__GFX9__)
#define {WAVE_SIZE} 64
#else
#define {WAVE_SIZE} 32
#endif
#endif
"""


def with_wave_size(source: Source, place: int) -> tuple[Edit, ...]:
    """Return the edits that put the size of a wave, as a constant, at a place."""
    edits = [source.edit(place, place, WAVE_SIZE)]
    if not any(source.word(at - 1) == "define" for at in source.places.get(WAVE_SIZE, ())):
        at = _behind_includes(source)
        edits.append(Edit(at, at, _DEFINITION))
    return tuple(edits)


def _behind_includes(source: Source) -> int:
    """Return the offset of the line behind the first includes that no test is around."""
    text, at, depth = source.tokens.text, 0, 0
    for index in source.tokens.meaningful:
        start = source.tokens.starts[index]
        kind, raw = source.tokens.kinds[index], source.tokens.raw(index)
        if kind == "include" and depth == 0:
            at = text.find("\n", start) + 1 or len(text)
        elif raw == "{":
            break
        elif raw in {"if", "ifdef", "ifndef"} and text[:start].rstrip(" \t").endswith("#"):
            depth += 1
        elif raw == "endif":
            depth -= 1
    return at


def constant_context(source: Source, place: int) -> str:
    """Return what needs a constant at a place: an array, a template, …; empty if nothing does."""
    for at in range(place - 1, max(-2, place - 60), -1):
        word = source.word(at) if at >= 0 else ";"
        if word in {";", "{", "}"}:
            return _in_statement(source, at + 1, place, brace=word == "{" and at)
        if word == "[" and source.closing(at) >= place:
            return "the size of an array" if _declares_array(source, at) else ""
        if word == "<" and _is_template(source, at, place):
            return "an argument of a template"
        if word == "(" and source.closing(at) >= place:
            before = source.word(at - 1)
            if before in {"static_assert", "alignas", "__launch_bounds__"}:
                return f"`{before}`"
        if word in {"if", "elif"} and source.word(at - 1) == "#":
            return "a test of the preprocessor"
    return ""


def _in_statement(source: Source, begin: int, place: int, *, brace: int | bool) -> str:
    words = source.words[begin:place]
    if "constexpr" in words and "=" in words:
        return "a `constexpr`"
    if words[:1] == ["case"]:
        return "a `case`"
    before = source.words[max(0, int(brace) - 4) : int(brace)] if brace else []
    return "an enumerator" if "enum" in before else ""


def _declares_array(source: Source, bracket: int) -> bool:
    """Say whether a `[` stands in a declaration: behind a type and a name."""
    at = bracket - 1
    while source.word(at) == "]":  # of several dimensions
        at = source.opening(at) - 1
    before = source.word(at - 1)
    if source.kind(at) != "word" or at < 1:
        return False
    if source.kind(at - 1) == "word":
        return before not in {"return", "else", "case", "delete", "throw", "do"} or before == "new"
    return before == ">" and source.word(at - 2) not in {")", "]"}


def _is_template(source: Source, opening: int, place: int) -> bool:
    if source.kind(opening - 1) != "word":
        return False
    plain = {"::", ",", "*", "/", "+", "-", "(", ")", "<", "%"}
    for at in range(opening + 1, place + 30):
        word = source.word(at)
        if word in {">", ">>"} and at > place:
            return source.word(at + 1) in {"(", "::", "{", ";", ",", ">", "&", "*", ")"} or (
                at + 1 < len(source.words) and source.kind(at + 1) == "word"
            )
        if source.kind(at) not in {"word", "number"} and word not in plain:
            return False
    return False
