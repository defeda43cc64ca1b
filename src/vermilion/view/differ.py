"""What differs between two models: nodes, parameters, shapes, weights, scales; never names.

Both are compared as their files have them, before any pass.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import onnx_ir as ir

from vermilion.ir.opset import constant_of, opset_of
from vermilion.view.align import matched
from vermilion.view.canonical import NOTHING, Part, ends_of, parts_of
from vermilion.view.graph import shorter
from vermilion.view.weight_changes import weight_changes, weights_differ

# Operators that a neighbour's weights can take in.
_FOLDED = frozenset(("BatchNormalization", "Mul", "Add", "Div", "Sub", "Identity"))


@dataclass(frozen=True)
class Change:
    """One difference. `kind`: see `KINDS`; `a` and `b` are the nodes of each side.

    `size` is, for weights, the largest change as a share of the largest value.
    """

    kind: str
    what: str
    a: tuple[ir.Node, ...] = ()
    b: tuple[ir.Node, ...] = ()
    size: float = 0.0

    def as_json(self) -> dict[str, object]:
        """Return the keys of the report."""
        return {
            "kind": self.kind,
            "what": self.what,
            "a": [shorter(node.name or "") for node in self.a],
            "b": [shorter(node.name or "") for node in self.b],
            "size": self.size,
        }


KINDS = {
    "model": "the model as a whole: opset, inputs, outputs, functions",
    "added": "nodes that only B has",
    "removed": "nodes that only A has",
    "fused": "several nodes of A that B does in fewer",
    "split": "nodes of A that B does in more",
    "replaced": "nodes of A where B has others",
    "parameters": "attributes that differ",
    "shape": "results of another shape or type",
    "weights": "weights of other values",
    "quantization": "scales and zero points that differ",
    "wiring": "nodes that read something else",
}


@dataclass(frozen=True)
class Difference:
    """What differs. `pairs` are nodes that match, A's and B's; `nodes` counts those of both."""

    changes: tuple[Change, ...]
    pairs: tuple[tuple[ir.Node, ir.Node], ...]
    nodes: tuple[int, int]

    @property
    def renamed(self) -> int:
        """How many nodes that match have another name."""
        return sum(mine.name != theirs.name for mine, theirs in self.pairs)

    def as_json(self) -> dict[str, object]:
        """Return the keys of the report."""
        counts = Counter(change.kind for change in self.changes)
        return {
            "changes": [change.as_json() for change in self.changes],
            "counts": {kind: counts[kind] for kind in KINDS if counts[kind]},
            "matched": len(self.pairs),
            "renamed": self.renamed,
            "nodes": list(self.nodes),
        }


def difference(a: ir.Model, b: ir.Model) -> Difference:
    """Compare two graphs. Nodes are matched by what they compute and what they stand between."""
    left, right = parts_of(a.graph), parts_of(b.graph)
    pairs = matched(left, right)
    changes = [*_of_models(a, b), *_of_functions(a, b)]
    changes += _of_graphs((a.graph, left), (b.graph, right), pairs)
    order = {kind: number for number, kind in enumerate(KINDS)}
    changes.sort(key=lambda change: (order[change.kind], -change.size))
    twins = tuple((left[x].node, right[y].node) for x, y in pairs.items())
    return Difference(tuple(changes), twins, (len(left), len(right)))


Ends = Sequence[tuple[int, int]]
Parted = tuple[ir.Graph | ir.Function, Sequence[Part]]


def _of_graphs(a: Parted, b: Parted, pairs: Mapping[int, int]) -> list[Change]:
    """Return what differs between the nodes of two graphs, and in what they give."""
    (left_graph, left), (right_graph, right) = a, b
    changes = list(_gaps(left, right, pairs))
    # The weights of a node that took others in are new, which is no difference of its own.
    takers = {id(node) for change in changes if change.kind == "fused" for node in change.a}
    for x, y in pairs.items():
        found = _of_pair(left[x], right[y])
        taken_in = id(left[x].node) in takers
        changes += [one for one in found if not (taken_in and one.kind == "weights")]
    changes += _rewired(left, right, pairs, takers)
    ends = [ends_of(graph, parts) for graph, parts in ((left_graph, left), (right_graph, right))]
    both = min(map(len, ends))  # one more or less is told with its type
    for number, was, now in _moved(left, right, pairs, ends[0][:both], ends[1][:both]):
        changes.append(Change("model", f"output {number}: from {was} → {now}"))
    return changes


def _inside(a: Parted, b: Parted) -> list[Change]:
    return _of_graphs(a, b, matched(a[1], b[1]))


def _of_bodies(a: Part, b: Part) -> Iterable[Change]:
    """Yield what differs in the graphs that a node holds, as differences of the node."""
    for name in sorted({*a.bodies, *b.bodies}):
        if name not in a.bodies or name not in b.bodies:
            word = "is new" if name in b.bodies else "is gone"
            yield Change("parameters", f"{a.op}: {name} {word}", (a.node,), (b.node,))
            continue
        mine, theirs = ((p.bodies[name], parts_of(p.bodies[name], p.imports)) for p in (a, b))
        for one in _inside(mine, theirs):
            kind = "wiring" if one.kind == "model" else one.kind
            what = f"{a.op}, in {name}: {one.what}"
            yield Change(kind, what, (a.node,), (b.node,), one.size)


def _of_functions(a: ir.Model, b: ir.Model) -> Iterable[Change]:
    """Yield what differs in the functions that both models define."""
    for key, mine in a.functions.items():
        theirs = b.functions.get(key)
        if theirs is not None:
            for one in _inside((mine, parts_of(mine)), (theirs, parts_of(theirs))):
                what = f"function `{shorter(mine.name)}`, {one.kind}: {one.what}"
                yield Change("model", what, size=one.size)


def _of_models(a: ir.Model, b: ir.Model) -> Iterable[Change]:
    if opset_of(a) != opset_of(b):
        yield Change("model", f"opset {opset_of(a)} → {opset_of(b)}")
    domains = {
        name: (x, y)
        for name in sorted({*a.opset_imports, *b.opset_imports} - {"", "ai.onnx"})
        if (x := a.opset_imports.get(name)) != (y := b.opset_imports.get(name))
    }
    for name, (x, y) in domains.items():
        yield Change("model", f"domain `{shorter(name)}`: {x or 'none'} → {y or 'none'}")
    for kind in ("inputs", "outputs"):
        mine, theirs = (
            [v for v in getattr(m.graph, kind) if not v.is_initializer()] for m in (a, b)
        )
        for number, (x, y) in enumerate(zip_longest(mine, theirs)):
            words = [_value_words(value) for value in (x, y)]
            if words[0] != words[1]:
                yield Change("model", f"{kind[:-1]} {number}: {words[0]} → {words[1]}")


def _value_words(value: ir.Value | None) -> str:
    if value is None:
        return "none"
    sizes = None if value.shape is None else [d if isinstance(d, int) else "?" for d in value.shape]
    shape = "any shape" if sizes is None else "×".join(map(str, sizes)) or "scalar"
    return f"{value.dtype.name.lower() if value.dtype is not None else 'unknown'} {shape}"


def _gaps(a: Sequence[Part], b: Sequence[Part], pairs: Mapping[int, int]) -> Iterable[Change]:
    """Say what stands alone on each side; what lies together in both was replaced."""
    back = {y: x for x, y in pairs.items()}
    lone_a = _islands(a, {n for n in range(len(a)) if n not in pairs})
    lone_b = _islands(b, {n for n in range(len(b)) if n not in back})
    left_over = list(lone_b)
    for island in lone_a:
        border = _border(a, island)
        there = {pairs[n] for n in border if n in pairs}
        twin = next((one for one in left_over if _meets(b, one, there, border, a)), None)
        if twin is not None:
            left_over.remove(twin)
            yield _replaced(a, b, island, twin)
        else:
            yield _removed(a, b, island, pairs)
    for island in left_over:
        yield Change("added", _ops(b, island), (), _nodes(b, island))


def _islands(parts: Sequence[Part], lone: set[int]) -> list[list[int]]:
    """Return unmatched nodes in groups that hang together."""
    near: dict[int, set[int]] = {n: set() for n in lone}
    for number in lone:
        for maker, _ in parts[number].parents:
            if maker in near:
                near[number].add(maker)
                near[maker].add(number)
    found: list[list[int]] = []
    left = set(lone)
    for number in sorted(lone):
        if number not in left:
            continue
        island, todo = [], [number]
        left.discard(number)
        while todo:
            at = todo.pop()
            island.append(at)
            new = near[at] & left
            left -= new
            todo += new
        found.append(sorted(island))
    return found


def _border(parts: Sequence[Part], island: Sequence[int]) -> set[int]:
    """Return the nodes around an island: what it reads, and what reads it."""
    inside = set(island)
    makers = {m for n in island for m, _ in parts[n].parents if m >= 0}
    readers = {
        n
        for n, part in enumerate(parts)
        if n not in inside and any(m in inside for m, _ in part.parents)
    }
    return (makers | readers) - inside


def _meets(
    b: Sequence[Part], island: Sequence[int], there: set[int], border: set[int], a: Sequence[Part]
) -> bool:
    """Say whether an island of B lies between the same nodes as one of A."""
    mine = _border(b, island)
    return bool(mine & there) or (not mine and not border)


def _replaced(
    a: Sequence[Part], b: Sequence[Part], old: Sequence[int], new: Sequence[int]
) -> Change:
    kind = "replaced"
    if len(new) < len(old):
        kind = "fused"
    elif len(new) > len(old):
        kind = "split"
    what = f"{_ops(a, old)} → {_ops(b, new)}"
    return Change(kind, what, _nodes(a, old), _nodes(b, new))


def _removed(
    a: Sequence[Part], b: Sequence[Part], island: Sequence[int], pairs: Mapping[int, int]
) -> Change:
    """Return what became of nodes without a twin: taken into a neighbour's weights, or gone."""
    if all(a[n].op in _FOLDED for n in island):
        makers = {m for n in island for m, _ in a[n].parents if m in pairs}
        takers = [
            m for m in makers
            if a[m].weights and weights_differ(a[m], b[pairs[m]])
        ]  # fmt: skip
        if takers:
            into = takers[0]
            what = f"{_ops(a, [into, *island])} → {b[pairs[into]].op}"
            gone = (a[into].node, *_nodes(a, island))
            return Change("fused", what, gone, (b[pairs[into]].node,))
    readers = [n for n in pairs if any(m in island for m, _ in a[n].parents)]
    if readers and all(m in island or m <= -2 for n in island for m, _ in a[n].parents):
        # Computed from weights alone: now a weight itself.
        ends = [(m, b[pairs[n]].parents[at : at + 1]) for n in readers
                for at, (m, _) in enumerate(a[n].parents)]  # fmt: skip
        if all(now and now[0][0] == -2 for m, now in ends if m in island):
            what = f"{_ops(a, island)} → a weight of {_ops(a, readers)}"
            twins = tuple(b[pairs[n]].node for n in readers)
            return Change("fused", what, _nodes(a, [*island, *readers]), twins)
    return Change("removed", _ops(a, island), _nodes(a, island))


