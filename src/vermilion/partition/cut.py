"""Cutting a graph: which nodes form a part, in which order parts run, a part as a model, halves.

A graph is given as `reads`: for each node, by position in topological order, the positions of
the nodes whose results it reads.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx
import onnx_ir as ir

from vermilion.ir.execute import stripped_proto
from vermilion.ir.opset import sources_of

_MOST_CROSSING = 2  # tensors between two halves


class Extractor:
    """Cuts parts out of one model. `reads`: for each node, what it reads, by position.

    The model is written as a message when the first part is cut, and kept: that costs more than
    one cut, and who only asks for places cuts none.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        position = {id(node): at for at, node in enumerate(model.graph)}
        self.reads = [
            frozenset(position[source] for source in sources_of(node, model.graph))
            for node in model.graph
        ]

    @cached_property
    def _written(self) -> _Written:
        return _Written(self._model)

    def extract(self, name: str, positions: Sequence[int]) -> ir.Model:
        """Return the nodes at `positions` as a model; its inputs and outputs keep their names."""
        written = self._written
        inside = set(positions)
        nodes = [written.proto.graph.node[p] for p in sorted(inside)]
        produced = {out for node in nodes for out in node.output if out}
        read = sorted({n for p in inside for n in written.reads[p]} - produced)
        read_outside = {
            n for p, names in enumerate(written.reads) if p not in inside for n in names
        }
        outputs = [
            out
            for node in nodes
            for out in node.output
            if out in read_outside or out in written.outputs
        ]
        model = onnx.ModelProto()
        model.CopyFrom(_shell(written.proto))
        graph = model.graph
        graph.name = name
        graph.node.extend(nodes)
        weights = written.initializers
        graph.initializer.extend(weights[n] for n in read if n in weights)
        graph.input.extend(written.type_of(n) for n in read if n not in weights)
        graph.output.extend(written.type_of(n) for n in outputs)
        boundary = set(outputs) | set(read)
        graph.value_info.extend(
            written.types[n] for n in sorted(produced - boundary) if n in written.types
        )
        part = ir.from_proto(model)
        for initializer_name, value in part.graph.initializers.items():
            if initializer_name in written.weights:
                value.const_value = written.weights[initializer_name]
        return part


class _Written:
    """A model as a message without its large weights, and what is looked up in it."""

    def __init__(self, model: ir.Model) -> None:
        self.proto, self.weights = stripped_proto(model)
        graph = self.proto.graph
        self.reads = [frozenset(_names_read(node)) for node in graph.node]
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.types = {info.name: info for info in [*graph.value_info, *graph.input, *graph.output]}
        self.outputs = frozenset(info.name for info in graph.output)

    def type_of(self, name: str) -> onnx.ValueInfoProto:
        found = self.types.get(name)
        return found if found is not None else onnx.ValueInfoProto(name=name)


def _shell(proto: onnx.ModelProto) -> onnx.ModelProto:
    shell = onnx.ModelProto(ir_version=proto.ir_version, producer_name=proto.producer_name)
    shell.opset_import.extend(proto.opset_import)
    shell.functions.extend(proto.functions)
    return shell


def _names_read(node: onnx.NodeProto) -> Iterable[str]:
    """Yield every outer name a node reads, those that its subgraphs capture included."""
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        graphs = [*attribute.graphs]
        if attribute.HasField("g"):
            graphs.append(attribute.g)
        for graph in graphs:
            own = {info.name for info in graph.input}
            own |= {tensor.name for tensor in graph.initializer}
            own |= {name for inner in graph.node for name in inner.output}
            for inner in graph.node:
                yield from (name for name in _names_read(inner) if name not in own)
            yield from (info.name for info in graph.output if info.name not in own)


Reads = Sequence[Collection[int]]


def connected_parts(reads: Reads, supported: Sequence[bool]) -> list[list[int]]:
    """Group supported nodes that are connected, so that no part waits on itself.

    Two parts grow together along an edge unless a path leaves the one and comes back to the other
    through something outside: that node would need the part's result and the part would need the
    node's.

    Returns: parts as sorted node positions, in the order of their first nodes.
    """
    growth = _Growth(reads)
    for node, is_supported in enumerate(supported):
        if not is_supported:
            continue
        for source in sorted(reads[node]):
            if supported[source]:
                growth.join(source, node)
    members: dict[int, list[int]] = {}
    for node, is_supported in enumerate(supported):
        if is_supported:
            members.setdefault(growth.root(node), []).append(node)
    return list(members.values())


