"""Rules about warps: their size, their masks, the lanes in them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vermilion.hipify.finding import Edit
from vermilion.hipify.rules.functions import Functions
from vermilion.hipify.rules.masks import NARROW, wider_type
from vermilion.hipify.rules.source import Hit, Source, integer
from vermilion.hipify.rules.warp_plan import SHUFFLE, WARP_NAME, Warps, lane_numbers

_BALLOTS = r"__ballot|__ballot_sync|__activemask|__match_any_sync|__match_all_sync"
_WIDER_COUNTS = {"__popc": "__popcll", "__ffs": "__ffsll", "__clz": "__clzll", "__brev": "__brevll"}
_LANES_OR_TILES = (
    "use `warpSize` where these are lanes of a whole wave; in groups of 32 leave it, and give "
    "shuffles a width of 32"
)
# Before an operand, these leave the whole expression to the operator after it.
_LOOSE = {
    "(", "=", ",", "[", "{", ";", "return", "==", "!=", "<", ">", "<=", ">=", "&&", "||", "?", ":",
}  # fmt: skip


def warp_size_constant(source: Source) -> Iterator[Hit]:
    """Find a name of a warp that stands for 32, where not all lanes are to work in groups of 32."""
    if Warps(source).in_groups:
        return
    for name, (value, place) in source.constants.items():
        if value == 32 and WARP_NAME.search(name):
            yield Hit("warp-size-constant", place, f"`{name}` is 32 whatever the GPU")


def warp_size_not_constant(source: Source) -> Iterator[Hit]:
    """Find `warpSize` where C++ wants a constant."""
    functions = Functions(source)
    for place in source.places.get("warpSize", ()):
        context = constant_context(source, place)
        if not context:
            continue
        function = functions.around(place)
        # Outside of device code the host has to agree, and only a person knows with which GPU.
        safe = function is not None and function.on_device and not context.startswith("a test")
        edits = with_wave_size(source, place) if safe else ()
        yield Hit("warp-size-not-constant", place, f"`warpSize` in {context}", edits=edits)


def warp_lane_arithmetic(source: Source) -> Iterator[Hit]:
    """Find `threadIdx.x & 31` and its like, where lanes are those of whole warps."""
    warps = Warps(source)
    for place, begin in lane_numbers(source):
        operator, number = source.word(place - 1), source.word(place)
        result = source.word(begin - 2) if source.word(begin - 1) == "=" else ""
        plan = warps.plan(place)
        # With shuffles of width 32, and in tiles, 32 is right.
        if plan == "width" or warps.is_tiled(place):
            continue
        if not warps.uses_lanes(place) and not WARP_NAME.search(result):
            continue
        what = f"`{source.word(place - 2)} {operator} {number}` takes a warp to have 32 lanes"
        edits = _lane_edits(source, warps, place, begin) if plan == "wave" else ()
        hint = "" if edits else _LANES_OR_TILES
        yield Hit("warp-lane-arithmetic", place - 1, what, hint, edits)


def _lane_edits(source: Source, warps: Warps, place: int, begin: int) -> tuple[Edit, ...]:
    operator = source.word(place - 1)
    if constant_context(source, place):
        function = warps.functions.around(place)
        if function is None or not function.on_device or operator not in {"/", "%"}:
            return ()
        return with_wave_size(source, place)
    if operator == ">>" and source.word(begin - 1) not in _LOOSE:
        return ()
    text = {"&": "& (warpSize - 1)", "%": "% warpSize"}.get(operator, "/ warpSize")
    return (source.edit(place - 1, place, text),)


def warp_reduction_half(source: Source) -> Iterator[Hit]:
    """Find loops of shuffles over whole warps whose distance begins, or ends, at half of 32."""
    warps = Warps(source)
    for place in source.places.get("for", ()):
        header_end = source.closing(place + 1)
        body_end = _end_of_statement(source, header_end + 1)
        shuffles = list(_shuffles(source, warps, header_end, body_end))
        if all(whole is False for _, whole in shuffles):
            continue
        plan = warps.plan(place)
        for number, text in _halves(source, place + 2, header_end):
            what = f"the loop goes over 32 lanes: it says `{source.word(number - 1)} " + (
                f"{source.word(number)}`"
            )
            edits: tuple[Edit, ...] = ()
            if plan == "width":
                edits = tuple(
                    edit
                    for at, whole in shuffles
                    if whole and SHUFFLE.fullmatch(source.word(at))
                    for edit in warps.width_edits(at)
                )
            elif plan == "wave" and all(whole for _, whole in shuffles):
                edits = (source.edit(number, number, text),)
            yield Hit("warp-reduction-half", number, what, "" if edits else _LANES_OR_TILES, edits)
    yield from _unrolled(source, warps)


def _halves(source: Source, begin: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield where a loop's header says half of 32, or 32, and what a wave has there."""
    for number in range(begin, end):
        value, before = integer(source.word(number)), source.word(number - 1)
        if before == "=" and value == 16:
            yield number, "warpSize / 2"
        elif before == "<" and value == 32:
            yield number, "warpSize"
        elif before == "<=" and value == 16:
            yield number, "warpSize / 2"


def _unrolled(source: Source, warps: Warps) -> Iterator[Hit]:
    for place, name, arguments in source.calls(r"__shfl_(?:down|xor|up)(?:_sync)?"):
        distance = 2 if name.endswith("_sync") else 1
        if len(arguments) == distance + 1 and source.value(arguments[distance]) == 16:
            what = f"`{name}` by 16 begins a reduction over 32 lanes"
            hint = "add a step of 32 for waves of 64 lanes, or give the shuffles a width of 32"
            edits = warps.width_edits(place) if warps.plan(place) == "width" else ()
            yield Hit("warp-reduction-half", place, what, hint, edits)