def _ops(parts: Sequence[Part], numbers: Sequence[int]) -> str:
    counts = Counter(parts[n].op for n in numbers)
    return " + ".join(f"{op} × {count}" if count > 1 else op for op, count in counts.items())


def _nodes(parts: Sequence[Part], numbers: Sequence[int]) -> tuple[ir.Node, ...]:
    return tuple(parts[n].node for n in numbers)


def _of_pair(a: Part, b: Part) -> Iterable[Change]:
    nodes = ((a.node,), (b.node,))
    keys = sorted({*a.parameters, *b.parameters, *a.defaults, *b.defaults})
    both = [(key, a.value_of(key, b), b.value_of(key, a)) for key in keys]
    wrote = [f"{key}: {_shown(x)} → {_shown(y)}" for key, x, y in both if x != y]
    if wrote:
        yield Change("parameters", f"{a.op}: {'; '.join(wrote)}", *nodes)
    if a.type and b.type and a.type != b.type:
        yield Change("shape", f"{a.op}: {a.type} → {b.type}", *nodes)
    if a.shape is not None and b.shape is not None and _unlike(a.shape, b.shape):
        yield Change(
            "shape",
            f"{a.op}: {'×'.join(map(str, a.shape))} → {'×'.join(map(str, b.shape))}",
            *nodes,
        )
    for kind, what, size in weight_changes(a, b):
        yield Change(kind, what, *nodes, size=size)
    yield from _of_bodies(a, b)


