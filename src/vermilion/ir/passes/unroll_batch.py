"""Writing a batch as one run an entry, for devices that compute only the first."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.ir.opset import constant_of, required_inputs, static_shape
from vermilion.ir.passes.rewrite import Notes, new_weight

MAX_BATCH = 16
"""The graph grows with the batch: beyond this, run the model once an entry instead."""

# Operators with a constant that names shapes, and which of their inputs it is.
_SHAPED = {"Expand": 1, "Reshape": 1}


def unroll_batch(model: ir.Model, notes: Notes) -> None:
    """Before → after: f(x[B, …]) → Concat (f(x[0:1]), …, f(x[B-1:B])).

    Phoenix leaves the entries after the first unwritten
    (https://github.com/amd/RyzenAI-SW/issues/401). Whether the model treats its entries alike is
    not looked at: the caller compares the outputs.
    """
    batch = _batch(model)
    if isinstance(batch, str):
        if batch:
            notes.refuse("model", batch, "run the model once an entry, with batch 1")
        return
    graph = model.graph
    nodes = list(graph)
    entries = [_Copy(graph, index, batch) for index in range(batch)]
    for value in required_inputs(model):
        pieces = _split(graph, value, batch)
        for entry, piece in zip(entries, pieces, strict=True):
            entry.values[value] = piece
    for entry in entries:
        for node in nodes:
            graph.append(entry.copy(node))
    for position, value in enumerate(graph.outputs):
        joined = ir.node("Concat", [entry.values[value] for entry in entries], {"axis": 0})
        joined.name = f"{value.name}/join"
        result = joined.outputs[0]
        result.type, result.shape = value.type, value.shape
        graph.append(joined)
        graph.outputs[position] = result
        value.name, result.name = f"{value.name}/batched", value.name
    graph.remove(nodes, safe=True)
    notes.fired += batch


def _batch(model: ir.Model) -> int | str:
    """Return the batch, a reason where it cannot be unrolled, empty where there is none."""
    values = [*required_inputs(model), *model.graph.outputs]
    shapes = [static_shape(value) for value in values]
    known = {shape[0] for shape in shapes if shape}
    if len(known) == 1 and (known == {1} or len(shapes) == 1):
        return ""
    if None in shapes or () in shapes or len(known) != 1:
        return "" if 1 in known else "its inputs and outputs have no first size in common"
    batch = known.pop()
    if all(_is_split(value, batch) for value in required_inputs(model)):
        return ""
    if batch > MAX_BATCH:
        return f"a batch of {batch} would make the graph {batch} times as large"
    for node in model.graph:
        if any(
            attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            for attribute in node.attributes.values()
        ):
            return f"it has {node.op_type} nodes with bodies"
    if any(value.producer() is None for value in model.graph.outputs):
        return "an input or a weight is also an output"
    return batch


def _is_split(value: ir.Value, batch: int) -> bool:
    """Say whether an input goes into nothing but a Split of its entries: it is unrolled already."""
    readers = value.consumers()
    return len(readers) == 1 and readers[0].op_type == "Split" and len(readers[0].outputs) == batch


class _Copy:
    """One entry's copy of the graph in the making: which value stands for which."""

    def __init__(self, graph: ir.Graph, index: int, batch: int) -> None:
        self.values: dict[ir.Value, ir.Value] = {}
        self._graph = graph
        self._suffix = f"/entry{index}"
        self._batch = batch

    def copy(self, node: ir.Node) -> ir.Node:
        inputs = [None if v is None else self.values.get(v, v) for v in node.inputs]
        shaped = _SHAPED.get(node.op_type) if node.domain == "" else None
        if shaped is not None:
            inputs[shaped] = self._single_shape(node.inputs[shaped])
        made = ir.Node(
            node.domain,
            node.op_type,
            inputs,
            list(node.attributes.values()),
            num_outputs=len(node.outputs),
            name=f"{node.name}{self._suffix}" if node.name else None,
        )
        for old, new in zip(node.outputs, made.outputs, strict=True):
            new.name = f"{old.name}{self._suffix}" if old.name else old.name
            new.type = old.type
            self.values[old] = new
        return made

    def _single_shape(self, value: ir.Value | None) -> ir.Value | None:
        """Return the shape constant with 1 where the batch stood."""
        if value is None:
            return None
        tensor = constant_of(value)
        if tensor is None:
            return self.values.get(value, value)
        sizes = np.array(tensor.numpy())
        if sizes.size == 0 or sizes.flat[0] != self._batch:
            return self.values.get(value, value)
        sizes.flat[0] = 1
        return new_weight(self._graph, f"{value.name}{self._suffix}", ir.tensor(sizes))


def _split(graph: ir.Graph, value: ir.Value, batch: int) -> list[ir.Value]:
    sizes = new_weight(graph, f"{value.name}/ones", ir.tensor(np.ones(batch, np.int64)))
    node = ir.Node("", "Split", [value, sizes], [ir.AttrInt64("axis", 0)], num_outputs=batch)
    node.name = f"{value.name}/split"
    assert value.shape is not None, "its batch is known"
    for index, piece in enumerate(node.outputs):
        piece.name = f"{value.name}/entry{index}"
        piece.type, piece.shape = value.type, ir.Shape([1, *value.shape.dims[1:]])
    graph.append(node)
    return list(node.outputs)
