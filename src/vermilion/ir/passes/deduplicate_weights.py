"""Keeping one copy of equal weights."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.ir.passes.report import Notes

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