def _unlike(a: Sequence[object], b: Sequence[object]) -> bool:
    """Say whether two shapes differ in a size; names of open sizes are names."""
    if len(a) != len(b):
        return True
    return any(x != y and str(x).isdigit() and str(y).isdigit() for x, y in zip(a, b, strict=True))


def _shown(value: object) -> str:
    if value is None:
        return "not there"
    return shorter(str(list(value)) if isinstance(value, tuple) else str(value))


def _rewired(
    a: Sequence[Part], b: Sequence[Part], pairs: Mapping[int, int], takers: set[int]
) -> Iterable[Change]:
    """Say which matched nodes read other nodes, where nothing new or gone explains it."""
    for x, y in pairs.items():
        if id(a[x].node) in takers:
            continue
        nodes = (a[x].node,), (b[y].node,)
        mine, theirs = a[x].parents, b[y].parents
        counts = [sum(maker >= -1 for maker, _ in ends) for ends in (mine, theirs)]
        if counts[0] != counts[1]:
            yield Change("wiring", f"{a[x].op}: {counts[0]} inputs → {counts[1]}", *nodes)
            continue
        for number, was, now in _moved(a, b, pairs, mine, theirs):
            yield Change("wiring", f"{a[x].op}: input {number} from {was} → {now}", *nodes)