def _end_of_statement(source: Source, place: int) -> int:
    if source.word(place) == "{":
        return source.closing(place)
    for end in range(place, len(source.words)):
        if source.word(end) == ";":
            return end
    return len(source.words) - 1


def _shuffles(
    source: Source, warps: Warps, begin: int, end: int
) -> Iterator[tuple[int, bool | None]]:
    """Yield each call that is, or looks like, a shuffle, and whether it is of a whole warp."""
    for place in range(begin, end):
        name = source.word(place)
        # A wrapper of a shuffle is most often named so; what it does is in its body.
        if source.word(place + 1) == "(" and re.search(r"shfl|shuffle", name, re.IGNORECASE):
            if re.fullmatch(r"__shfl(?:_sync)?", name):
                continue  # from one lane to all: no reduction
            yield place, warps.is_whole(place, name)


def shuffle_width(source: Source) -> Iterator[Hit]:
    """Find shuffles of CUDA's warps, which work on a whole wave here."""
    warps = Warps(source)
    for place, name, arguments in source.calls(SHUFFLE.pattern):
        if source.word(place - 1) in {".", "->"}:
            continue
        plan = warps.plan(place)
        if len(arguments) != (3 if name.endswith("_sync") else 2) or plan == "wave":
            continue
        edits = warps.width_edits(place) if plan == "width" else ()
        yield Hit("shuffle-width", place, f"`{name}` works on a whole wave", edits=edits)


def ballot_32_bit(source: Source) -> Iterator[Hit]:
    """Find ballots kept, or counted, in 32 bits."""
    narrow: set[str] = set()
    warps = Warps(source)
    for place, name in source.find(_BALLOTS):
        if source.word(place - 1) != "=" or warps.plan(place) == "width":
            continue
        variable = place - 2
        edits = wider_type(source, variable)
        if not edits and (declared := _declaration(source, source.word(variable), place)):
            edits = wider_type(source, declared)
        if edits:
            narrow.add(source.word(variable))
            what = f"`{source.word(variable)}` keeps the result of `{name}` in 32 bits"
            yield Hit("ballot-32-bit", variable, what, edits=tuple(edits))
    yield from _derived(source, narrow)
    for place, name, arguments in source.calls("|".join(_WIDER_COUNTS)):
        if not arguments:
            continue
        inside = source.words[
            source.place_of(arguments[0][0]) : source.place_of(arguments[0][1]) + 1
        ]
        first = source.place_of(arguments[0][0])
        if any(
            word in narrow or (re.fullmatch(_BALLOTS, word) and not warps.asks_group(first + step))
            for step, word in enumerate(inside)
        ):
            what = f"`{name}` sees 32 lanes of `{source.text(arguments[0])}`"
            edit = source.edit(place, place, _WIDER_COUNTS[name])
            yield Hit("ballot-32-bit", place, what, edits=(edit,))


def _derived(source: Source, narrow: set[str]) -> Iterator[Hit]:
    """Find 32-bit variables made of ballots by bit operations; adds their names to `narrow`."""
    counts = {*_WIDER_COUNTS, *_WIDER_COUNTS.values(), "==", "!=", "?", "&&", "||", "__shfl_sync"}
    for place in source.places.get("=", ()):
        end = _end_of_statement(source, place)
        value = source.words[place + 1 : end]
        if narrow.isdisjoint(value) or not counts.isdisjoint(value):
            continue
        edits = wider_type(source, place - 1)
        if edits and not {"&", "|", "^", "~", "<<", ">>"}.isdisjoint(value):
            variable = source.word(place - 1)
            narrow.add(variable)
            what = f"`{variable}` keeps bits of lanes in 32 bits"
            yield Hit("ballot-32-bit", place - 1, what, edits=tuple(edits))


def _declaration(source: Source, name: str, before: int) -> int:
    """Return the place at which a variable was declared with a 32-bit type; 0 for none."""
    for place in source.places.get(name, ()):
        if place < before and source.word(place - 1) in NARROW:
            return place
    return 0


def lane_bit_32(source: Source) -> Iterator[Hit]:
    """Find `1 << lane` in 32 bits."""
    warps = Warps(source)
    for place in source.places.get("<<", ()):
        one, lane = source.word(place - 1), source.word(place + 1)
        if integer(one) != 1 or "l" in one.lower() or source.kind(place + 1) != "word":
            continue
        is_lane = re.fullmatch(r"\w*lane\w*", lane, re.IGNORECASE)
        # In groups of 32 there is a bit for each.
        if is_lane and not (warps.plan(place) == "width" or warps.is_tiled(place)):
            edit = source.edit(place - 1, place - 1, "1ull")
            yield Hit("lane-bit-32", place - 1, f"`{one} << {lane}` has 32 bits", edits=(edit,))


def warp_synchronous(source: Source) -> Iterator[Hit]:
    """Find `shared[i] += shared[i + 32]` through a volatile pointer."""
    volatile = {
        source.word(place + step)
        for place in source.places.get("volatile", ())
        for step in range(1, 8)
        if source.word(place - 1) not in {"asm", "__asm__"}
    }
    for place in source.places.get("+=", ()):
        opening = place + 2
        name = source.word(place + 1)
        if source.word(opening) != "[" or name not in volatile:
            continue
        inside = source.words[opening : source.closing(opening)]
        if inside[-2:] == ["+", "32"]:
            yield Hit("warp-synchronous", place, f"`{name}` is summed without a barrier")


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
