"""Small models as text: what `proof_models.py` and `proof_index_faults.py` are written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Text:
    """A graph's inputs, outputs and nodes; `weights` are drawn, `constants` are as given."""

    inputs: str
    outputs: str
    nodes: str
    weights: Mapping[str, Shape] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 17

    def model(self) -> ir.Model:
        """Return the model; weights keep the size of what they are multiplied by."""
        text = (
            f'<ir_version: 9, opset_import: ["" : {self.opset}]>'
            f"g ({self.inputs}) => ({self.outputs}) {{ {self.nodes} }}"
        )
        proto = onnx.parser.parse_model(text)
        random = np.random.default_rng(7)
        arrays: dict[str, Array] = {}
        for name, shape in self.weights.items():
            fan_in = max(1, int(np.prod(shape[1:])))
            arrays[name] = (random.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)
        arrays |= {name: np.asarray(value) for name, value in self.constants.items()}
        proto.graph.initializer.extend(
            onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()
        )
        return ir.from_proto(proto)


def floats(*values: float) -> Array:
    """Return float32 numbers."""
    return np.array(values, np.float32)


def whole(*values: int) -> Array:
    """Return int64 numbers."""
    return np.array(values, np.int64)


def scalar(value: float) -> Array:
    """Return a float32 scalar."""
    return np.array(value, np.float32)


def byte(value: int, kind: Any = np.uint8) -> Array:
    """Return an 8-bit scalar."""
    return np.array(value, kind)
