"""What the map folds: Q and DQ into their operator, repeated blocks, long stretches.

Everything is decided by structure and by the order of computing; names only title what was found.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vermilion.view.graph import Graph

QUANTIZERS = frozenset(("QuantizeLinear", "DequantizeLinear"))
# More boxes than this on one level are neither read nor laid out in an instant.
MOST_CHILDREN = 48
_SECTION = 24
# A block of fewer operators is quicker read than opened, unless there are many.
_LEAST_BLOCK = 3
_MANY_BLOCKS = 5
# A longer period is not looked for: no network repeats more than this many operators as one.
_LONGEST_PERIOD = 600
_MOST_TITLE = 60


@dataclass
class Group:
    """A box that opens. `kind`: `unit`, `repeat`, `block`, `section`."""

    kind: str
    title: str
    parent: int | None
    count: int = 1
    head: int | None = None  # the node that a unit is named after


@dataclass
class Folds:
    """Every node's group, None at the top; groups stand after their parents."""

    groups: list[Group] = field(default_factory=list)
    of_node: list[int | None] = field(default_factory=list)

    def as_json(self) -> dict[str, object]:
        """Return the keys of the page."""
        return {
            "groups": [
                {"kind": g.kind, "title": g.title, "parent": g.parent, "count": g.count,
                 "head": g.head}
                for g in self.groups
            ],
            "of_node": self.of_node,
        }  # fmt: skip


def folds_of(graph: Graph) -> Folds:
    """Return the groups of a graph, such that no level has more than `MOST_CHILDREN` boxes."""
    units = units_of(graph)
    folder = _Folder(graph, units)
    folder.place(list(range(len(units))), None, look=True)
    return folder.folds


def units_of(graph: Graph) -> list[list[int]]:
    """Return the nodes in units, each its operator first: a quantizer goes with an operator.

    What rounds a result goes with what made it; what unpacks a weight or an input, with its reader.
    """
    readers = graph.readers()
    owner: dict[int, int] = {}

    def made_by(number: int) -> int | None:
        first = graph.nodes[number].inputs[:1]
        return graph.tensors[first[0]].made_by if first and first[0] is not None else None

    is_quantizer = [node.op_type in QUANTIZERS for node in graph.nodes]
    for number in range(len(graph.nodes)):
        maker = made_by(number)
        if not is_quantizer[number] or maker is None:
            continue
        if not is_quantizer[maker]:
            # A result that others read in float as well is a result, and its rounding a node.
            if len(readers.get(graph.nodes[maker].outputs[0], ())) == 1:
                owner[number] = maker
        elif maker in owner:
            owner[number] = owner[maker]
    for number in reversed(range(len(graph.nodes))):
        if is_quantizer[number] and number not in owner:
            mine = {r for t in graph.nodes[number].outputs for r in readers.get(t, ())}
            if len(mine) == 1:
                (reader,) = mine
                owner[number] = owner.get(reader, reader)
    units: dict[int, list[int]] = {}
    for number in range(len(graph.nodes)):
        if owner.get(number, number) == number:
            units[number] = [number]
    for number, head in owner.items():
        while head in owner:
            head = owner[head]
        units.setdefault(head, [head]).append(number)
    return [[head, *sorted(set(members) - {head})] for head, members in sorted(units.items())]


@dataclass(frozen=True)
class Repeat:
    """Blocks of `period` units, `count` times from `start` on."""

    start: int
    period: int
    count: int

    @property
    def end(self) -> int:
        """The first unit behind."""
        return self.start + self.period * self.count


