"""A decoder's graph that computes logits of the last position only, unless all are asked for."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

FIRST_POSITION = "vermilion.first_position"
"""The new input: -1 for the last position, 0 for all. Shape (1,), int64."""

# What may stand between the head and the logits: each element of the output is of its own input.
_ELEMENTWISE = frozenset(("Cast", "Div", "Identity", "Mul", "Tanh"))
_HEADS = frozenset(("MatMul", "MatMulNBits"))


def keep_last_logits(model: ir.Model, logits: str) -> bool:
    """Cut the head's input down to the positions from `FIRST_POSITION` on; say whether it fired.

    Before → after: `MatMul(x, W)` → `MatMul(Slice(x, FIRST_POSITION, …, axis 1), W)`, for the
    product that makes the logits. A graph that ends in another way, or that was built for the
    last position only, stays as it is.
    """
    output = next((value for value in model.graph.outputs if value.name == logits), None)
    after = _after_head(output)
    if not after:
        return False
    head = after[-1]
    hidden = head.inputs[0]
    if hidden is None or _is_cut(hidden):
        return False
    first = ir.Value(
        name=FIRST_POSITION, shape=ir.Shape([1]), type=ir.TensorType(ir.DataType.INT64)
    )
    end = _constant(model, "vermilion.end", np.iinfo(np.int64).max)
    axis = _constant(model, "vermilion.axis", 1)
    cut = ir.node("Slice", [hidden, first, end, axis], name="vermilion.last")
    cut.outputs[0].name = "vermilion.last_hidden"
    model.graph.inputs.append(first)
    model.graph.insert_before(head, cut)
    head.replace_input_with(0, cut.outputs[0])
    for node in after:
        # The declared number of positions is that of the prompt, which no longer holds.
        value = node.outputs[0]
        if value.shape is not None and len(value.shape) == 3:
            batch, _, width = value.shape
            value.shape = ir.Shape([batch, "vermilion.positions", width])
    return True


def _after_head(output: ir.Value | None) -> list[ir.Node]:
    """Return the nodes from the logits up to the product that makes them, which is the last."""
    nodes: list[ir.Node] = []
    node = output.producer() if output is not None else None
    while node is not None:
        nodes.append(node)
        if node.op_type in _HEADS:
            return nodes
        made = [value for value in node.inputs if value is not None and _is_made(value)]
        node = made[0].producer() if node.op_type in _ELEMENTWISE and len(made) == 1 else None
    return []


def _is_made(value: ir.Value) -> bool:
    node = value.producer()
    return node is not None and node.op_type != "Constant"


def _is_cut(hidden: ir.Value) -> bool:
    """Say whether the builder has cut it already (`prune_lm_head`), by a Gather or Slice."""
    node = hidden.producer()
    while node is not None and node.op_type in ("Unsqueeze", "Reshape", "Cast"):
        first = node.inputs[0]
        node = first.producer() if first is not None else None
    return node is not None and node.op_type in ("Gather", "GatherND", "Slice")


def _constant(model: ir.Model, name: str, number: int) -> ir.Value:
    tensor = ir.tensor(np.array([number], np.int64), name=name)
    value = ir.Value(
        name=name,
        shape=ir.Shape([1]),
        type=ir.TensorType(ir.DataType.INT64),
        const_value=tensor,
    )
    model.graph.initializers[name] = value
    return value
