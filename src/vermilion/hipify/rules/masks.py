"""Masks of lanes: HIP's `_sync` functions take 64 bits, a lane each, and refuse shorter types."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from vermilion.hipify.finding import Edit
from vermilion.hipify.rules.source import Hit, Source, integer, is_64_bit
from vermilion.hipify.rules.warp_plan import Warps

_VOTES = r"__(?:ballot|any|all|match_any|match_all|reduce_\w+)_sync"
_SHUFFLES = r"__(?:shfl|shfl_up|shfl_down|shfl_xor)_sync"
# HIP's functions trap where a mask names lanes that do not take part. On a wave of 64 lanes these
# are the other half's, so no number is right for all of CUDA's warps.
ALL_LANES = "__activemask()"
NARROW = frozenset(
    {"unsigned", "int", "uint32_t", "int32_t", "uint", "u32", "auto32", "signed", "__uint32_t"}
)
_WIDE = frozenset(
    {"uint64_t", "int64_t", "long", "size_t", "lanemask_t", "u64", "__ballot", "__ballot_sync",
     "__activemask", "__match_any_sync", "__match_all_sync", "ullong"}
)  # fmt: skip
ALL_OF_32 = 0xFFFFFFFF
_LIMITS = frozenset({"UINT_MAX", "UINT32_MAX"})
_MAX_DEPTH = 8


@dataclass(frozen=True)
class Mask:
    """What an expression stands for: its width, and its value if known."""

    is_wide: bool
    place: int  # where a finding points: at the number, if there is one
    value: int | None = None


def mask_32_bit(source: Source) -> Iterator[Hit]:
    """Find masks of 32 lanes that are given to `_sync` functions."""
    warps = Warps(source)
    for place, name, arguments in source.calls(f"{_SHUFFLES}|{_VOTES}|__syncwarp"):
        is_vote = re.fullmatch(_VOTES, name) is not None
        if not arguments or (is_vote and warps.plan(place) == "width"):
            continue  # such a vote loses its mask
        first, last = (source.place_of(index) for index in arguments[0])
        mask = read_mask(source, first, last)
        if mask is None or mask.is_wide:
            continue
        what = f"`{source.text(arguments[0])}` is a mask of 32 lanes for `{name}`"
        edits: tuple[Edit, ...] = ()
        if name == "__syncwarp":
            edits = (source.edit(first, last, ""),)
        elif not is_vote or (mask.value == ALL_OF_32 and warps.plan(place) == "wave"):
            # Lanes of a wave go in step: which of them shuffle is decided where they do.
            edits = (source.edit(first, last, ALL_LANES),)
        yield Hit("mask-32-bit", first, what, edits=edits)


def read_mask(source: Source, first: int, last: int, depth: int = 0) -> Mask | None:
    """Return what a mask is, None where only a compiler could tell."""
    if depth > _MAX_DEPTH or first > last:
        return None
    if source.word(first) == "(" and source.closing(first) == last:
        return read_mask(source, first + 1, last - 1, depth + 1)
    inner = _behind_cast(source, first, last)
    if inner is not None:
        narrow, begin, end = inner
        mask = read_mask(source, begin, end, depth + 1)
        value = mask.value if mask is not None else None
        return Mask(not narrow, mask.place if mask else first, value)
    if first == last:
        return _of_word(source, first, depth)
    if source.word(first) in {"~", "-"}:
        mask = read_mask(source, first + 1, last, depth + 1)
        if mask is None or mask.is_wide or mask.value is None:
            return mask
        value = (~mask.value if source.word(first) == "~" else -mask.value) & ALL_OF_32
        return Mask(False, mask.place, value)
    if source.words[first : first + 2] == ["std", "::"] and source.word(last) == ")":
        words = source.words[first : last + 1]
        if "numeric_limits" in words and "max" in words and not NARROW.isdisjoint(words):
            return Mask(False, first, ALL_OF_32)
    return _of_sum(source, first, last, depth)


def _behind_cast(source: Source, first: int, last: int) -> tuple[bool, int, int] | None:
    """Return whether a cast makes 32 bits, and what it is of."""
    if source.word(first) == "(":
        end = source.closing(first)
        kind = _type_between(source, first + 1, end - 1)
        return (kind, end + 1, last) if kind is not None and end < last else None
    if source.word(first) in {"static_cast", "reinterpret_cast"}:
        at = first + 1
        while at < last and source.word(at) not in {">", "("}:
            at += 1
        kind = _type_between(source, first + 2, at - 1)
        if kind is not None and source.word(at + 1) == "(":
            return kind, at + 2, last - 1
        return None
    at = first
    while source.word(at) in {"std", "::", "unsigned", "int"} or source.word(at) in NARROW | _WIDE:
        at += 1
        if at - first > 4:
            return None
    if at > first and source.word(at) in {"(", "{"} and source.closing(at) == last:
        kind = _type_between(source, first, at - 1)
        return (kind, at + 1, last - 1) if kind is not None else None
    return None


def _type_between(source: Source, first: int, last: int) -> bool | None:
    """Say whether words are a type of 32 bits; None if they are no type of integers."""
    words = [word for word in source.words[first : last + 1] if word not in {"std", "::", "const"}]
    if not words or not all(word in NARROW | _WIDE for word in words):
        return None
    return _WIDE.isdisjoint(words)


def _of_word(source: Source, place: int, depth: int) -> Mask | None:
    word = source.word(place)
    if source.kind(place) == "number":
        return Mask(is_64_bit(word), place, integer(word))
    if word in _LIMITS:
        return Mask(False, place, ALL_OF_32)
    if source.kind(place) != "word":
        return None
    return _of_macro(source, word, depth) or _of_variable(source, word, place, depth)


def _of_macro(source: Source, name: str, depth: int) -> Mask | None:
    for place in source.places.get(name, ()):
        if source.word(place - 1) != "define":
            continue
        end = place + 1
        while end < len(source.words) and source.on_one_line(place, end):
            end += 1
        return read_mask(source, place + 1, end - 1, depth + 1)
    return None


def _of_variable(source: Source, name: str, use: int, depth: int) -> Mask | None:
    """Return what a variable holds, from its last declaration before its use."""
    for place in reversed(source.places.get(name, ())):
        if place >= use:
            continue
        if source.words[place - 1] == "auto" and source.word(place + 1) == "=":
            return read_mask(source, place + 2, _end_of_value(source, place + 2), depth + 1)
        narrow = declared_type(source, place)
        if narrow is None:
            continue
        if not narrow:
            return Mask(True, place)
        if source.word(place + 1) not in {"=", "{", "("}:
            return Mask(False, place)  # a parameter, or assigned elsewhere
        begin = place + 2
        end = _end_of_value(source, begin)
        if re.match(r"__(?:activemask|ballot|match)", source.word(begin)) and (
            Warps(source).plan(use) == "wave"
        ):
            return None  # another rule widens it
        mask = read_mask(source, begin, end, depth + 1)
        fixed = mask is not None and source.word(end + 1) == ";" and _is_set_once(source, name)
        return Mask(False, place, mask.value if mask is not None and fixed else None)
    return None


def _is_set_once(source: Source, name: str) -> bool:
    """Say whether a variable keeps the value of its declaration."""
    changes = {"=", "&=", "|=", "^=", "<<=", ">>=", "+=", "-=", "++", "--"}
    places = source.places.get(name, ())
    return sum(source.word(place + 1) in changes for place in places) <= 1


def declared_type(source: Source, place: int) -> bool | None:
    """Say whether a name is declared here with 32 bits, None if it is not declared here."""
    first = place
    while source.word(first - 1) in NARROW | _WIDE | {"std", "::", "const", "constexpr", "static"}:
        first -= 1
    words = [
        word
        for word in source.words[first:place]
        if word not in {"std", "::", "const", "constexpr", "static"}
    ]
    return _WIDE.isdisjoint(words) if words else None


def _end_of_value(source: Source, begin: int) -> int:
    depth = 0
    for place in range(begin, len(source.words)):
        word = source.word(place)
        depth += (word in {"(", "[", "{"}) - (word in {")", "]", "}"})
        if depth < 0 or (depth == 0 and word in {";", ","}):
            return place - 1
    return begin


def _of_sum(source: Source, first: int, last: int, depth: int) -> Mask | None:
    """Return the width of an expression of numbers and names: as wide as its widest part."""
    narrow = False
    for place in range(first, last + 1):
        kind, word = source.kind(place), source.word(place)
        if kind == "punctuation":
            if word in {"?", ".", "->", "[", "<", ">", "::"}:
                return None
            continue
        if kind == "word" and word in NARROW:
            narrow = True
            continue
        part = _of_word(source, place, depth + 1)
        if part is not None and part.is_wide:
            return Mask(True, first)
        if source.word(place + 1) == "(" and word not in NARROW:
            return None
        # What a shift counts has no say: `1u << lane`.
        if part is not None and source.word(place - 1) not in {"<<", ">>"}:
            narrow = True
    return Mask(False, first) if narrow else None


def wider_type(source: Source, variable: int) -> list[Edit]:
    """Return the edit of the 32-bit type that stands before a variable, if one does."""
    last = first = variable - 1
    while source.word(first) in NARROW:
        first -= 1
    first += 1
    if source.words[first - 2 : first] == ["std", "::"]:
        first -= 2
    return [source.edit(first, last, "unsigned long long")] if first <= last else []
