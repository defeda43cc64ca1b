"""Taking some nodes out of a graph as a model of their own, weights shared with the whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx
import onnx_ir as ir

from vermilion.ir.execute import stripped_proto


class Extractor:
    """Cuts parts out of one model. Kept because stripping a model costs more than one cut."""

    def __init__(self, model: ir.Model) -> None:
        self._proto, self._weights = stripped_proto(model)
        graph = self._proto.graph
        self._reads = [frozenset(_names_read(node)) for node in graph.node]
        self._producer = {
            name: position
            for position, node in enumerate(graph.node)
            for name in node.output
            if name
        }
        self._initializers = {tensor.name: tensor for tensor in graph.initializer}
        self._types = {info.name: info for info in [*graph.value_info, *graph.input, *graph.output]}
        self._outputs = [info.name for info in graph.output]

    @property
    def reads(self) -> list[frozenset[int]]:
        """For each node, the positions of the nodes whose results it reads."""
        return [
            frozenset(self._producer[name] for name in names if name in self._producer)
            for names in self._reads
        ]

    def extract(self, name: str, positions: Sequence[int]) -> ir.Model:
        """Return the nodes at `positions` as a model; its inputs and outputs keep their names."""
        inside = set(positions)
        nodes = [self._proto.graph.node[p] for p in sorted(inside)]
        produced = {out for node in nodes for out in node.output if out}
        read = sorted({n for p in inside for n in self._reads[p]} - produced)
        read_outside = {n for p, names in enumerate(self._reads) if p not in inside for n in names}
        outputs = [
            out
            for node in nodes
            for out in node.output
            if out in read_outside or out in self._outputs
        ]
        model = onnx.ModelProto()
        model.CopyFrom(_shell(self._proto))
        graph = model.graph
        graph.name = name
        graph.node.extend(nodes)
        graph.initializer.extend(self._initializers[n] for n in read if n in self._initializers)
        graph.input.extend(self._type(n) for n in read if n not in self._initializers)
        graph.output.extend(self._type(n) for n in outputs)
        boundary = set(outputs) | set(read)
        graph.value_info.extend(
            self._types[n] for n in sorted(produced - boundary) if n in self._types
        )
        part = ir.from_proto(model)
        for initializer_name, value in part.graph.initializers.items():
            if initializer_name in self._weights:
                value.const_value = self._weights[initializer_name]
        return part

    def _type(self, name: str) -> onnx.ValueInfoProto:
        found = self._types.get(name)
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
