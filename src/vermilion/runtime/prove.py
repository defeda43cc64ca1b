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
    rows = [agreement(name, expected[name], found[name]) for name in expected if name in found]
    spread: Mapping[str, float] = {}
    if any(map(_is_far, rows)):
        spread = _reference_spread(original, inputs, expected, precision)
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
        {**row.as_json(), "reference_spread": spread[row.name]}
        if row.name in spread
        else row.as_json()
        for row in rows
    )


def _is_far(row: Agreement) -> bool:
    return row.cosine < MIN_COSINE and row.max_abs_error > NOTHING


def _reference_spread(
    original: ir.Model, inputs: Tensors, expected: Mapping[str, Array], precision: str
) -> dict[str, float]:
    """Give how far the reference is from itself, by output, where it may be far at all.

    What is no further from the reference than that is no fault of ours.

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
        other = run_session(session, {name: _rounded(array) for name, array in inputs.items()})
        factor = BF16_FACTOR
    elif any(node.op_type == "QuantizeLinear" for node in original.graph.all_nodes()):
        other = run_session(open_session(original, quiet=True, optimize=False), inputs)
        factor = 1.0
    else:
        return {}
    return {
        name: factor * agreement(name, array, other[name]).max_abs_error
        for name, array in expected.items()
    }


def _rounded(array: Array) -> Array:
    if array.dtype != np.float32:
        return array
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


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
