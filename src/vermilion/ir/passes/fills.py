"""Tensors of one number whose shape only a run has, in an operator that is generated everywhere."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.ir.opset import constant_of, is_operator
from vermilion.ir.passes.rewrite import Notes


def expand_fills(model: ir.Model, notes: Notes) -> None:
    """Before → after: `ConstantOfShape<value = v> (shape)` → `Expand (v, shape)`.

    Where the shape is a constant, folding makes a weight of it.
    """
    for node in list(model.graph.all_nodes()):
        if not is_operator(node, "ConstantOfShape") or constant_of(node.inputs[0]) is not None:
            continue
        graph, old = node.graph, node.outputs[0]
        assert graph is not None, "the node stands in a graph"
        value = node.attributes.get("value")
        number = (
            np.zeros((), np.float32) if value is None else value.as_tensor().numpy().reshape(())
        )
        label = node.name or str(old.name)
        scalar = ir.node(
            "Constant",
            [],
            {"value": ir.tensor(np.ascontiguousarray(number))},
            name=f"{label}/value",
        )
        scalar.outputs[0].name = f"{old.name}/value"
        scalar.outputs[0].type = ir.TensorType(ir.DataType.from_numpy(number.dtype))
        made = ir.node("Expand", [scalar.outputs[0], node.inputs[0]], name=label)
        new, name, kind, shape = made.outputs[0], old.name, old.type, old.shape
        new.type, new.shape = kind or scalar.outputs[0].type, shape
        graph.insert_before(node, [scalar, made])
        old.replace_all_uses_with(new, replace_graph_outputs=True)
        old.name = None
        new.name = name
        graph.remove(node, safe=True)
        notes.fired += 1
