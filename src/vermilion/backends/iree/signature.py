"""What a program takes and gives, as it lies beside it: `part.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from vermilion.backends.iree.parameters import Parameter
from vermilion.backends.iree.size_rules import SizeRules, read_size_rules
from vermilion.errors import ArtifactError, UnsupportedError
from vermilion.ir.opset import required_inputs
from vermilion.process.arrays import TensorFile

PART_FILE = "part.json"


@dataclass(frozen=True)
class Tensor:
    """An input or output; a size is None where it is known only when the program runs."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def fits(self, shape: Sequence[int]) -> bool:
        """Say whether a tensor of that shape is one of these."""
        return len(shape) == len(self.shape) and all(
            mine is None or mine == its for mine, its in zip(self.shape, shape, strict=True)
        )


@dataclass(frozen=True)
class Signature:
    """The tensors of a program in order, its weights, and the sizes that it is right at."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    parameters: tuple[Parameter, ...] = ()
    sizes: SizeRules | None = None

    @property
    def is_open(self) -> bool:
        """Whether the program takes several sizes."""
        return any(None in tensor.shape for tensor in (*self.inputs, *self.outputs))

    def files(self, kind: str) -> tuple[TensorFile, ...]:
        """Return a file for each tensor of fixed sizes; `kind` is `input` or `output`.

        Names of files are ours, so that a bundle cannot name a place.
        """
        tensors = self.inputs if kind == "input" else self.outputs
        return tuple(
            TensorFile(t.name, f"{kind}{number}.raw", t.dtype, tuple(int(n or 0) for n in t.shape))
            for number, t in enumerate(tensors)
        )


def signature_of(
    model: ir.Model, parameters: tuple[Parameter, ...], sizes: SizeRules | None = None
) -> Signature:
    """Return what a model takes and gives. Raises: UnsupportedError for what no array holds."""
    return Signature(
        tuple(_described("input", value) for value in required_inputs(model)),
        tuple(_described("output", value) for value in model.graph.outputs),
        parameters,
        sizes,
    )


def write_signature(signature: Signature, place: Path) -> None:
    """Write it."""
    data = {
        "inputs": [_row("input", n, t) for n, t in enumerate(signature.inputs)],
        "outputs": [_row("output", n, t) for n, t in enumerate(signature.outputs)],
        "weights": [{"key": p.key, "of": p.of} for p in signature.parameters],
        "sizes": None if signature.sizes is None else signature.sizes.as_json(),
    }
    place.write_text(json.dumps(data), encoding="utf-8")


def read_signature(data: bytes) -> Signature:
    """Read it, and believe nothing of it unseen. Raises: ArtifactError."""
    try:
        read = json.loads(data)
        inputs = tuple(map(_tensor, read["inputs"]))
        sizes = read.get("sizes")
        ranks = [len(tensor.shape) for tensor in inputs]
        return Signature(
            inputs,
            tuple(map(_tensor, read["outputs"])),
            tuple(Parameter(str(r["key"]), str(r["of"])) for r in read.get("weights", ())),
            None if sizes is None else read_size_rules(sizes, ranks),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"the compiled part's {PART_FILE} is not what it should be: {error}",
            hint="compile the model again",
        ) from error


def _described(kind: str, value: ir.Value) -> Tensor:
    if value.shape is None or value.dtype is None or value.dtype.numpy().kind not in "fiub":
        raise UnsupportedError(
            f"the {kind} `{value.name}` has no known rank or no plain type",
            hint="bind the model's dimensions with `--dim`",
        )
    shape = tuple(n if isinstance(n, int) and n >= 0 else None for n in value.shape)
    return Tensor(value.name or "", value.dtype.numpy().str, shape)


def _row(kind: str, number: int, tensor: Tensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "file": f"{kind}{number}.raw",
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
    }


def _tensor(row: Mapping[str, Any]) -> Tensor:
    dtype = str(row["dtype"])
    if np.dtype(dtype).kind not in "fiub":
        raise ValueError(f"`{dtype}` is no plain type")
    shape = tuple(None if size is None else int(str(size)) for size in row["shape"])
    if any(size is not None and size < 0 for size in shape):
        raise ValueError(f"{list(shape)} is no shape")
    return Tensor(str(row["name"]), dtype, shape)
