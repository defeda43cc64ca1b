"""A part of a model on its way into a child: its tensors' files, its model's file, its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from vermilion.backends.base import Array, Part, Tensors
from vermilion.backends.process.check import find_faults
from vermilion.backends.process.contract import MODEL_FILE
from vermilion.errors import DeviceError, Refusal, UnsupportedError
from vermilion.ir.literal.run import open_literally, run_literally
from vermilion.ir.opset import static_shape
from vermilion.ir.samples import draw_accepted
from vermilion.process.arrays import TensorFile
from vermilion.proof.bounds import FormatName
from vermilion.proof.judge import Question


def tensor_files(kind: str, values: Sequence[ir.Value]) -> tuple[TensorFile, ...]:
    """Return a file for each tensor. `kind`, `input` or `output`, is in their names.

    Raises: UnsupportedError for a tensor without a fixed shape or a plain type.
    """
    found = []
    for number, value in enumerate(values):
        shape = static_shape(value)
        if shape is None or value.dtype is None or value.dtype.numpy().kind not in "fiub":
            raise UnsupportedError(
                f"the {kind} `{value.name}` has no fixed shape or no plain type",
                hint="bind the model's dimensions with `--dim`",
            )
        dtype = value.dtype.numpy().str
        found.append(TensorFile(value.name or "", f"{kind}{number}.raw", dtype, shape))
    return tuple(found)


def write_model(serialized: bytes, weights: Mapping[str, Array], folder: Path) -> None:
    """Write a whole model: the weights that `split_weights` took out, where it says they lie."""
    (folder / MODEL_FILE).write_bytes(serialized)
    proto = onnx.ModelProto.FromString(serialized)
    for tensor in proto.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}
        path = folder / Path(place["location"]).name
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(int(place.get("offset", "0")))
            file.write(weights[tensor.name].tobytes())


def accepted_inputs(part: Part) -> Tensors:
    """Return a sample that the part's literal run takes.

    Raises: DeviceError where none is found: what the device computes could not be checked.
    """
    drawn = draw_accepted(part.model, "ordinary", open_literally(part.model).run)
    if isinstance(drawn, Refusal):
        raise DeviceError(
            f"no sample was found to check its numbers with: {drawn.reason}",
            where=part.name,
            hint="the part runs on the CPU instead",
        )
    return drawn[0].inputs


def check_numbers(
    part: Part, inputs: Tensors, found: Tensors, form: FormatName, model: ir.Model | None = None
) -> None:
    """Hold what the child computed against the literal run of the part.

    `form` is the number format that the provider computes in; `model` the part with the roundings
    of that format written into it, the part's own model by default.

    Raises: DeviceError.
    """
    literal = part.model if model is None else model
    reference = run_literally(literal, inputs).outputs
    leading = {len(array) for array in inputs.values() if array.ndim > 1}
    batch = leading.pop() if len(leading) == 1 else None
    faults = find_faults(Question(literal, inputs, reference, found, form), batch=batch)
    if faults:
        raise DeviceError(
            "; ".join(f"output `{fault.output}`: {fault.words}" for fault in faults[:3]),
            where=part.name,
            hint="the provider computes something else than the CPU; report it to AMD with the"
            " smallest model that shows it (`compile --bisect`)",
        )
