"""Constants as weights: nodes and inputs' defaults turned into them, one copy of equal ones."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.ir.opset import is_operator, where
from vermilion.ir.passes.rewrite import Notes, learn_type, make_weight, new_weight


def lift_constants(model: ir.Model, notes: Notes) -> None:
    """Before → after: `y = Constant()` and its readers → an initializer `y` and its readers.

    Where `y` is an output of the model: → an initializer and `y = Identity(initializer)`, so that
    a node gives every output. Constants in the bodies of If, Loop and Scan are lifted into the
    body they stand in, unless they are its outputs.
    """
    for graph in model.graphs():
        for node in graph:
            if is_operator(node, "Constant"):
                _lift(graph, node, notes, is_main=graph is model.graph)


def _lift(graph: ir.Graph, node: ir.Node, notes: Notes, *, is_main: bool) -> None:
    value = node.outputs[0]
    if value.is_graph_output() and not is_main:
        notes.refuse(where(node), "the constant is an output of its graph")
        return
    tensor = _tensor_of(node)
    if tensor is None:
        notes.refuse(where(node), "the constant is sparse, or given by the caller of a function")
        return
    if value.is_graph_output():
        stored = new_weight(graph, f"{value.name}/constant", tensor)
        made = ir.Node("", "Identity", [stored], name=node.name)
        graph.insert_before(node, made)
        name, result = value.name, made.outputs[0]
        learn_type(value, stored)
        result.type, result.shape = value.type, value.shape
        value.replace_all_uses_with(result, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        result.name = name
        notes.fired += 1
        return
    weight = make_weight(value.name, tensor)
    value.replace_all_uses_with(weight)
    graph.remove(node, safe=True)
    graph.register_initializer(weight)
    notes.fired += 1


def _tensor_of(node: ir.Node) -> ir.TensorProtocol | None:
    """Read the constant out of whichever of the seven attributes holds it (ONNX Constant-13)."""
    if len(node.attributes) != 1:
        return None
    name, attribute = next(iter(node.attributes.items()))
    if attribute.is_ref():
        return None
    match name:
        case "value":
            return attribute.as_tensor()
        case "value_int":
            return ir.tensor(np.array(attribute.as_int(), np.int64))
        case "value_ints":
            return ir.tensor(np.array(attribute.as_ints(), np.int64))
        case "value_float":
            return ir.tensor(np.array(attribute.as_float(), np.float32))
        case "value_floats":
            return ir.tensor(np.array(attribute.as_floats(), np.float32))
        case "value_string":
            return ir.StringTensor([attribute.as_string().encode()], shape=ir.Shape([]))
        case "value_strings":
            strings = [text.encode() for text in attribute.as_strings()]
            return ir.StringTensor(strings, shape=ir.Shape([len(strings)]))
    return None


def freeze_defaults(model: ir.Model, notes: Notes) -> None:
    """Before → after: an input that is also an initializer → just an initializer.

    Before IR version 4 every weight had to be listed as an input (ONNX IR specification,
    "Graphs"); as long as a caller may override it, nothing can be folded into it.
    """
    for graph in model.graphs():
        kept = [value for value in graph.inputs if not value.is_initializer()]
        gone = len(graph.inputs) - len(kept)
        if gone:
            graph.inputs.clear()
            graph.inputs.extend(kept)
            notes.fired += gone


_SAMPLES = 16


def deduplicate_weights(model: ir.Model, notes: Notes) -> None:
    """Before → after: readers of equal weights of one graph → readers of the first of them.

    Equal is bit for bit, so that -0 and 0 stay apart. Weights are only read whole where shape,
    type and a few bytes agree: gigabytes of mapped weights are not paged in.
    """
    for graph in model.graphs():
        groups: dict[tuple[object, ...], list[ir.Value]] = {}
        for value in list(graph.initializers.values()):
            tensor = value.const_value
            if tensor is None or tensor.dtype == ir.DataType.STRING or value.is_graph_input():
                continue
            if value.is_graph_output():
                notes.refuse(f"weight `{value.name}`", "it is an output of the model")
                continue
            group = groups.setdefault(_key(tensor), [])
            twin = next((other for other in group if _equal(other, tensor)), None)
            if twin is None:
                group.append(value)
                continue
            value.replace_all_uses_with(twin)
            del graph.initializers[value.name or ""]
            notes.fired += 1


def _key(tensor: ir.TensorProtocol) -> tuple[object, ...]:
    bits = _bits(tensor)
    step = max(1, bits.size // _SAMPLES)
    return (tensor.dtype, tuple(tensor.shape), bits[::step].tobytes())


def _equal(value: ir.Value, tensor: ir.TensorProtocol) -> bool:
    other = value.const_value
    return other is not None and np.array_equal(_bits(other), _bits(tensor))


def _bits(tensor: ir.TensorProtocol) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    array = np.ascontiguousarray(tensor.numpy())
    return array.reshape(-1).view(np.uint8)
