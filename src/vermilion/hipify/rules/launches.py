"""Launches whose numbers count lanes of a warp by 32, of kernels that count them by `warpSize`."""

from __future__ import annotations

from collections.abc import Iterator

from vermilion.hipify.rules.machine import launches
from vermilion.hipify.rules.source import Hit, Source, integer
from vermilion.hipify.rules.warp_plan import WARP_NAME, Warps


def launch_by_32(source: Source) -> Iterator[Hit]:
    """Find a 32 that is multiplied or divided by in what a launch counts."""
    warps = Warps(source)
    seen: set[int] = set()
    for place, arguments in launches(source):
        name = _kernel(source, place)
        if not warps.counts_by_warp_size(name):
            continue
        for span in arguments[:2]:
            first, last = (source.place_of(index) for index in span)
            for at in _counts(source, warps, first, last):
                if at not in seen:
                    seen.add(at)
                    what = f"the launch counts by 32, and `{name}` counts lanes by `warpSize`"
                    yield Hit("warp-size-constant", at, what)


def _kernel(source: Source, place: int) -> str:
    """Return the name of the kernel before a `<<<`."""
    at, depth = place - 1, 0
    while at > 0 and (depth or source.word(at) in {">", ">>"}):
        depth += {">": 1, ">>": 2, "<": -1}.get(source.word(at), 0)
        at -= 1
    return source.word(at)


def _counts(
    source: Source, warps: Warps, first: int, last: int, *, follow: bool = True
) -> Iterator[int]:
    """Yield the 32s of an expression, and of the variables in it where they are declared."""
    for at in range(first, last + 1):
        word = source.word(at)
        is_32 = integer(word) == 32 or (
            source.constants.get(word, (0, 0))[0] == 32 and WARP_NAME.search(word) is not None
        )
        if is_32 and not {"*", "/"}.isdisjoint((source.word(at - 1), source.word(at + 1))):
            yield at
        elif follow and source.kind(at) == "word":
            begin = _value_of(source, warps, word, first)
            if begin:
                end = next(
                    i for i in range(begin, first + 1) if source.word(i) == ";" or i == first
                )
                yield from _counts(source, warps, begin, end - 1, follow=False)


def _value_of(source: Source, warps: Warps, name: str, before: int) -> int:
    """Return where the value of a variable of this function begins; 0 if it has none."""
    function = warps.functions.around(before)
    begin = function.body if function is not None else 0
    for place in reversed(source.places.get(name, ())):
        if begin < place < before and source.word(place + 1) in {"=", "(", "{"}:
            return place + 2
    return 0
