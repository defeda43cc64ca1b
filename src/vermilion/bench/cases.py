"""What is to be measured: one model at one size, written out as every engine will read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.bench.engines import Precision
from vermilion.errors import OptionError, Refusal, UnsupportedError
from vermilion.ir.cost import model_cost
from vermilion.ir.literal.run import LiteralModel, open_literally
from vermilion.ir.numbers import number_format
from vermilion.ir.opset import required_inputs
from vermilion.ir.passes.bind_dimensions import (
    Dimensions,
    bind_dimensions,
    dimension_options,
    open_dimensions,
)
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.passes.rewrite import Notes
from vermilion.ir.samples import draw_accepted

Array = NDArray[Any]

_QUANTIZED = {"xint8", "a8w8", "a16w8", "int8"}

# Weights from this size on lie beside the model: a protobuf cannot hold more than 2 GB.
_EXTERNAL_BYTES = 1 << 30


@dataclass(frozen=True)
class Sizes:
    """How large one measurement is. None leaves a dimension as the model or `--dim` says."""

    batch: int | None
    sequence: int | None
    threads: int


@dataclass(frozen=True)
class Case:
    """One model, all of its dimensions known, on disk beside its inputs and right answers.

    `reference` is what a literal run of the model gives, as the proof's does.
    """

    label: str
    model_path: Path
    file_bytes: int
    inputs_path: Path
    input_names: tuple[str, ...]
    reference: Mapping[str, Array]
    precision: Precision
    batch: int | None
    sequence: int | None
    threads: int
    gops: float | None  # None where a shape stays unknown: the count would be too low


def default_precision(model: ir.Model) -> Precision:
    """Return the precision at which a model is meant to run as it stands."""
    return "int8" if number_format(model) in _QUANTIZED else "fp32"


def prepare_case(
    path: Path,
    model: ir.Model,
    sizes: Sizes,
    *,
    precision: Precision | None,
    dims: Dimensions,
    inputs: Mapping[str, Array],
    folder: Path,
) -> Case:
    """Bind the sizes, write the model and its inputs into `folder`, compute the right answers.

    Raises: OptionError where a dimension stays open, or the precision does not fit the model.
    """
    chosen = precision or default_precision(model)
    _check_precision(chosen, model, path)
    bound = bind_dimensions(model, _all_dimensions(model, sizes, dims, inputs))
    left = open_dimensions(bound)
    if left:
        raise OptionError(
            f"the model has dynamic dimensions: {', '.join(left)}",
            where=str(path),
            hint=f"give each a size, such as `{dimension_options(bound)}`",
        )
    literal = open_literally(bound)
    feeds, reference = _feeds(bound, _checked_names(inputs, bound), literal)
    batch, sequence = _leading_sizes(feeds)
    _check_batch(sizes.batch, batch, path)
    model_path, inputs_path = folder / "model.onnx", folder / "inputs.npz"
    _save(bound, model_path)
    np.savez(inputs_path, *feeds.values())  # by position: names need not be file names
    return Case(
        label=path.stem,
        model_path=model_path,
        file_bytes=sum(file.stat().st_size for file in folder.glob("model.onnx*")),
        inputs_path=inputs_path,
        input_names=tuple(feeds),
        reference=reference,
        precision=chosen,
        batch=batch,
        sequence=sequence,
        threads=sizes.threads,
        gops=_gops(bound),
    )


def _feeds(
    model: ir.Model, given: Mapping[str, Array], literal: LiteralModel
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return inputs that the model takes, the given ones among them, and the right answers."""
    found = draw_accepted(model, "ordinary", lambda drawn: literal.run({**drawn, **given}))
    if isinstance(found, Refusal):
        raise UnsupportedError(found.reason, hint=found.hint)
    sample, reference = found
    return {**sample.inputs, **given}, reference


