"""The prompt's graph: the decoder with the logits of the last token only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from vermilion.errors import ModelError
from vermilion.ir.load import load_model

_LOGITS = "logits"


def write_prompt_graph(
    source: Path, target: Path, weights: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Write a decoder's graph with its head on the last token; give the names of its ends.

    The weights are not written: `weights` is the folder in which the external data lies, relative
    to that of `target`. A graph that was pruned already is written as it is.

    Raises: ModelError for a graph that has no logits of (batch, tokens, vocabulary).
    """
    model = load_model(source)
    graph = model.graph
    logits = next((value for value in graph.outputs if value.name == _LOGITS), None)
    if logits is None or logits.shape is None or len(logits.shape) != 3:
        raise ModelError(
            "the graph gives no logits of (batch, tokens, vocabulary)",
            where=str(source),
            hint="build it with `vermilion llm build`",
        )
    if logits.shape[1] != 1:
        _prune(model, logits, str(source))
    proto = ir.to_proto(model)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = f"{weights}/{entry.value}"
    target.write_bytes(proto.SerializeToString())
    inputs = tuple(
        str(value.name) for value in graph.inputs if value.name not in graph.initializers
    )
    return inputs, tuple(str(value.name) for value in graph.outputs)


def _prune(model: ir.Model, logits: ir.Value, where: str) -> None:
    """Take the last token's row before the head: Gather(axis 1, [-1]) keeps three dimensions."""
    head = logits.producer()
    # What stands between the head's product and the result computes each value by itself.
    while head is not None and head.op_type in (
        "Cast",
        "Softcap",
        "Tanh",
        "Div",
        "Mul",
        "Identity",
    ):
        head = next((v.producer() for v in head.inputs if v is not None and v.producer()), None)
    if head is None or head.op_type not in ("MatMulNBits", "MatMul"):
        raise ModelError(
            "the logits come from no matrix product", where=where, hint="build the folder again"
        )
    rows = head.inputs[0]
    assert rows is not None, "a product has a left side"
    name = "vermilion.last_token"
    index = ir.Value(
        name=name,
        const_value=ir.tensor(np.array([-1], np.int64), name=name),
        shape=ir.Shape([1]),
        type=ir.TensorType(ir.DataType.INT64),
    )
    model.graph.register_initializer(index)
    gather = ir.node("Gather", [rows, index], {"axis": 1}, name="vermilion.last_token/Gather")
    gather.outputs[0].name = f"{name}.row"
    gather.outputs[0].type = rows.type
    model.graph.insert_before(head, gather)
    head.replace_input_with(0, gather.outputs[0])
    # Shapes after it have one token now; written ones that say otherwise are taken off.
    for node in model.graph:
        if node is head or _is_between(node, head, logits):
            for value in node.outputs:
                value.shape = _one_token(value.shape)


def _is_between(node: ir.Node, head: ir.Node, logits: ir.Value) -> bool:
    """Say whether a node lies on the way from the head to the logits."""
    at = logits.producer()
    while at is not None and at is not head:
        if at is node:
            return True
        at = next((v.producer() for v in at.inputs if v is not None and v.producer()), None)
    return False


def _one_token(shape: ir.Shape | None) -> ir.Shape | None:
    if shape is None or len(shape) != 3:
        return None
    return ir.Shape([shape[0], 1, shape[2]])
