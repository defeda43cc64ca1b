"""Moving difficulty from activations to weights, for products whose input has outlying channels.

What a transformer's products read has a few channels far larger than all others, and so has what
a gate of a squeeze-and-excitation block lets through: one scale a tensor then leaves the others a
handful of integers. Each channel k is divided by f_k before the product, and what the weight has
for channel k is multiplied by it: the product stays as it was.

Before → after, with a_k and w_k the largest magnitudes of channel k in what is read and in
all weights that read it:
    x → MatMul(W)    becomes    x · (1 ÷ f) → MatMul(f · W),    f_k = √(a_k ÷ w_k)
The division goes into the scale and bias of a LayerNormalization where nothing else reads its
result, and is a Mul of its own otherwise. Before a Conv it is made only where it takes away three
quarters of the noise that rounding what is read makes.
Source: G. Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large
Language Models", 2022, equation 4 with α = 0.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.attributes import integer
from vermilion.ir.execute import Array, run_session
from vermilion.quantize.calibrate import open_fetching
from vermilion.quantize.names import Names

Float32 = NDArray[np.float32]

# A channel that is never used, or a weight of zeros, is left alone.
_LEAST = 1e-5

# How many times less the noise must be before a Conv.
_WORTH = 4.0

# The axis of the weight along which the channels that are read lie.
_WEIGHT_AXIS = {"MatMul": 0, "Conv": 1}


@dataclass(frozen=True)
class _Source:
    """A tensor, and the products of one kind that read it."""

    value: ir.Value
    op_type: str
    readers: list[ir.Node] = field(default_factory=list)

    def channel_axis(self, rank: int) -> int:
        return 1 if self.op_type == "Conv" else rank - 1


def migrate(model: ir.Model, samples: Sequence[Mapping[str, Array]]) -> int:
    """Change `model` in place; give how many tensors were made easier."""
    sources = _sources(model.graph)
    largest = _largest(model, sources, samples)
    names = Names(model.graph)
    return sum(
        _move(model.graph, source, found, names)
        for source, found in zip(sources, largest, strict=True)
    )


def _sources(graph: ir.Graph) -> list[_Source]:
    """Return what products with a weight of their own read, and those products."""
    found: dict[tuple[str, str], _Source] = {}
    for node in graph:
        if node.op_type not in _WEIGHT_AXIS or node.domain not in ("", "ai.onnx"):
            continue
        read, weight = node.inputs[:2]
        if read is None or weight is None or read.const_value is not None:
            continue
        tensor = weight.const_value
        if tensor is None or len(weight.uses()) != 1 or read.is_graph_input():
            continue
        if tensor.dtype == ir.DataType.FLOAT and _is_plain(node, len(tensor.shape)):
            key = (str(read.name), node.op_type)
            found.setdefault(key, _Source(read, node.op_type)).readers.append(node)
    return list(found.values())


def _is_plain(node: ir.Node, rank: int) -> bool:
    """Say whether each channel that is read meets all that is written."""
    if node.op_type == "MatMul":
        return rank == 2
    return integer(node, "group", 1) == 1


def _largest(
    model: ir.Model, sources: Sequence[_Source], samples: Iterable[Mapping[str, Array]]
) -> list[Float32]:
    """Return the largest magnitude of each channel over the samples."""
    if not sources:
        return []
    names = list(dict.fromkeys(str(source.value.name) for source in sources))
    session = open_fetching(model, names)
    largest: list[Float32] = []
    for sample in samples:
        found = run_session(session, sample, names)
        here = [_by_channel(found[str(source.value.name)], source) for source in sources]
        largest = [np.maximum(a, b) for a, b in zip(largest or here, here, strict=True)]
    return largest


def _by_channel(array: Array, source: _Source) -> Float32:
    axis = source.channel_axis(array.ndim)
    others = tuple(at for at in range(array.ndim) if at != axis)
    found: Float32 = np.abs(array).max(axis=others, initial=0.0)
    return found


def _move(graph: ir.Graph, source: _Source, largest: Float32, names: Names) -> bool:
    """Divide what is read and multiply the weights; say whether it was worth it."""
    axis = _WEIGHT_AXIS[source.op_type]
    weights = [reader.inputs[1] for reader in source.readers]
    arrays = [np.asarray(w.const_value.numpy()) for w in weights if w and w.const_value]
    rows = [np.moveaxis(array, axis, 0).reshape(len(largest), -1) for array in arrays]
    heaviest = np.max([np.abs(row).max(axis=1) for row in rows], axis=0)
    usable = (largest > _LEAST) & (heaviest > _LEAST)
    ones = np.ones_like(largest)
    factor = np.sqrt(np.divide(largest, heaviest, out=ones, where=usable)).astype(np.float32)
    if source.op_type == "Conv":
        power = np.sum([np.square(row, dtype=np.float64).sum(axis=1) for row in rows], axis=0)
        if _noise(largest, power) < _WORTH * _noise(largest / factor, power * factor**2):
            return False
    for weight, array in zip(weights, arrays, strict=True):
        if weight is not None:
            spread = factor.reshape(-1, *[1] * (array.ndim - 1 - axis))
            weight.const_value = ir.Tensor(array * spread, name=weight.name)
    _divide(graph, source, (1.0 / factor).astype(np.float32), arrays[0].ndim, names)
    return True


def _noise(largest: Float32, power: NDArray[np.float64]) -> float:
    """Return what rounding with one scale for all channels does behind the weights, relatively."""
    return float(largest.max()) ** 2 * float(power.sum())


def _divide(graph: ir.Graph, source: _Source, divide: Float32, rank: int, names: Names) -> None:
    value, readers = source.value, source.readers
    if _fold(value, readers, divide):
        return
    if source.op_type == "Conv":
        divide = divide.reshape(1, -1, *[1] * (rank - 2))
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
