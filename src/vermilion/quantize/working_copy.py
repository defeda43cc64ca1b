"""The copy that is quantized, and the samples that are kept to compare it."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir
from onnx_ir.passes import common

from vermilion.errors import ModelError
from vermilion.ir.execute import Array
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.opset_versions import raise_opset
from vermilion.ir.passes.rewrite import Notes
from vermilion.quantize.operators import QUANTIZED_OPERATORS
from vermilion.quantize.result import OUTPUT_SAMPLES

# A scale for each channel came with opset 13, and with it all else that is written here.
_OLDEST_OPSET = 13


def working_copy(model: ir.Model) -> ir.Model:
    """Return a copy whose constants are all initializers and whose names are all unique."""
    opset = model.opset_imports.get("", 0)
    found = next((n for n in model.graph.all_nodes() if n.op_type in QUANTIZED_OPERATORS), None)
    if found is not None:
        raise ModelError(
            "the model is quantized already",
            where=f"node `{found.name}`, operator `{found.op_type}`",
            hint="quantize the float model it was made from",
        )
    work = model.clone()
    if opset < _OLDEST_OPSET:
        notes = Notes()
        raise_opset(work, notes)
        if work.graph.opset_imports.get("", 0) < _OLDEST_OPSET:
            reasons = "; ".join(refusal.reason for _, refusal in notes.refusals)
            raise ModelError(
                f"opset {opset} cannot hold quantized tensors, and raising it fails: {reasons}",
                hint=f"export the model with opset 17 ({_OLDEST_OPSET} is the oldest possible)",
            )
    common.RemoveInitializersFromInputsPass()(work)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(work)
    common.NameFixPass()(work)
    _read_weights_once(work)
    if any(value.shape is None for node in work.graph for value in node.outputs):
        infer_shapes(work, Notes())
    return work


def _read_weights_once(work: ir.Model) -> None:
    """Hold the weights that lie in a message as arrays.

    A message copies a tensor each time that its numbers are asked for, and here that is five times.
    """
    for value in work.graph.initializers.values():
        tensor = value.const_value
        if isinstance(tensor, ir.TensorProtoTensor) and tensor.dtype == ir.DataType.FLOAT:
            value.const_value = ir.Tensor(tensor.numpy(), name=value.name)


def keeping(
    samples: Iterator[dict[str, Array]], kept: list[dict[str, Array]]
) -> Iterator[dict[str, Array]]:
    """Pass samples on and keep the first few for the report."""
    for sample in samples:
        if len(kept) < OUTPUT_SAMPLES:
            kept.append(sample)
        yield sample
