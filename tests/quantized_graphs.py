"""Quantized graphs for tests, run natively, and the reference in numpy that they are held to.

The reference follows the order of operations that `affine` states: int64 accumulators, then
float32 with every fused multiply-add rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from vermilion.backends.base import CompileOptions, Part
from vermilion.backends.native import NativeBackend
from vermilion.codegen.lower.rules import refusal
from vermilion.hardware.targets.find import find_target
from vermilion.ir.passes.pipeline import simplify

Array = NDArray[Any]
F32 = np.float32


# Running a graph ----------------------------------------------------------------------------


@dataclass
class Graph:
    """An ONNX graph while it is written."""

    is_wide: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def weight(self, array: Array, name: str = "") -> str:
        label = name or f"weight{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(array), label))
        return label

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        label = name or f"{kind}{len(self.nodes)}"
        node = helper.make_node(kind, list(inputs), [label], name=f"n{label}", **attributes)
        self.nodes.append(node)
        return label

    def quantize(self, x: str, scale: float, zero: Array, name: str = "") -> str:
        s, z = self.weight(np.array(scale, F32)), self.weight(zero)
        return self.op("QuantizeLinear", x, s, z, name=name)

    def dequantize(self, x: str, scale: float, zero: Array, name: str = "") -> str:
        s, z = self.weight(np.array(scale, F32)), self.weight(zero)
        return self.op("DequantizeLinear", x, s, z, name=name)

    def pair(self, x: str, scale: float, zero: Array) -> str:
        return self.dequantize(self.quantize(x, scale, zero), scale, zero)

    def dequantized(self, array: Array, scale: Array | float, axis: int = 0) -> str:
        """Add integer weights behind a DequantizeLinear."""
        scales = np.asarray(scale, F32)
        zero = self.weight(np.zeros(scales.shape, array.dtype))
        return self.op("DequantizeLinear", self.weight(array), self.weight(scales), zero, axis=axis)

    def model(self, inputs: Mapping[str, Array], outputs: Mapping[str, Any]) -> ir.Model:
        ins = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in inputs.items()
        ]
        outs = [helper.make_tensor_value_info(n, t, None) for n, t in outputs.items()]
        graph = helper.make_graph(self.nodes, "g", ins, outs, self.weights)
        # 16 bits came with version 21.
        version = [helper.make_opsetid("", 21 if self.is_wide else 17)]
        proto = helper.make_model(graph, opset_imports=version, ir_version=10)
        return simplify(ir.from_proto(proto)).model


def run_native(
    model: ir.Model, inputs: Mapping[str, Array], folder: Path, target: str, threads: int = 1
) -> dict[str, Array]:
    refused = [r.reason for node in model.graph if (r := refusal(node))]
    assert not refused
    backend, options = NativeBackend(), CompileOptions(threads=threads)
    place = find_target(target)
    program = backend.compile(Part("p", "cpu", "native", model, (), 0.0), place, options, folder)
    loaded = backend.load(program, _Files(folder), place, options)
    return loaded.run(inputs)


@dataclass
class _Files:
    folder: Path

    def read(self, name: str) -> memoryview:
        return memoryview((self.folder / name).read_bytes())


# The reference ------------------------------------------------------------------------------


def fma(a: Array, b: Array | float, c: Array | float) -> Array:
    """a·b + c rounded once: exact in float64 but for the sum, which is rounded to odd."""
    product = a.astype(np.float64) * np.asarray(b, F32).astype(np.float64)
    other = np.asarray(c, F32).astype(np.float64)
    total = product + other
    back = total - product
    error = (product - (total - back)) + (other - back)
    is_even = total.view(np.int64) % 2 == 0 if total.ndim else np.array(True)
    nudged = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where((error != 0) & is_even, nudged, total).astype(F32)


def requantized(value: Array, zero: int, storage: Any, bounds: tuple[float, float]) -> Array:
    """Clamp (the bounds count from the zero point), round half to even, add the zero point."""
    info = np.iinfo(storage)
    low, high = max(info.min - zero, bounds[0]), min(info.max - zero, bounds[1])
    clamped = np.minimum(np.maximum(value, F32(low)), F32(high))
    return (np.rint(clamped).astype(np.int64) + zero).astype(storage)


def conv(x: Array, w: Array, stride: int, pads: Sequence[int], group: int, dilation: int) -> Array:
    """Convolve integers in int64. Shapes: (N, C, H, W), (O, C ÷ group, h, w)."""
    n, _, h, wide = x.shape
    top, left, bottom, right = pads
    padded = np.pad(x.astype(np.int64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    outputs, inputs, taps_y, taps_x = w.shape
    rows = (h + top + bottom - (taps_y - 1) * dilation - 1) // stride + 1
    columns = (wide + left + right - (taps_x - 1) * dilation - 1) // stride + 1
    result = np.zeros((n, outputs, rows, columns), np.int64)
    each = outputs // group
    for g in range(group):
        part = padded[:, g * inputs : (g + 1) * inputs]
        for y in range(taps_y):
            for z in range(taps_x):
                window = part[:, :, y * dilation :, z * dilation :][:, :, ::stride, ::stride]
                kernel = w[g * each : (g + 1) * each, :, y, z].astype(np.int64)
                taken = window[:, :, :rows, :columns]
                result[:, g * each : (g + 1) * each] += np.einsum("nchw,oc->nohw", taken, kernel)
    return result


def over_channels(values: Array | float, rank: int) -> Array:
    array = np.asarray(values)
    return array if array.ndim == 0 else array.reshape(1, -1, *[1] * (rank - 2))