def _check_precision(precision: Precision, model: ir.Model, path: Path) -> None:
    quantized = default_precision(model) == "int8"
    if precision == "int8" and not quantized:
        raise OptionError(
            "`--precision int8` needs a quantized model, and this one computes in floats",
            where=str(path),
            hint="quantize it first: `vermilion quantize MODEL --scheme xint8 …`",
        )
    if precision != "int8" and quantized:
        raise OptionError(
            f"`--precision {precision}` needs a model in floats, and this one is quantized",
            where=str(path),
            hint="leave `--precision` out, or write `--precision int8`",
        )


def _all_dimensions(
    model: ir.Model, sizes: Sizes, dims: Dimensions, inputs: Mapping[str, Array]
) -> Dimensions:
    """Join what was asked for by name, what the given inputs say, and the sizes of this run."""
    known: dict[str, int | Sequence[int]] = {}
    for value in required_inputs(model):
        name = value.name or ""
        if name in inputs and value.shape is not None and not value.shape.is_static():
            known[name] = tuple(inputs[name].shape)
    known.update(dims)
    for value in required_inputs(model):
        shape = list(value.shape.dims) if value.shape is not None else []
        _set_axis(known, value, shape, 0, sizes.batch)
        if len(shape) == 2 and value.dtype in (ir.DataType.INT64, ir.DataType.INT32):
            _set_axis(known, value, shape, 1, sizes.sequence)
    return known


def _set_axis(
    known: dict[str, int | Sequence[int]],
    value: ir.Value,
    shape: list[int | ir.SymbolicDim],
    axis: int,
    size: int | None,
) -> None:
    """Return an input's open axis a size: through its name, or in the shape that was given."""
    if size is None or axis >= len(shape) or isinstance(shape[axis], int):
        return
    name = value.name or ""
    given = known.get(name)
    if given is not None and not isinstance(given, int):
        changed = list(given)
        changed[axis] = size
        known[name] = tuple(changed)
        return
    dimension = shape[axis]
    symbol = dimension.value if isinstance(dimension, ir.SymbolicDim) else None
    if symbol is not None:
        known.setdefault(symbol, size)


def _leading_sizes(feeds: Mapping[str, Array]) -> tuple[int | None, int | None]:
    """Return the batch, and the sequence length of a model that reads token numbers."""
    ranked = [array for array in feeds.values() if array.ndim > 0]
    tokens = [array for array in ranked if array.ndim == 2 and array.dtype.kind == "i"]
    batch = ranked[0].shape[0] if ranked else None
    return batch, (tokens[0].shape[1] if tokens else None)


def _check_batch(wanted: int | None, found: int | None, path: Path) -> None:
    if wanted is not None and wanted != found:
        raise OptionError(
            f"the batch cannot be {wanted}: the model or `--dim` says {found}",
            where=str(path),
            hint="export the model with a dynamic batch dimension, and leave it out of `--dim`",
        )


def _checked_names(inputs: Mapping[str, Array], model: ir.Model) -> Mapping[str, Array]:
    known = [value.name or "" for value in required_inputs(model)]
    for name in inputs:
        if name not in known:
            raise OptionError(
                f"the model has no input `{name}`", hint=f"its inputs are {', '.join(known)}"
            )
    return inputs


def _save(model: ir.Model, path: Path) -> None:
    weights = [value.const_value for value in model.graph.initializers.values()]
    total_bytes = sum(tensor.nbytes for tensor in weights if tensor is not None)
    beside = f"{path.name}.data" if total_bytes >= _EXTERNAL_BYTES else None
    ir.save(model, path, external_data=beside)


def _gops(bound: ir.Model) -> float | None:
    inferred = bound.clone()
    infer_shapes(inferred, Notes())
    cost = model_cost(inferred)
    if not cost.exact:  # shapes that are computed in the graph are known once they are folded
        cost = model_cost(simplify(bound.clone()).model)
    return cost.gops if cost.exact and cost.operations else None
