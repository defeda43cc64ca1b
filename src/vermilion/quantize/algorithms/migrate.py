"""Moving difficulty from activations to weights, for matrix products in transformers.

What a transformer's products read has a few channels far larger than all others; one scale a
tensor then leaves the others a handful of integers. Each channel k is divided by f_k before the
product, and row k of the weight is multiplied by it: the product stays as it was.

Before → after, with a_k and w_k the largest magnitudes of channel k in what is read and in row k
of all weights that read it:
    x → MatMul(W)    becomes    x · (1 ÷ f) → MatMul(f · W),    f_k = √(a_k ÷ w_k)
The division goes into the scale and bias of a LayerNormalization where nothing else reads its
result, and is a Mul of its own otherwise.
Source: G. Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
Language Models", 2022, equation 4 with α = 0.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.execute import Array, run_session
from vermilion.quantize.calibrate import open_fetching
from vermilion.quantize.names import Names

Float32 = NDArray[np.float32]

# A channel that is never used, or a weight of zeros, is left alone.
_LEAST = 1e-5


def migrate(model: ir.Model, samples: Sequence[Mapping[str, Array]]) -> int:
    """Change `model` in place; give how many tensors were made easier."""
    sources = _sources(model.graph)
    largest = _largest(model, list(sources), samples)
    names = Names(model.graph)
    for name, (value, readers) in sources.items():
        _move(model.graph, value, readers, largest[name], names)
    return len(sources)


def _sources(graph: ir.Graph) -> dict[str, tuple[ir.Value, list[ir.Node]]]:
    """Give what products with a weight of their own read, and those products."""
    found: dict[str, tuple[ir.Value, list[ir.Node]]] = {}
    for node in graph:
        if node.op_type != "MatMul" or node.domain not in ("", "ai.onnx"):
            continue
        read, weight = node.inputs
        if read is None or weight is None or read.const_value is not None:
            continue
        tensor = weight.const_value
        if tensor is None or len(tensor.shape) != 2 or len(weight.uses()) != 1:
            continue
        if tensor.dtype == ir.DataType.FLOAT and not read.is_graph_input():
            found.setdefault(str(read.name), (read, []))[1].append(node)
    return found


def _largest(
    model: ir.Model, names: Sequence[str], samples: Iterable[Mapping[str, Array]]
) -> dict[str, Float32]:
    """Give the largest magnitude of each channel, the last axis, over the samples."""
    if not names:
        return {}
    session = open_fetching(model, names)
    largest: dict[str, Float32] = {}
    for sample in samples:
        for name, array in run_session(session, sample, names).items():
            here = np.abs(array).max(axis=tuple(range(array.ndim - 1)), initial=0.0)
            largest[name] = np.maximum(largest[name], here) if name in largest else here
    return largest


def _move(
    graph: ir.Graph, value: ir.Value, readers: Sequence[ir.Node], largest: Float32, names: Names
) -> None:
    weights = [reader.inputs[1] for reader in readers]
    arrays = [np.asarray(w.const_value.numpy()) for w in weights if w and w.const_value]
    rows = np.max([np.abs(array).max(axis=1) for array in arrays], axis=0)
    usable = (largest > _LEAST) & (rows > _LEAST)
    ones = np.ones_like(largest)
    factor = np.sqrt(np.divide(largest, rows, out=ones, where=usable)).astype(np.float32)
    for weight, array in zip(weights, arrays, strict=True):
        if weight is not None:
            weight.const_value = ir.Tensor(array * factor[:, None], name=weight.name)
    divide = (1.0 / factor).astype(np.float32)
    if _fold(value, readers, divide):
        return
    name = names.free(f"{value.name}_migrated")
    easier = ir.node("Mul", [value, names.constant(f"{name}_by", divide)], name=name)
    result = easier.outputs[0]
    result.name, result.type, result.shape = name, value.type, value.shape
    graph.insert_before(readers[0], easier)
    for reader in readers:
        reader.replace_input_with(0, result)


def _fold(value: ir.Value, readers: Sequence[ir.Node], divide: Float32) -> bool:
    """Divide inside the LayerNormalization that gives `value`; say whether that was possible."""
    producer = value.producer()
    if producer is None or producer.op_type != "LayerNormalization":
        return False
    if value.is_graph_output() or {use.node for use in value.uses()} != set(readers):
        return False
    constants = [given for given in producer.inputs[1:] if given is not None]
    if any(c.const_value is None or len(c.uses()) != 1 for c in constants):
        return False
    for constant in constants:
        assert constant.const_value is not None, "looked at above"
        folded = (constant.const_value.numpy() * divide).astype(np.float32)
        if folded.shape != constant.const_value.numpy().shape:
            return False
        constant.const_value = ir.Tensor(folded, name=constant.name)
    return True
