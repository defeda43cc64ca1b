"""A model's graph as rows for the page: nodes, tensors, and what the weights hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.cost import node_cost
from vermilion.ir.opset import bodies_of, constant_of

Array = NDArray[Any]

BINS = 24
# What is looked at of a weight: all of it costs 0.3 s for 100 MB, and a histogram of a sample
# has the same form.
_SAMPLED = 1 << 16
# Beyond this only a sample is looked at for the ends as well: language models have gigabytes.
_WHOLE = 1 << 22
# Up to so many values are shown one by one.
_SHOWN_VALUES = 8
_MOST_TEXT = 200
# A name of a file that anybody may have written; the page shows no more of it.
MOST_NAME = 400


@dataclass
class Tensor:
    """One tensor. `kind`: `input`, `output`, `weight`, `value`. `made_by` is a node's number."""

    name: str
    kind: str
    type: str
    shape: list[int | str | None] | None
    bytes: int | None = None
    made_by: int | None = None
    weight: dict[str, object] | None = None


@dataclass
class Node:
    """One node. `inputs` and `outputs` are numbers of tensors, None where an input is left out."""

    name: str
    op_type: str
    domain: str
    inputs: list[int | None]
    outputs: list[int]
    attributes: dict[str, object] = field(default_factory=dict)
    operations: int = 0
    weight_bytes: int = 0
    activation_bytes: int = 0
    exact: bool = True


@dataclass
class Graph:
    """What the map shows, in the order of computing."""

    nodes: list[Node]
    tensors: list[Tensor]
    inputs: list[int]
    outputs: list[int]

    def readers(self) -> dict[int, list[int]]:
        """Return the nodes that read each tensor."""
        found: dict[int, list[int]] = {}
        for number, node in enumerate(self.nodes):
            for tensor in node.inputs:
                if tensor is not None:
                    found.setdefault(tensor, []).append(number)
        return found

    def as_json(self) -> dict[str, object]:
        """Return the rows, with short keys: there are thousands of them."""
        return {
            "nodes": [_node_row(node) for node in self.nodes],
            "tensors": [_tensor_row(tensor) for tensor in self.tensors],
            "inputs": self.inputs,
            "outputs": self.outputs,
        }


def graph_of(model: ir.Model, *, with_weights: bool = True) -> Graph:
    """Return the rows of a model's main graph; constants are tensors, not nodes."""
    rows = _Rows(with_weights)
    for value in model.graph.inputs:
        if not value.is_initializer():
            rows.number(value, "input")
    for node in model.graph:
        if constant_of(node.outputs[0]) is None:
            rows.add(node)
    outputs = [rows.number(value, "output") for value in model.graph.outputs]
    inputs = [n for n, tensor in enumerate(rows.tensors) if tensor.kind == "input"]
    return Graph(rows.nodes, rows.tensors, inputs, outputs)


class _Rows:
    """Rows under construction: each value gets a number when it is first met."""

    def __init__(self, with_weights: bool) -> None:
        self.nodes: list[Node] = []
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}
        self._with_weights = with_weights

    def number(self, value: ir.Value, kind: str) -> int:
        found = self._numbers.get(id(value))
        if found is not None:
            if kind == "output" and self.tensors[found].kind == "value":
                self.tensors[found].kind = "output"
            return found
        self._numbers[id(value)] = len(self.tensors)
        constant = constant_of(value)
        row = Tensor(
            shorter(value.name or ""),
            kind if constant is None else "weight",
            "" if value.dtype is None else value.dtype.name.lower(),
            None if value.shape is None else [_size(size) for size in value.shape],
        )
        if constant is not None:
            row.type = constant.dtype.name.lower()
            row.shape = [_size(size) for size in constant.shape]
            row.bytes = constant.nbytes
            row.weight = weight_facts(constant) if self._with_weights else {}
        elif value.dtype is not None and row.shape is not None:
            row.bytes = _bytes(value.dtype, row.shape)
        self.tensors.append(row)
        return len(self.tensors) - 1

    def add(self, node: ir.Node) -> None:
        cost = node_cost(node)
        inputs = [None if value is None else self.number(value, "value") for value in node.inputs]
        outputs = [self.number(value, "value") for value in node.outputs if value.name]
        number = len(self.nodes)
        for tensor in outputs:
            self.tensors[tensor].made_by = number
        self.nodes.append(
            Node(
                shorter(node.name or ""), node.op_type, node.domain, inputs, outputs,
                attributes_of(node), cost.operations, cost.weight_bytes, cost.activation_bytes,
                cost.exact,
            )
        )  # fmt: skip


def shorter(name: str) -> str:
    """Return a name without its middle, where it is longer than anybody reads."""
    if len(name) <= MOST_NAME:
        return name
    half = MOST_NAME // 2
    return f"{name[:half]}… {len(name) - 2 * half:,} characters …{name[-half:]}"


