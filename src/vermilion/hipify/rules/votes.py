"""Votes: on waves of 64 lanes they ask the whole wave, where CUDA asks a warp of 32."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vermilion.hipify.finding import Edit
from vermilion.hipify.rules.masks import ALL_OF_32, declared_type, read_mask
from vermilion.hipify.rules.source import Hit, Source
from vermilion.hipify.rules.warp_plan import GROUP_SHIFT, Warps, is_grouped, is_mask
from vermilion.hipify.tokens import Span

_QUESTIONS = r"__(?:any|all|ballot)"
_MASKS = r"__(?:activemask|ballot|match_any|match_all)(?:_sync)?"
_HINT = f"take the group's bits out of the wave's ballot: `(unsigned)(__ballot(p) {GROUP_SHIFT})`"


def vote_width(source: Source) -> Iterator[Hit]:
    """Find votes of CUDA's warps, which ask a whole wave here."""
    warps = Warps(source)
    names = rf"{_QUESTIONS}(?:_sync)?|__activemask|__match_any_sync|__match_all_sync"
    for place, name, arguments in source.calls(names):
        plan = warps.plan(place)
        if plan == "wave" or source.word(place - 1) in {".", "->", "::"}:
            continue
        if is_grouped(source, place) or is_mask(source, place) or _is_wide(source, place):
            continue
        edits = _edits(source, place, name, arguments) if plan == "width" else ()
        hint = "" if edits else _HINT
        yield Hit("vote-width", place, f"`{name}` asks a whole wave", hint, edits)


def _is_wide(source: Source, place: int) -> bool:
    """Say whether the author wrote a vote for 64 lanes: its mask, or its result, has 64 bits."""
    if source.word(place - 1) == "=" and declared_type(source, place - 2) is False:
        return True
    arguments = source.arguments(place + 1)
    if not (source.word(place).endswith("_sync") and arguments):
        return False
    first, last = (source.place_of(index) for index in arguments[0])
    # What asks for a mask has CUDA's width before it has HIP's.
    if any(re.fullmatch(_MASKS, word) for word in source.words[first : last + 1]):
        return False
    mask = read_mask(source, first, last)
    return mask is not None and mask.is_wide


def _edits(source: Source, place: int, name: str, arguments: list[Span]) -> tuple[Edit, ...]:
    """Return the edits that make a vote one of the 32 lanes around it."""
    if name == "__activemask":
        opening = source.tokens.meaningful[place + 1]
        return _around(source, place, opening, "(unsigned)(__activemask", f" {GROUP_SHIFT})")
    # The type of what is compared decides about a match; of the others two arguments are enough.
    takes_mask = name.endswith("_sync")
    if name == "__match_all_sync" or len(arguments) != 1 + takes_mask:
        return ()
    bits, ballot = "", "__match_any" if name == "__match_any_sync" else "__ballot"
    if takes_mask:
        first, last = (source.place_of(index) for index in arguments[0])
        mask = read_mask(source, first, last)
        everybody = source.words[first : last + 1] == ["__activemask", "(", ")"]
        if not everybody and (mask is None or mask.value != ALL_OF_32):
            bits = f" & ({source.text(arguments[0])})"
    text = {"__any": " != 0)", "__all": " == 0)"}.get(name.removesuffix("_sync"), "")
    negated = name.startswith("__all")
    before = "(" * bool(text or bits) + "(" * bool(text and bits)
    before += f"(unsigned)({ballot}(" + "!(" * negated
    after = f" {GROUP_SHIFT})" + bits + ")" * bool(bits) + text
    return _around(source, place, arguments[-1][0], before, after, ")" * negated)


def _around(
    source: Source, place: int, first: int, before: str, after: str, inner: str = ""
) -> tuple[Edit, ...]:
    """Return edits of what a call begins with, up to the token `first`, and behind its end."""
    tokens = source.tokens
    start, begin = tokens.starts[tokens.meaningful[place]], tokens.starts[first]
    end = tokens.starts[tokens.meaningful[source.closing(place + 1)]]
    return (
        Edit(start, begin, before + "\n" * tokens.text.count("\n", start, begin)),
        *((Edit(end, end, inner),) if inner else ()),
        Edit(end + 1, end + 1, after),
    )
