"""What becomes of code for warps of 32 lanes on waves of 64.

Whether 32 stands for a warp cannot be told from one line, and a kernel whose loops go over 64 lanes
while its lanes are counted by 32 computes wrong numbers. So functions that call each other are
judged as one:

- `width`: nothing says `warpSize`. Each shuffle gets a width of 32 and each vote asks the 32 lanes
  around it: the groups that CUDA's warps are, on every GPU. Everything else stays.
- `wave`: they say `warpSize`. Then 32 has to become `warpSize` everywhere, or nowhere.
- `none`: they already work in tiles of 32, or something in them cannot be changed by rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from vermilion.hipify.finding import Edit
from vermilion.hipify.rules.functions import Function, Functions
from vermilion.hipify.rules.source import Source, integer

Plan = Literal["width", "wave", "none"]

SHUFFLE = re.compile(r"__shfl(?:_up|_down|_xor)?(?:_sync)?")
WARP_NAME = re.compile(r"warp|wave|lane", re.IGNORECASE)
_LANE_NAME = re.compile(r"\w*(?:tid|lane|thread|tix)\w*", re.IGNORECASE)
# `__syncwarp` is missing here: it holds for groups of any size.
_VOTES = re.compile(r"__(?:ballot|any|all|activemask|match_any|match_all|reduce_\w+)(?:_sync)?")
# What leaves of a wave's ballot the 32 bits of a lane's group.
GROUP_SHIFT = ">> (__lane_id() & 32)"
_SHIFT_WORDS = [">>", "(", "__lane_id", "(", ")", "&", "32", ")"]
_TILES = frozenset({"tiled_partition", "thread_block_tile", "coalesced_threads", "coalesced_group"})
# What `threadIdx.x` and its like are divided by where a warp has 32 lanes.
_DIVIDES = {("&", 31), ("%", 32), ("/", 32), (">>", 5)}


@dataclass(frozen=True)
class _Facts:
    """What a piece of source does with lanes."""

    whole_shuffles: bool = False
    votes: bool = False
    tiles: bool = False
    says_warp_size: bool = False
    rows: bool = False
    fixed_steps: bool = False  # a shuffle by 16 that no loop makes, or a named 32

    def __or__(self, other: _Facts) -> _Facts:
        return _Facts(
            self.whole_shuffles or other.whole_shuffles,
            self.votes or other.votes,
            self.tiles or other.tiles,
            self.says_warp_size or other.says_warp_size,
            self.rows or other.rows,
            self.fixed_steps or other.fixed_steps,
        )

    @property
    def uses_lanes(self) -> bool:
        return self.whole_shuffles or self.votes or self.tiles

    @property
    def plan(self) -> Plan:
        if not self.says_warp_size:
            return "width" if self.whole_shuffles or self.votes else "none"
        return "none" if self.tiles or self.rows or self.fixed_steps else "wave"


@dataclass(frozen=True)
class Warps:
    """The plans for a source."""

    source: Source

    @cached_property
    def functions(self) -> Functions:
        """Return the functions of the source."""
        return Functions(self.source)

    def plan(self, place: int) -> Plan:
        """Return what is to become of the code around a place."""
        return self._facts_around(place).plan

    def uses_lanes(self, place: int) -> bool:
        """Say whether anything around a place works on lanes at all."""
        return self._facts_around(place).uses_lanes

    def is_tiled(self, place: int) -> bool:
        """Say whether all around a place works in tiles of 32 already."""
        facts = self._facts_around(place)
        return facts.tiles and not (facts.whole_shuffles or facts.votes)

    def counts_by_warp_size(self, name: str) -> bool:
        """Say whether a function, or one that it calls, says `warpSize`."""
        return any(self._own_facts[one].says_warp_size for one in self.functions.callees(name))

    def asks_group(self, place: int) -> bool:
        """Say whether a vote asks, or is to ask, 32 lanes."""
        return self.plan(place) == "width" or is_grouped(self.source, place)

    @property
    def in_groups(self) -> bool:
        """Say whether all lanes of the source work, or are to work, in groups of 32."""
        return self._facts_of_all.uses_lanes and not self._facts_of_all.says_warp_size

    def is_whole(self, place: int, name: str) -> bool | None:
        """Say whether a call that looks like a shuffle works on a whole warp; None if unknown."""
        if self.source.word(place - 1) in {".", "->"}:
            return False
        if SHUFFLE.fullmatch(name):
            return has_no_width(self.source, place, name)
        called = self.functions.callees(name)
        if not called:
            return None
        facts = _Facts()
        for function in called:
            facts |= self._own_facts[function]
        return facts.whole_shuffles if facts.uses_lanes else None

    def width_edits(self, place: int) -> tuple[Edit, ...]:
        """Return the edit that gives a shuffle a width of 32."""
        arguments = self.source.arguments(place + 1)
        if not arguments:
            return ()
        end = self.source.tokens.starts[arguments[-1][1] + 1]
        return (Edit(end, end, ", 32"),)

    def _facts_around(self, place: int) -> _Facts:
        """Return the facts of all functions that belong to the one around a place.

        Outside of functions, and where those do nothing with lanes, the whole source counts.
        """
        facts = _Facts()
        for function in self.functions.family(place):
            facts |= self._own_facts[function]
        return facts if facts.uses_lanes else self._facts_of_all

    @cached_property
    def _own_facts(self) -> dict[Function, _Facts]:
        return {one: self._facts(one.start, one.end) for one in self.functions.every}

    @cached_property
    def _facts_of_all(self) -> _Facts:
        return self._facts(0, len(self.source.words))

    def _facts(self, begin: int, end: int) -> _Facts:
        source, facts = self.source, _Facts()
        for place in range(begin, end):
            word = source.words[place]
            if source.kind(place) != "word":
                continue
            is_member = source.word(place - 1) in {".", "->"}
            if source.word(place + 1) == "(" and source.is_declared(place):
                continue  # an overload of the project's own
            if SHUFFLE.fullmatch(word) and source.word(place + 1) == "(":
                whole = has_no_width(source, place, word)
                facts |= _Facts(whole_shuffles=whole, tiles=not whole)
                facts |= _Facts(fixed_steps=whole and _is_fixed_step(source, place, word))
            elif is_member and word.startswith("shfl"):
                facts |= _Facts(tiles=True)
            elif _VOTES.fullmatch(word) and not is_member:
                grouped = is_grouped(source, place)
                mask = is_mask(source, place)
                facts |= _Facts(votes=not (grouped or mask), tiles=grouped)
            elif word in _TILES:
                facts |= _Facts(tiles=True)
            elif word == "warpSize":
                facts |= _Facts(says_warp_size=True)
            elif word == "threadIdx" and source.word(place + 2) in {"y", "z"}:
                facts |= _Facts(rows=True)
            elif source.constants.get(word, (0, 0))[0] == 32 and WARP_NAME.search(word):
                facts |= _Facts(fixed_steps=source.constants[word][1] != place + 2)
        return facts


def is_grouped(source: Source, place: int) -> bool:
    """Say whether a vote at a place is already one of 32 lanes."""
    end = source.closing(place + 1) if source.word(place + 1) == "(" else place
    return source.words[end + 1 : end + 1 + len(_SHIFT_WORDS)] == _SHIFT_WORDS


def is_mask(source: Source, place: int) -> bool:
    """Say whether a word is the mask of a `_sync` function: `__shfl_sync(__activemask(), …)`."""
    return source.word(place - 1) == "(" and source.word(place - 2).endswith("_sync")


def has_no_width(source: Source, place: int, name: str) -> bool:
    """Say whether a shuffle goes over the whole warp: it has no width, or a warp's."""
    arguments = source.arguments(place + 1)
    wanted = 4 if name.endswith("_sync") else 3
    if len(arguments) < wanted:
        return True
    return source.text(arguments[wanted - 1]).strip() == "warpSize"


def _is_fixed_step(source: Source, place: int, name: str) -> bool:
    """Say whether a shuffle goes by a half of 32 that is written out."""
    arguments = source.arguments(place + 1)
    distance = 2 if name.endswith("_sync") else 1
    steps = name.startswith(("__shfl_down", "__shfl_up", "__shfl_xor"))
    return steps and len(arguments) > distance and source.value(arguments[distance]) == 16


def lane_numbers(source: Source) -> Iterator[tuple[int, int]]:
    """Yield each place of a 31, 32 or 5 that divides a thread's number, and where that begins."""
    for operator in ("&", "%", "/", ">>"):
        for at in source.places.get(operator, ()):
            place = at + 1
            if source.word(place) == "" or source.kind(place) != "number" or place < 2:
                continue
            if (operator, integer(source.word(place))) not in _DIVIDES:
                continue
            operand = place - 2
            is_thread = source.word(operand - 1) == "." and source.word(operand - 2) in {
                "threadIdx",
                "blockDim",
            }
            named = source.kind(operand) == "word" and _LANE_NAME.fullmatch(source.word(operand))
            if is_thread or named:
                yield place, operand - 2 if is_thread else operand