def attributes_of(node: ir.Node) -> dict[str, object]:
    """Return what is written at a node, graphs as what they hold."""
    found: dict[str, object] = {}
    for name, attribute in node.attributes.items():
        if attribute.is_ref():
            found[shorter(name)] = "of the function"
            continue
        value = attribute.value
        if attribute.type == ir.AttributeType.TENSOR:
            value = f"tensor {list(value.shape)} of {value.dtype.name.lower()}"
        elif attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            value = ", ".join(f"{len(body)} nodes" for body in bodies_of(node))
        found[shorter(name)] = _plain(value)
    return found


def _plain(value: object) -> object:
    """Return a number, a text, or a short list as JSON has it, anything else as text."""
    if isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return float(np.float32(value)) if np.isfinite(value) else str(value)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, Sequence) and not isinstance(value, str):
        words = [_plain(item) for item in value[:64]]
        return [*words, f"… {len(value) - 64} more"] if len(value) > 64 else words
    text = str(value)
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"


def _size(size: object) -> int | str | None:
    if isinstance(size, int):
        return size
    name = getattr(size, "value", None)
    return shorter(str(name)) if name is not None else None


def _bytes(kind: ir.DataType, shape: Sequence[int | str | None]) -> int | None:
    if kind == ir.DataType.STRING or not all(isinstance(size, int) for size in shape):
        return None
    elements = 1
    for size in shape:
        elements *= size if isinstance(size, int) else 1
    return (elements * kind.bitwidth + 7) // 8


def weight_facts(tensor: ir.TensorProtocol) -> dict[str, object]:
    """Return the values of a small tensor, the ends and a histogram of a large one."""
    if tensor.dtype == ir.DataType.STRING or not tensor.size:
        return {}
    array = _sample(tensor.numpy()) if tensor.size > _WHOLE else tensor.numpy().reshape(-1)
    if array.dtype.kind == "b" or tensor.size <= _SHOWN_VALUES:
        return {"values": [_plain(float(x) if array.dtype.kind not in "bui" else int(x))
                           for x in array[:_SHOWN_VALUES].tolist()]}  # fmt: skip
    if array.dtype.kind == "c":
        return {}
    numbers = _as_floats(_sample(array))
    finite = numbers[np.isfinite(numbers)]
    if not finite.size:
        return {"not_finite": int(numbers.size)}
    whole = _as_floats(array) if array.size <= _SAMPLED else array
    low, high = _ends(whole)
    counts = _histogram(finite, low, high)
    facts: dict[str, object] = {
        "low": _six(low), "high": _six(high), "counts": [int(n) for n in counts],
        "zeros": float(np.mean(numbers == 0)),
    }  # fmt: skip
    if finite.size < numbers.size:
        facts["not_finite"] = int(numbers.size - finite.size)
    if tensor.size > _WHOLE:
        facts["sampled"] = int(array.size)
    return facts


def _histogram(numbers: Array, low: float, high: float) -> Array:
    """Return how many numbers lie in each of `BINS` equal bins: numpy's takes five times as long.

    Where all are one number it lies in the middle.
    """
    if low >= high:
        return np.bincount([BINS // 2] * numbers.size, minlength=BINS)
    bins = np.clip((numbers.astype(np.float64) - low) * (BINS / (high - low)), 0, BINS - 1)
    return np.bincount(bins.astype(np.int64), minlength=BINS)


def _sample(array: Array) -> Array:
    flat = array.reshape(-1)
    return flat[:: max(1, flat.size // _SAMPLED)]


def _as_floats(array: Array) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _ends(array: Array) -> tuple[float, float]:
    """Return the least and the largest finite value."""
    with np.errstate(all="ignore"):
        low, high = float(array.min()), float(array.max())
    if not (np.isfinite(low) and np.isfinite(high)):
        finite = array[np.isfinite(array)]
        low, high = float(finite.min()), float(finite.max())
    return low, high


def _six(value: float) -> float:
    """Return a number with as many digits as people read."""
    return float(f"{value:.6g}")


def _node_row(node: Node) -> dict[str, object]:
    row: dict[str, object] = {
        "n": node.name, "o": node.op_type, "i": node.inputs, "u": node.outputs,
    }  # fmt: skip
    rest: Mapping[str, object] = {
        "d": node.domain, "a": node.attributes, "g": node.operations, "w": node.weight_bytes,
        "b": node.activation_bytes, "x": int(not node.exact),
    }  # fmt: skip
    return row | {key: value for key, value in rest.items() if value}


def _tensor_row(tensor: Tensor) -> dict[str, object]:
    row: dict[str, object] = {"n": tensor.name, "t": tensor.type, "s": tensor.shape}
    if tensor.kind != "value":
        row["k"] = tensor.kind
    if tensor.bytes is not None:
        row["b"] = tensor.bytes
    if tensor.weight:
        row["w"] = tensor.weight
    return row