class _Growth:
    """Parts while they grow: a union-find whose parts know which nodes read from them."""

    def __init__(self, reads: Reads) -> None:
        self._parent = list(range(len(reads)))
        # In ascending order. Those inside a part itself are dropped when they are met.
        self._readers: list[list[int]] = [[] for _ in reads]
        for node, sources in enumerate(reads):
            for source in sources:
                self._readers[source].append(node)

    def root(self, node: int) -> int:
        while self._parent[node] != node:
            self._parent[node] = self._parent[self._parent[node]]
            node = self._parent[node]
        return node

    def join(self, source: int, node: int) -> None:
        """Unite the parts of both unless that would close a cycle. `node` is the newest node."""
        a, b = self.root(source), self.root(node)
        if a == b or self._detour(a, b, node) or self._detour(b, a, node):
            return
        if len(self._readers[a]) < len(self._readers[b]):
            a, b = b, a
        self._parent[b] = a
        for reader in self._readers[b]:
            insort(self._readers[a], reader)
        self._readers[b] = []

    def _detour(self, start: int, goal: int, newest: int) -> bool:
        """Say whether a path leads from part `start` through another node to part `goal`.

        Nodes after `newest` are not in any part yet and lead only to later ones.
        """
        seen = {start, goal}
        waiting = [start]
        while waiting:
            at = waiting.pop()
            readers = self._readers[at]
            known = bisect_right(readers, newest)
            readers[:known] = [r for r in readers[:known] if self.root(r) != at]
            for reader in readers:
                if reader > newest:
                    break
                there = self.root(reader)
                if there == goal and at != start:
                    return True
                if there not in seen:
                    seen.add(there)
                    waiting.append(there)
        return False


@dataclass(frozen=True)
class Step:
    """A group of nodes that run together; `part` is the index of the device part, None for CPU."""

    part: int | None
    nodes: tuple[int, ...]


def schedule(reads: Reads, parts: Sequence[Sequence[int]]) -> list[Step]:
    """Order parts and the nodes left over so that everything is computed before it is read.

    Nodes left over run in as few groups as can be: all that are ready, then one device part, and
    so on. Raises AssertionError if the parts wait on each other, which `connected_parts` excludes.
    """
    group = list(range(len(reads)))
    for index, part in enumerate(parts):
        for node in part:
            group[node] = len(reads) + index
    waits: dict[int, set[int]] = {g: set() for g in group}
    readers: dict[int, set[int]] = {g: set() for g in group}
    for node, sources in enumerate(reads):
        for source in sources:
            if group[source] != group[node]:
                waits[group[node]].add(group[source])
                readers[group[source]].add(group[node])
    ready_nodes = [g for g in waits if not waits[g] and g < len(reads)]
    ready_parts = [g for g in waits if not waits[g] and g >= len(reads)]
    steps: list[Step] = []

    def finish(done: int) -> None:
        for reader in sorted(readers[done]):
            waits[reader].discard(done)
            if not waits[reader]:
                (ready_nodes if reader < len(reads) else ready_parts).append(reader)

    while ready_nodes or ready_parts:
        if ready_nodes:
            chunk: list[int] = []
            while ready_nodes:
                node = ready_nodes.pop()
                chunk.append(node)
                finish(node)
            steps.append(Step(None, tuple(sorted(chunk))))
        else:
            part_group = ready_parts.pop(0)
            index = part_group - len(reads)
            steps.append(Step(index, tuple(sorted(parts[index]))))
            finish(part_group)
    scheduled = sum(len(step.nodes) for step in steps)
    assert scheduled == len(reads), "parts wait on each other"
    return steps


def narrow_cuts(model: ir.Model) -> Iterator[tuple[int, tuple[ir.Value, ...]]]:
    """Yield positions between which few tensors are handed over, and those tensors."""
    order = {node: at for at, node in enumerate(model.graph)}
    last: dict[ir.Value, int] = {}
    for node, at in order.items():
        for value in node.inputs:
            if value is not None and value.producer() is not None:
                last[value] = at
    outputs = set(model.graph.outputs)
    alive: dict[ir.Value, None] = {}
    for node, at in order.items():
        alive |= dict.fromkeys(v for v in node.outputs if last.get(v, -1) > at or v in outputs)
        for value in [v for v in alive if v not in outputs and last.get(v, -1) <= at]:
            del alive[value]
        inside = [value for value in alive if value not in outputs]
        if at + 1 < len(order) and len(inside) == len(alive) and len(inside) <= _MOST_CROSSING:
            yield at + 1, tuple(inside)
