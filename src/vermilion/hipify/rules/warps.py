"""Rules about warps: their size, their masks, the lanes in them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from vermilion.hipify.finding import Edit
from vermilion.hipify.rules.source import Hit, Source, integer, is_64_bit

_WARP_NAME = re.compile(r"warp|wave|lane", re.IGNORECASE)
_LANE_NAME = re.compile(r"\w*(?:tid|lane|thread|tix)\w*", re.IGNORECASE)
_SYNC = (
    r"__(?:shfl|shfl_up|shfl_down|shfl_xor|ballot|any|all|match_any|match_all)_sync|__syncwarp"
    r"|__reduce_\w+_sync"
)
_BALLOTS = r"__ballot|__ballot_sync|__activemask|__match_any_sync|__match_all_sync"
_NARROW = {"unsigned", "int", "uint32_t", "int32_t", "uint", "u32", "auto32"}
_WIDER_COUNTS = {"__popc": "__popcll", "__ffs": "__ffsll", "__clz": "__clzll", "__brev": "__brevll"}
_ALL_LANES = "0xffffffffffffffffull"
# Before an operand, these leave the whole expression to the operator after it.
_LOOSE = {
    "(", "=", ",", "[", "{", ";", "return", "==", "!=", "<", ">", "<=", ">=", "&&", "||", "?", ":",
}  # fmt: skip


def warp_size_constant(source: Source) -> Iterator[Hit]:
    """Find a name of a warp that stands for 32."""
    for name, (value, place) in source.constants.items():
        if value == 32 and _WARP_NAME.search(name):
            yield Hit("warp-size-constant", place, f"`{name}` is 32 whatever the GPU")


def warp_lane_arithmetic(source: Source) -> Iterator[Hit]:
    """Find `threadIdx.x & 31` and its like."""
    meant = {("&", 31), ("%", 32), ("/", 32), (">>", 5)}
    for place, word in enumerate(source.words):
        if source.kind(place) != "number" or place < 2:
            continue
        operator = source.word(place - 1)
        if (operator, integer(word)) not in meant:
            continue
        operand = place - 2
        is_thread = source.word(operand - 1) == "." and source.word(operand - 2) in {
            "threadIdx",
            "blockDim",
        }
        begin = operand - 2 if is_thread else operand
        named = source.kind(operand) == "word" and _LANE_NAME.fullmatch(source.word(operand))
        result = source.word(begin - 2) if source.word(begin - 1) == "=" else ""
        if not (is_thread or named) or not (source.uses_warps or _WARP_NAME.search(result)):
            continue
        text = {"&": "& (warpSize - 1)", "%": "% warpSize"}.get(operator, "/ warpSize")
        safe = operator != ">>" or source.word(begin - 1) in _LOOSE
        what = f"`{source.word(operand)} {operator} {word}` takes a warp to have 32 lanes"
        edits = (source.edit(place - 1, place, text),) if safe else ()
        yield Hit("warp-lane-arithmetic", place - 1, what, edits=edits)


def warp_reduction_half(source: Source) -> Iterator[Hit]:
    """Find loops of shuffles whose distance begins, or ends, at half of 32."""
    for place in source.places.get("for", ()):
        header_end = source.closing(place + 1)
        body_end = _end_of_statement(source, header_end + 1)
        if not _has_whole_warp_shuffle(source, header_end, body_end):
            continue
        for number in range(place + 2, header_end):
            value, before = integer(source.word(number)), source.word(number - 1)
            if before == "=" and value == 16:
                text = "warpSize / 2"
            elif before == "<" and value == 32:
                text = "warpSize"
            elif before == "<=" and value == 16:
                text = "warpSize / 2"
            else:
                continue
            what = f"the loop goes over 32 lanes: it says `{before} {source.word(number)}`"
            yield Hit(
                "warp-reduction-half", number, what, edits=(source.edit(number, number, text),)
            )
    yield from _unrolled(source)


def _unrolled(source: Source) -> Iterator[Hit]:
    for place, name, arguments in source.calls(r"__shfl_(?:down|xor|up)(?:_sync)?"):
        distance = 2 if name.endswith("_sync") else 1
        if len(arguments) == distance + 1 and source.value(arguments[distance]) == 16:
            what = f"`{name}` by 16 begins a reduction over 32 lanes"
            hint = "add a step of 32 for waves of 64 lanes, or give the shuffles a width of 32"
            yield Hit("warp-reduction-half", place, what, hint)


def _end_of_statement(source: Source, place: int) -> int:
    if source.word(place) == "{":
        return source.closing(place)
    for end in range(place, len(source.words)):
        if source.word(end) == ";":
            return end
    return len(source.words) - 1


def _has_whole_warp_shuffle(source: Source, begin: int, end: int) -> bool:
    for place in range(begin, end):
        name = source.word(place)
        if re.fullmatch(r"__shfl_(?:down|xor|up)(?:_sync)?", name):
            given = len(source.arguments(place + 1))
            return given < (4 if name.endswith("_sync") else 3)
        # A wrapper of a shuffle is most often named so.
        if re.search(r"shfl|shuffle", name, re.IGNORECASE) and source.word(place + 1) == "(":
            return True
    return False


def shuffle_width(source: Source) -> Iterator[Hit]:
    """Find shuffles that work on the whole wave."""
    for place, name, arguments in source.calls(r"__shfl(?:_up|_down|_xor)?(?:_sync)?"):
        if len(arguments) == (3 if name.endswith("_sync") else 2):
            yield Hit("shuffle-width", place, f"`{name}` works on a whole wave")


def mask_32_bit(source: Source) -> Iterator[Hit]:
    """Find masks of 32 lanes that are given to `_sync` functions."""
    seen: set[int] = set()
    for place, name, arguments in source.calls(_SYNC):
        if not arguments:
            continue
        first, last = (source.place_of(index) for index in arguments[0])
        mask = source.text(arguments[0])
        value = _value_of_mask(source, first, last)
        if value is None:
            continue
        number, is_wide = value
        if is_wide or number in seen:
            continue
        seen.add(number)
        what = f"`{mask}` is a mask of 32 lanes for `{name}`"
        yield Hit("mask-32-bit", number, what, edits=_wider_mask(source, number, first, last))
        del place


def _value_of_mask(source: Source, first: int, last: int) -> tuple[int, bool] | None:
    """Return where the mask's number stands and whether it has 64 bits; None where that is open."""
    if first == last and source.kind(first) == "number":
        return first, is_64_bit(source.word(first))
    if first == last and source.word(first) in source.constants:
        place = source.constants[source.word(first)][1]
        return place, is_64_bit(source.word(place))
    if source.word(first) in {"~", "-"} and last == first + 1 and source.kind(last) == "number":
        return last, is_64_bit(source.word(last))
    return None