def _moved(
    a: Sequence[Part], b: Sequence[Part], pairs: Mapping[int, int], mine: Ends, theirs: Ends
) -> Iterable[tuple[int, str, str]]:
    """Yield which of these ends are others, where no node is new or gone there."""
    back = set(pairs.values())
    for number, ((m, slot), (n, other)) in enumerate(
        zip_longest(mine, theirs, fillvalue=(NOTHING, 0))
    ):
        lone = (m >= 0 and m not in pairs) or (n >= 0 and n not in back)
        same = pairs.get(m) == n if m >= 0 and n >= 0 else m == n
        # Weights are numbered in each node, inputs in the graph. One that is gone is told as such.
        if lone or (same and (slot == other or m <= -2)) or {m, n} == {-2, NOTHING}:
            continue
        yield number, _source(a, m, slot), _source(b, n, other)


def _source(parts: Sequence[Part], maker: int, slot: int) -> str:
    if maker >= 0:
        which = f" (output {slot})" if slot else ""
        return f"`{parts[maker].name}`{which}"
    if maker == -1:
        return f"input {slot}"
    return "nothing" if maker == NOTHING else "a weight"


# How the map shows a node that a change is about; `changed` for every other kind.
_STATES = {"added": "added", "removed": "removed", "fused": "fused", "split": "fused"}


def as_rows(found: Difference, models: tuple[ir.Model, ir.Model]) -> dict[str, Any]:
    """Return what differs with nodes as numbers of the page's rows, and each node's state."""
    numbers: list[dict[int, int]] = []
    for model in models:
        rows = [node for node in model.graph if constant_of(node.outputs[0]) is None]
        numbers.append({id(node): number for number, node in enumerate(rows)})
    status = [["same"] * len(one) for one in numbers]
    changes = []
    for change in found.changes:
        sides = [
            [one[id(node)] for node in nodes if id(node) in one]
            for one, nodes in zip(numbers, (change.a, change.b), strict=True)
        ]
        for state, side in zip(status, sides, strict=True):
            for node in side:
                state[node] = _STATES.get(change.kind, "changed")
        changes.append(
            {"kind": change.kind, "what": change.what, "a": sides[0], "b": sides[1],
             "size": change.size}
        )  # fmt: skip
    return {**found.as_json(), "changes": changes, "status": status, "kinds": KINDS}