def repeats_in(
    tokens: Sequence[int], cuts: Sequence[int], weighed: Sequence[bool] = ()
) -> list[Repeat]:
    """Return stretches of a sequence that say the same again and again.

    `cuts` counts the tensors that pass each place: a block begins where few do, and of such
    places at a unit with weights, which `weighed` says of each. What is repeated often is taken
    before what is long and repeated twice.
    """
    words = np.asarray(tokens, np.int64)
    found: list[tuple[float, int, int, int]] = []  # worth, period, start, length
    for period in range(2, min(len(words) // 2, _LONGEST_PERIOD) + 1):
        for start, same in _runs(words[:-period] == words[period:]):
            count = (same + period) // period
            if count >= (2 if period >= _LEAST_BLOCK else _MANY_BLOCKS):
                worth = period * (count - 1) * math.log2(count)
                found.append((worth, period, start, same + period))
    found.sort(key=lambda one: (-one[0], one[1], one[2]))
    taken: list[Repeat] = []
    free = np.ones(len(words), bool)
    for _, period, start, length in found:
        for begin, left in _runs(free[start : start + length]):
            least = 2 if period >= _LEAST_BLOCK else _MANY_BLOCKS
            if left >= least * period and len(set(tokens[start + begin :][:period])) > 1:
                repeat = _aligned(start + begin, left, period, cuts, weighed)
                taken.append(repeat)
                free[repeat.start : repeat.end] = False
    return sorted(taken, key=lambda one: one.start)


def _runs(same: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the begin and length of every run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], same.view(np.int8), [0]))))
    return [(int(a), int(b - a)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _aligned(
    start: int, length: int, period: int, cuts: Sequence[int], weighed: Sequence[bool]
) -> Repeat:
    """Return the repeat whose blocks begin where fewest tensors pass; a block may be lost by it."""
    last = start + min(period, length - 2 * period + 1)

    def passing(begin: int) -> tuple[float, bool, int, int]:
        count = (start + length - begin) // period
        borders = [cuts[begin + period * n] for n in range(count + 1)]
        is_light = bool(weighed) and not weighed[begin]
        return sum(borders) / len(borders), is_light, -count, begin

    best = min(range(start, max(last, start + 1)), key=passing)
    return Repeat(best, period, (start + length - best) // period)


class _Folder:
    """Puts units into groups, level by level."""

    def __init__(self, graph: Graph, units: list[list[int]]) -> None:
        self.folds = Folds(of_node=[None] * len(graph.nodes))
        self._graph = graph
        self._units = units
        self._tokens = _tokens(graph, units)
        self._cuts = _cuts(graph, units)
        self._weighed = [graph.nodes[unit[0]].weight_bytes > 0 for unit in units]

    def place(self, units: list[int], parent: int | None, *, look: bool) -> None:
        """Put these units, which lie side by side, under a parent."""
        repeats: list[Repeat] = []
        if look and len(units) >= 2 * _LEAST_BLOCK:
            first = units[0]
            cuts = self._cuts[first : first + len(units) + 1]
            weighed = [self._weighed[unit] for unit in units]
            repeats = repeats_in([self._tokens[unit] for unit in units], cuts, weighed)
        items: list[list[int] | Repeat] = []
        at = 0
        for repeat in repeats:
            items += [[unit] for unit in units[at : repeat.start]]
            items.append(repeat)
            at = repeat.end
        items += [[unit] for unit in units[at:]]
        self._place_items(items, units, parent)

    def _place_items(
        self, items: list[list[int] | Repeat], units: list[int], parent: int | None
    ) -> None:
        if len(items) <= MOST_CHILDREN:
            for item in items:
                self._place_item(item, units, parent)
            return
        sections = -(-len(items) // _SECTION)
        while sections > MOST_CHILDREN:
            sections = -(-sections // 2)
        for part in self._sections(items, units, sections):
            if len(part) == 1:
                self._place_item(part[0], units, parent)
                continue
            members = [unit for item in part for unit in self._members(item, units)]
            group = self._group("section", self._title(members), parent, len(members))
            self._place_items(part, units, group)

    def _sections(
        self, items: list[list[int] | Repeat], units: list[int], count: int
    ) -> list[list[list[int] | Repeat]]:
        """Cut into parts of about one size, each where few tensors pass."""
        starts = [self._members(item, units)[0] for item in items]
        ends = [0]
        reach = max(1, len(items) // count // 3)
        for number in range(1, count):
            middle = round(number * len(items) / count)
            near = range(max(ends[-1] + 1, middle - reach), min(len(items), middle + reach + 1))
            if near:
                ends.append(min(near, key=lambda at: (self._cuts[starts[at]], abs(at - middle))))
        return [items[a:b] for a, b in zip(ends, [*ends[1:], len(items)], strict=True) if a < b]

    def _members(self, item: list[int] | Repeat, units: list[int]) -> list[int]:
        return units[item.start : item.end] if isinstance(item, Repeat) else item

    def _place_item(self, item: list[int] | Repeat, units: list[int], parent: int | None) -> None:
        if not isinstance(item, Repeat):
            self._place_unit(item[0], parent)
            return
        members = self._members(item, units)
        title = self._scope(members) or self._operators(members[: item.period])
        group = self._group("repeat", title, parent, item.count)
        blocks = [members[n : n + item.period] for n in range(0, len(members), item.period)]
        self._place_blocks(blocks, group, 1)

    def _place_blocks(self, blocks: list[list[int]], parent: int, first: int) -> None:
        """Put blocks that compute alike under a parent, many of them in stretches."""
        if len(blocks) > MOST_CHILDREN:
            size = max(_SECTION, -(-len(blocks) // MOST_CHILDREN))
            for at in range(0, len(blocks), size):
                some = blocks[at : at + size]
                title = f"blocks {first + at} to {first + at + len(some) - 1}"
                stretch = self._group("section", title, parent, sum(map(len, some)))
                self._place_blocks(some, stretch, first + at)
            return
        for number, inside in enumerate(blocks, start=first):
            title = self._scope(inside) or f"block {number}"
            block = self._group("block", title, parent, len(inside))
            self.place(inside, block, look=len(inside) > MOST_CHILDREN // 2)

    def _place_unit(self, unit: int, parent: int | None) -> None:
        members = self._units[unit]
        group = parent
        if len(members) > 1:
            head = self._graph.nodes[members[0]]
            group = self._group("unit", head.op_type, parent, len(members))
            self.folds.groups[group].head = members[0]
        for node in members:
            self.folds.of_node[node] = group

    def _group(self, kind: str, title: str, parent: int | None, count: int) -> int:
        self.folds.groups.append(Group(kind, title, parent, count))
        return len(self.folds.groups) - 1

    def _title(self, units: Sequence[int]) -> str:
        """Return what the names begin with alike, else what most operators are."""
        return self._scope(units) or self._operators(units)

    def _operators(self, units: Sequence[int]) -> str:
        counts = Counter(self._graph.nodes[self._units[unit][0]].op_type for unit in units)
        words = (f"{op} × {n}" if n > 1 else op for op, n in counts.most_common(3))
        return ", ".join(words)

    def _scope(self, units: Sequence[int]) -> str:
        return _common_scope([self._graph.nodes[self._units[unit][0]].name for unit in units])


def _common_scope(names: Sequence[str]) -> str:
    """Return the path that names share: `/layer1/layer1.0`, empty where there is none."""
    if not all(names):
        return ""
    paths = [name.replace("::", "/").strip("/").split("/") for name in names]
    shared = []
    for words in zip(*paths, strict=False):
        if len(set(words)) > 1:
            break
        shared.append(words[0])
    scope = "/".join(shared)
    return scope if len(scope) <= _MOST_TITLE else f"…{scope[-_MOST_TITLE:]}"


def _tokens(graph: Graph, units: Sequence[Sequence[int]]) -> list[int]:
    """Return a number for each unit, equal where units compute alike: operators and attributes."""
    known: dict[object, int] = {}
    tokens = []
    for members in units:
        word = tuple(
            (graph.nodes[n].domain, graph.nodes[n].op_type, len(graph.nodes[n].inputs))
            for n in members
        )
        tokens.append(known.setdefault(word, len(known)))
    return tokens


def _cuts(graph: Graph, units: Sequence[Sequence[int]]) -> list[int]:
    """Return how many tensors pass the place before each unit, and behind the last."""
    unit_of = {node: unit for unit, members in enumerate(units) for node in members}
    steps = np.zeros(len(units) + 2, np.int64)
    for tensor, nodes in graph.readers().items():
        made_by = graph.tensors[tensor].made_by
        if made_by is None:
            continue
        first, last = unit_of[made_by], max(unit_of[node] for node in nodes)
        if last > first:
            steps[first + 1] += 1
            steps[last + 1] -= 1
    return [int(n) for n in np.cumsum(steps)[: len(units) + 1]]
