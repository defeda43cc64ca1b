"""A graph of `torch.compile` → an ONNX graph, floats of 16 bits as float32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import UnsupportedError
from vermilion.export.convert import (
    LAST_TORCHSCRIPT_OPSET,
    TORCH_EXPORT,
    TORCHSCRIPT,
    Job,
    convert_by,
)

if TYPE_CHECKING:
    import torch

# The first takes a tenth of the other's time (0.2 and 1.9 s for six convolutions, PyTorch 2.13).
_FAST, _SLOW = (TORCHSCRIPT, LAST_TORCHSCRIPT_OPSET), (TORCH_EXPORT, 18)
Attempts = tuple[tuple[str, int], ...]
EXPORTERS: tuple[Attempts, ...] = ((_FAST, _SLOW), (_SLOW,))
"""Exporters with their opsets: of the first row the first that can; then those of the second."""

OPEN_EXPORTERS: tuple[Attempts, ...] = ((_FAST,), (_SLOW,))
"""Those for graphs with open sizes. The first may make numbers of them: another size shows it."""

# What PyTorch puts in the place of operators that could be exported, and how it is told not to.
_HINTS = {
    "_transformer_encoder_layer_fwd": (
        "call `torch.backends.mha.set_fastpath_enabled(False)` before the model is called"
    ),
}

# Attributes that name a data type.
_TYPE_ATTRIBUTES = frozenset({"to", "dtype"})


def to_onnx(
    module: torch.fx.GraphModule,
    tensors: Sequence[torch.Tensor],
    names: Sequence[str],
    outputs: int,
    folder: Path,
    exporters: Attempts = EXPORTERS[0],
    open_axes: Sequence[Mapping[int, str]] = (),
) -> ir.Model:
    """Export a graph at the sizes of these tensors; outputs are called `output_0` and so on.

    `open_axes` names the dimensions of each tensor that stay open. Weights may stay in files below
    `folder`, which must outlive the result.

    Raises: UnsupportedError with what PyTorch's exporters said.
    """
    import torch

    with torch.inference_mode(False), torch.no_grad():
        # Not those of the caller: they may have been made where nothing can be traced.
        copies = tuple(tensor.detach().clone() for tensor in tensors)
        called = tuple(f"output_{number}" for number in range(outputs))
        job = Job(
            module, copies, tuple(names), called, LAST_TORCHSCRIPT_OPSET, tuple(open_axes)
        )  # fmt: skip
        try:
            converted = convert_by(exporters, job, folder)
        except UnsupportedError as error:
            raise UnsupportedError(
                error.message, where=error.where, hint=hint_for(error.message)
            ) from error
        return widened(converted.model)


def hint_for(message: str) -> str:
    """Return what helps where PyTorch's exporters do not know an operator."""
    found = [hint for operator, hint in _HINTS.items() if operator in message]
    return found[0] if found else "rewrite the operation that is named above"


def widened(model: ir.Model) -> ir.Model:
    """Return the model, changed in place so that its bfloat16 tensors are float32.

    Before → after: `y: bfloat16 = MatMul(x: bfloat16, W: bfloat16)` → the same in float, which
    `precision="bf16"` computes in bfloat16 where that is faster.
    """
    graphs = [model.graph, *(function.graph for function in model.functions.values())]
    for graph in graphs:
        for value in graph.inputs:
            _widen(value)
        for value in graph.initializers.values():
            _widen(value)
        for node in ir.traversal.RecursiveGraphIterator(graph):
            for value in node.outputs:
                _widen(value)
            for name, attribute in list(node.attributes.items()):
                if (wide := _widened_attribute(attribute)) is not None:
                    node.attributes[name] = wide
    return model


def _widen(value: ir.Value) -> None:
    if value.dtype == ir.DataType.BFLOAT16:
        value.dtype = ir.DataType.FLOAT
    tensor = value.const_value
    if tensor is not None and tensor.dtype == ir.DataType.BFLOAT16:
        value.const_value = ir.tensor(_floats(tensor), name=value.name)


def _widened_attribute(attribute: ir.Attr) -> ir.Attr | None:
    """Return the attribute in float32, None where it stays."""
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        if tensor.dtype == ir.DataType.BFLOAT16:
            return ir.AttrTensor(attribute.name, ir.tensor(_floats(tensor)))
    names_type = attribute.type == ir.AttributeType.INT and attribute.name in _TYPE_ATTRIBUTES
    if names_type and attribute.as_int() == ir.DataType.BFLOAT16:
        return ir.AttrInt64(attribute.name, int(ir.DataType.FLOAT))
    return None


def _floats(tensor: ir.TensorProtocol) -> NDArray[np.float32]:
    numbers: NDArray[Any] = tensor.numpy()
    wide: NDArray[np.float32] = numbers.view(ml_dtypes.bfloat16).astype(np.float32)
    return wide
