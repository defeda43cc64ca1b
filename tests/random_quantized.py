"""Random quantized graphs whose scales are powers of two.

Every number in such a graph is exact in float32 (sums are short), so whatever the order of
operations, and whatever is fused, the answer is one: ONNX Runtime's, to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from quantized_graphs import F32, Graph

Array = NDArray[Any]
Tensor = tuple[str, int, int]  # name, channels, height and width


class RandomGraph:
    """A graph grown node by node from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.graph = Graph()
        self.inputs: dict[str, Array] = {}
        self.outputs: dict[str, Any] = {}
        self.kind: Any = self._kind()
        self.tensors: list[Tensor] = [self._input()]
        grow: list[Callable[[Tensor], Tensor | None]] = [
            self._conv, self._conv, self._conv, self._sum, self._sum, self._product, self._shifted,
            self._scaled, self._cut, self._pool, self._joined, self._moved, self._sliced,
            self._split, self._resized, self._mean,
        ]  # fmt: skip
        for _ in range(int(self.random.integers(2, 14))):
            at = int(self.random.integers(len(self.tensors))) if self._maybe(0.5) else -1
            step = grow[int(self.random.integers(len(grow)))]
            made = step(self.tensors[at])
            if made is not None:
                self.tensors.append(made)
        for at in {len(self.tensors) - 1, int(self.random.integers(len(self.tensors)))}:
            self.outputs[self.graph.op("Identity", self.tensors[at][0])] = TensorProto.FLOAT

    def _maybe(self, chance: float) -> bool:
        return bool(self.random.random() < chance)

    def _kind(self) -> Any:
        return (np.uint8, np.int8)[int(self.random.integers(2))]

    def _scale(self, low: int = -6, high: int = -2) -> float:
        return float(2.0 ** int(self.random.integers(low, high)))

    def _zero(self, kind: Any) -> Array:
        low, high = (100, 156) if kind is np.uint8 else (-20, 20)
        return np.array(self.random.integers(low, high), kind)

    def _input(self) -> Tensor:
        channels, kind = int(self.random.choice([3, 4, 8, 16, 17])), self._kind()
        shape = (1, channels, 8, 8)
        if self._maybe(0.5):
            self.inputs["x"] = (self.random.integers(-300, 300, shape) / 32).astype(F32)
            return self._quantized("x"), channels, 8
        info = np.iinfo(kind)
        self.inputs["x"] = self.random.integers(info.min, info.max + 1, shape).astype(kind)
        return self.graph.dequantize("x", self._scale(), self._zero(kind)), channels, 8

    def _quantized(self, value: str, chance: float = 1.0) -> str:
        if not self._maybe(chance):
            return value
        kind = self.kind if self._maybe(0.8) else self._kind()
        scale, zero = self._scale(), self._zero(kind)
        whole = self.graph.quantize(value, scale, zero)
        if self._maybe(0.08):
            dtype = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
            self.outputs[self.graph.op("Identity", whole)] = dtype
        return self.graph.dequantize(whole, scale, zero)

    def _weight(self, *values: float, dtype: Any = F32) -> str:
        return self.graph.weight(np.array(values if len(values) > 1 else values[0], dtype))

    def _conv(self, tensor: Tensor) -> Tensor | None:
        value, channels, size = tensor
        random, graph = self.random, self.graph
        kernel, stride = int(random.choice([1, 3])), int(random.choice([1, 1, 2]))
        outputs, group = int(random.choice([3, 5, 8, 16, 20])), 1
        form = int(random.integers(4))
        if form == 0:
            outputs = group = channels
        elif form == 1 and channels % 4 == 0:
            outputs, group = 8, 4
        shape = (outputs, channels // group, kernel, kernel)
        weights = random.integers(-20, 21, shape).astype(np.int8)
        each = np.array([self._scale(-8, -5) for _ in range(outputs)], F32)
        inputs = [value, graph.dequantized(weights, each if self._maybe(0.5) else each[0])]
        bias = int(random.integers(3))
        if bias == 1:
            inputs.append(graph.weight((random.integers(-64, 65, outputs) / 16).astype(F32)))
        elif bias == 2:
            small = random.integers(-100, 101, outputs).astype(np.int8)
            inputs.append(graph.dequantized(small, 2.0**-6))
        y = graph.op(
            "Conv", *inputs, strides=[stride] * 2, pads=[kernel // 2] * 4, group=group
        )  # fmt: skip
        y = graph.op("Relu", y) if self._maybe(0.3) else y
        return self._quantized(y, 0.9), outputs, (size - 1) // stride + 1

    def _like(self, tensor: Tensor) -> str:
        alike = [name for name, *sizes in self.tensors if tuple(sizes) == tensor[1:]]
        return alike[int(self.random.integers(len(alike)))]

    def _sum(self, tensor: Tensor) -> Tensor:
        kind = ("Add", "Add", "Sub")[int(self.random.integers(3))]
        y = self.graph.op(kind, tensor[0], self._like(tensor))
        y = self.graph.op("Relu", y) if self._maybe(0.3) else y
        return self._quantized(y, 0.8), *tensor[1:]

    def _product(self, tensor: Tensor) -> Tensor:
        y = self.graph.op("Mul", tensor[0], self._like(tensor))
        return self._quantized(y), *tensor[1:]

    def _shifted(self, tensor: Tensor) -> Tensor:
        step = self._weight(float(self.random.integers(-8, 8)) / 4)
        return self._quantized(self.graph.op("Add", tensor[0], step)), *tensor[1:]

    def _scaled(self, tensor: Tensor) -> Tensor:
        kind = ("Mul", "Div")[int(self.random.integers(2))]
        factor = self._weight(2.0 ** int(self.random.integers(-2, 2)))
        return self._quantized(self.graph.op(kind, tensor[0], factor)), *tensor[1:]

    def _cut(self, tensor: Tensor) -> Tensor:
        if self._maybe(0.5):
            y = self.graph.op("Relu", tensor[0])
        else:
            y = self.graph.op("Clip", tensor[0], self._weight(0.0), self._weight(2.0))
        return self._quantized(y, 0.6), *tensor[1:]

    def _pool(self, tensor: Tensor) -> Tensor | None:
        value, channels, size = tensor
        if size < 2:
            return None
        if self._maybe(0.3):
            y = self.graph.op("AveragePool", value, kernel_shape=[2, 2], strides=[2, 2])
            return self._quantized(y), channels, size // 2
        how = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
        y = self.graph.op("MaxPool", value, **how)
        return self._quantized(y, 0.5), channels, (size - 1) // 2 + 1

    def _joined(self, tensor: Tensor) -> Tensor:
        alike = [other for other in self.tensors if other[2] == tensor[2]]
        other = alike[int(self.random.integers(len(alike)))]
        y = self.graph.op("Concat", tensor[0], other[0], axis=1)
        return self._quantized(y, 0.7), tensor[1] + other[1], tensor[2]

    def _moved(self, tensor: Tensor) -> Tensor:
        y = self.graph.op("Transpose", tensor[0], perm=[0, 1, 3, 2])
        return self._quantized(y, 0.5), *tensor[1:]

    def _sliced(self, tensor: Tensor) -> Tensor | None:
        value, channels, size = tensor
        if channels < 4:
            return None
        bounds = [self.graph.weight(np.array([at], np.int64)) for at in (1, channels - 1, 1)]
        return self._quantized(self.graph.op("Slice", value, *bounds), 0.5), channels - 2, size

    def _split(self, tensor: Tensor) -> Tensor | None:
        value, channels, size = tensor
        if channels % 2:
            return None
        halves = [f"{side}{len(self.graph.nodes)}" for side in ("left", "right")]
        node = helper.make_node("Split", [value], halves, name=f"n{halves[0]}", axis=1)
        self.graph.nodes.append(node)
        self.tensors.append((halves[0], channels // 2, size))
        return halves[1], channels // 2, size

    def _resized(self, tensor: Tensor) -> Tensor | None:
        value, channels, size = tensor
        if size > 8:
            return None
        scales = self._weight(1, 1, 2, 2)
        y = self.graph.op(
            "Resize", value, "", scales, mode="nearest", nearest_mode="floor",
            coordinate_transformation_mode="asymmetric",
        )  # fmt: skip
        return self._quantized(y, 0.5), channels, 2 * size

    def _mean(self, tensor: Tensor) -> Tensor | None:
        if tensor[2] & (tensor[2] - 1):
            return None
        return self._quantized(self.graph.op("GlobalAveragePool", tensor[0])), tensor[1], 1
