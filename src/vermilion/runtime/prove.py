"""The proof that compiling changed nothing: every output against the model as it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

from vermilion.backends import backend
from vermilion.backends.base import Array, CompileOptions, Tensors
from vermilion.errors import UnsupportedError
from vermilion.hardware.targets.target import Target
from vermilion.ir.execute import open_session, run_session, session_from_bytes, split_weights
from vermilion.ir.inputs import sample_inputs
from vermilion.ir.measure import Agreement, agreement
from vermilion.progress import Progress
from vermilion.runtime.write import CompiledPart

# The floor under which a compiled model is not handed out. The arithmetic is the reference's own,
# so anything near it is a wrong graph, not a rounding.
MIN_COSINE = 0.99
# Outputs of a saturated sigmoid or softmax are all rounding: 1e-7 beside the 1.0 it is computed
# from. Errors of that size say nothing about the graph.
NOTHING = 1e-6
# Rounding every tensor on the way costs more than rounding weights and inputs: 4 times as much on
# a page of text, 10 on noise (PP-OCR detection, largest errors); a wrong graph is far beyond.
BF16_FACTOR = 16.0
# A modelled device and its numbers in standard operators differ in the order of additions only: a
# few values fall on the other side of a step, which a chain of layers amplifies.
SAME_NUMBERS_FACTOR = 4.0
_ROUNDED = ("bf16", "bfp16")


@dataclass(frozen=True)
class _StagedFiles:
    """A part's files before they are in a bundle."""

    compiled: CompiledPart

    def read(self, name: str) -> memoryview:
        return memoryview((self.compiled.folder / name).read_bytes())

    def weights(self) -> Mapping[str, Array]:
        return split_weights(self.compiled.part.model)[1]


class WrongNumbersError(UnsupportedError):
    """What was compiled does not compute what the model does."""


def prove(
    original: ir.Model,
    parts: Sequence[CompiledPart],
    target: Target,
    progress: Progress,
    precision: str = "auto",
) -> tuple[dict[str, object], ...]:
    """Run `original` and the compiled parts on the same inputs; compare every output.

    Returns: a row an output, the keys of `verification.outputs`.
    Raises: WrongNumbersError where an output is not what the model as it came gives.
    """
    progress("prove", 0, 2)
    inputs = sample_inputs(original)
    expected = run_session(open_session(original, quiet=True), inputs)
    progress("prove", 1, 2)
    found = _run_parts(parts, target, inputs)
    progress("prove", 2, 2)
    # An output that no part makes is an input or a weight: there is nothing to prove.
    rows = [
        agreement(name, _tensor(expected[name]), _tensor(found[name]))
        for name in expected
        if name in found
    ]
    modelled = _numbers(parts)
    spread: Mapping[str, float] = {}
    if any(map(_is_far, rows)):
        other, factor = (
            (_run_literally(parts, target, inputs), SAME_NUMBERS_FACTOR)
            if modelled in _ROUNDED
            else _run_reference(original, inputs, precision)
        )
        spread = _spread(expected, other, factor)
    for row in rows:
        wrong = _is_far(row) and row.max_abs_error > spread.get(row.name, 0.0)
        if row.has_nan or wrong:
            raise WrongNumbersError(
                f"the compiled model gives another `{row.name}` than the model as it came: "
                f"cosine {row.cosine:.6f}, largest error {row.max_abs_error:.3g}",
                where=target.name,
                hint="this is a fault of the compiler; `--target cpu` may do, and please report it",
            )
    return tuple(
        row.as_json()
        | ({"modelled_in": modelled} if modelled else {})
        | ({"reference_spread": spread[row.name]} if row.name in spread else {})
        for row in rows
    )


def _tensor(output: Array | Sequence[Array]) -> Array:
    """Give an output as one tensor: of a sequence, all numbers in order."""
    if isinstance(output, np.ndarray):
        return output
    return np.concatenate([np.ravel(item) for item in output]) if len(output) else np.zeros(0)


def _numbers(parts: Sequence[CompiledPart]) -> str:
    """Give the number format in which a device is modelled, empty where none is."""
    found = {part.program.details.get("numbers", "") for part in parts}
    return next((name for name in ("bfp16", "bf16", "fp16", "integers") if name in found), "")


def _is_far(row: Agreement) -> bool:
    return row.cosine < MIN_COSINE and row.max_abs_error > NOTHING


def _spread(
    expected: Mapping[str, Array], other: Mapping[str, Array] | None, factor: float
) -> dict[str, float]:
    """Give how far another reference is from the model as it came, by output.

    What is no further from the reference than that is no fault of ours.
    """
    return {
        name: factor * agreement(name, _tensor(array), _tensor(other[name])).max_abs_error
        for name, array in expected.items()
        if other is not None and name in other
    }


def _run_reference(
    original: ir.Model, inputs: Tensors, precision: str
) -> tuple[dict[str, Array] | None, float]:
    """Run the reference where it is far from itself, and say how much further we may be.

    - A chain of quantized layers amplifies a rounding to whole steps: ONNX Runtime's own optimized
      and literal ways disagree (a text detector in int8: cosine 0.94 on noise).
    - In bfloat16 an output near zero is all rounding. Weights and inputs alone, rounded once, show
      how much; every tensor between is rounded as well, hence the factor.
    """
    if precision == "bf16":
        serialized, weights = split_weights(original, lent_bytes=1)
        session = session_from_bytes(
            serialized, {name: _rounded(array) for name, array in weights.items()}, quiet=True
        )
        rounded = {name: _rounded(array) for name, array in inputs.items()}
        return run_session(session, rounded), BF16_FACTOR
    if any(node.op_type == "QuantizeLinear" for node in original.graph.all_nodes()):
        return run_session(open_session(original, quiet=True, optimize=False), inputs), 1.0
    return None, 1.0


def _rounded(array: Array) -> Array:
    if array.dtype != np.float32:
        return array
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def _run_literally(
    parts: Sequence[CompiledPart], target: Target, inputs: Tensors
) -> dict[str, Array]:
    """Run the parts with a device's numbers written in standard operators, in ONNX Runtime."""
    from vermilion.backends.npu_numbers import in_standard_operators

    tensors: dict[str, Array] = dict(inputs)
    for compiled in parts:
        numbers = compiled.program.details.get("numbers", "")
        if numbers not in _ROUNDED:
            tensors.update(_run_parts([compiled], target, tensors))
            continue
        literal = in_standard_operators(compiled.part.model, numbers)  # type: ignore[arg-type]
        graph = literal.graph
        wanted = [str(v.name) for v in graph.inputs if v.name not in graph.initializers]
        session = open_session(literal, quiet=True)
        tensors.update(run_session(session, {name: tensors[name] for name in wanted}))
    return tensors


def _run_parts(parts: Sequence[CompiledPart], target: Target, inputs: Tensors) -> dict[str, Array]:
    tensors: dict[str, Array] = dict(inputs)
    for compiled in parts:
        loaded = backend(compiled.part.backend).load(
            compiled.program, _StagedFiles(compiled), target, CompileOptions()
        )
        graph = compiled.part.model.graph
        wanted = [str(v.name) for v in graph.inputs if v.name not in graph.initializers]
        tensors.update(loaded.run({name: tensors[name] for name in wanted}))
    return tensors
