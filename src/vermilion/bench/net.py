"""A graph under construction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

# The newest opset with LayerNormalization that every engine reads.
_OPSET = 17
_IR_VERSION = 8  # the one of ONNX 1.12, the first with opset 17


class Net:
    """Grows a graph node by node. Weights are drawn from one seed, in the order of the calls."""

    def __init__(self, name: str, seed: int) -> None:
        self._graph = ir.Graph([], [], nodes=[], opset_imports={"": _OPSET}, name=name)
        self._random = np.random.default_rng(seed)

    def input(
        self,
        name: str,
        shape: Sequence[int | str],
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:
        """Append an input of the graph."""
        value = ir.val(name, dtype=dtype, shape=ir.Shape(shape))
        self._graph.inputs.append(value)
        return value

    def normal(self, shape: Sequence[int], scale: float) -> NDArray[np.float32]:
        """Draw float32 numbers of mean 0 and the standard deviation `scale`."""
        return self._random.standard_normal(tuple(shape), dtype=np.float32) * np.float32(scale)

    def constant(self, name: str, array: NDArray[Any] | np.float32) -> ir.Value:
        """Append a weight."""
        tensor = ir.Tensor(np.asarray(array, order="C"), name=name)
        value = ir.val(name, const_value=tensor, dtype=tensor.dtype, shape=tensor.shape)
        self._graph.register_initializer(value)
        return value

    def op(self, op_type: str, *inputs: ir.Value, name: str, **attributes: Any) -> ir.Value:
        """Append a node; give its output."""
        node = ir.node(op_type, list(inputs), attributes, name=name)
        output = node.outputs[0]
        output.name = f"{name}_output"
        self._graph.append(node)
        return output

    def output(self, value: ir.Value, name: str, shape: Sequence[int | str]) -> None:
        """Make a float32 value an output of the graph."""
        value.name = name
        value.type = ir.TensorType(ir.DataType.FLOAT)
        value.shape = ir.Shape(shape)
        self._graph.outputs.append(value)

    def model(self) -> ir.Model:
        """Return the finished model."""
        return ir.Model(self._graph, ir_version=_IR_VERSION, producer_name="vermilion")