def _wider_mask(source: Source, number: int, first: int, last: int) -> tuple[Edit, ...]:
    if source.word(first) in {"~", "-"}:
        return (source.edit(first, last, _ALL_LANES),)
    if integer(source.word(number)) != 0xFFFFFFFF:
        return ()
    edits = [source.edit(number, number, _ALL_LANES)]
    # `const unsigned FULL = 0xffffffff`: the type has to follow.
    if source.word(number - 1) == "=":
        edits += _wider_type(source, number - 2)
    return tuple(edits)


def ballot_32_bit(source: Source) -> Iterator[Hit]:
    """Find ballots kept, or counted, in 32 bits."""
    narrow: set[str] = set()
    for place, name in source.find(_BALLOTS):
        if source.word(place - 1) != "=":
            continue
        variable = place - 2
        edits = _wider_type(source, variable)
        if not edits and (declared := _declaration(source, source.word(variable), place)):
            edits = _wider_type(source, declared)
        if edits:
            narrow.add(source.word(variable))
            what = f"`{source.word(variable)}` keeps the result of `{name}` in 32 bits"
            yield Hit("ballot-32-bit", variable, what, edits=tuple(edits))
    yield from _derived(source, narrow)
    for place, name, arguments in source.calls("|".join(_WIDER_COUNTS)):
        if not arguments:
            continue
        inside = [source.tokens.word(i) for i in range(arguments[0][0], arguments[0][1] + 1)]
        if any(re.fullmatch(_BALLOTS, word) or word in narrow for word in inside):
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
        edits = _wider_type(source, place - 1)
        if edits and not {"&", "|", "^", "~", "<<", ">>"}.isdisjoint(value):
            variable = source.word(place - 1)
            narrow.add(variable)
            what = f"`{variable}` keeps bits of lanes in 32 bits"
            yield Hit("ballot-32-bit", place - 1, what, edits=tuple(edits))


def _wider_type(source: Source, variable: int) -> list[Edit]:
    """Return the edit of the 32-bit type that stands before a variable, if one does."""
    last = first = variable - 1
    while source.word(first) in _NARROW:
        first -= 1
    first += 1
    return [source.edit(first, last, "unsigned long long")] if first <= last else []


def _declaration(source: Source, name: str, before: int) -> int:
    """Return the place at which a variable was declared with a 32-bit type; 0 for none."""
    for place in source.places.get(name, ()):
        if place < before and source.word(place - 1) in _NARROW:
            return place
    return 0


def lane_bit_32(source: Source) -> Iterator[Hit]:
    """Find `1 << lane` in 32 bits."""
    for place in source.places.get("<<", ()):
        one, lane = source.word(place - 1), source.word(place + 1)
        if integer(one) != 1 or "l" in one.lower() or source.kind(place + 1) != "word":
            continue
        is_lane = re.fullmatch(r"\w*lane\w*", lane, re.IGNORECASE) or lane == "__lane_id"
        if is_lane:
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
