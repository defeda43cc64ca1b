"""The proof that compiling changed nothing: every output against the model as it came."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx_ir as ir

from vermilion.backends import backend
from vermilion.backends.base import Array, CompileOptions, Tensors
from vermilion.errors import Refusal, UnsupportedError
from vermilion.hardware.targets.target import Target
from vermilion.ir.execute import open_session, run_session, split_weights
from vermilion.ir.inputs import sample_inputs
from vermilion.ir.opset import required_inputs
from vermilion.progress import Progress
from vermilion.runtime.judge import Verdict, judge
from vermilion.runtime.write import CompiledPart

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


@dataclass(frozen=True)
class _Found:
    """A model's outputs beside the right ones, and beside how far those are from themselves."""

    rows: tuple[Verdict, ...]
    spread: Mapping[str, Verdict]
    factor: float

    def wrong(self) -> Verdict | None:
        """Give the first output that no rounding explains."""
        return next((row for row in self.rows if row.is_wrong(self._own(row), self.factor)), None)

    def _own(self, row: Verdict) -> Verdict | None:
        return self.spread.get(row.agreement.name)

    def as_json(self, row: Verdict) -> dict[str, object]:
        """Give the row of an output, and how far it might have been."""
        own = self._own(row)
        if own is None:
            return row.as_json()
        return row.as_json() | {"reference_spread": self.factor * own.agreement.max_abs_error}


def prove(
    original: ir.Model,
    parts: Sequence[CompiledPart],
    target: Target,
    progress: Progress,
    precision: str = "auto",
    *,
    simplified: ir.Model | None = None,
) -> tuple[dict[str, object], ...]:
    """Run `original` and the compiled parts on the same inputs; compare every output.

    What rounding to bfloat16 may do is measured on the `simplified` model, where there is one: its
    weights, with what was folded into them, are those that are rounded.

    Returns: a row an output, the keys of `verification.outputs`.
    Raises: WrongNumbersError where an output is not what the model as it came gives.
    """
    progress("prove", 0, 2)
    inputs = sample_inputs(original)
    expected = run_session(open_session(original, quiet=True), inputs)
    progress("prove", 1, 2)
    tensors = _run_parts(parts, target, inputs)
    progress("prove", 2, 2)
    rounded = simplified if simplified is not None and precision == "bf16" else original
    found = _compared(rounded, parts, target, inputs, expected, tensors, precision)
    wrong = found.wrong()
    if wrong is not None:
        raise WrongNumbersError(
            f"the compiled model gives another `{wrong.agreement.name}` than the model as it came: "
            f"{wrong}",
            where=target.name,
            hint="this is a fault of the compiler; `--target cpu` may do, and please report it",
        )
    modelled = _numbers(parts)
    extra = {"modelled_in": modelled} if modelled else {}
    return tuple(found.as_json(row) | extra for row in found.rows)


def wrong_parts(
    original: ir.Model,
    parts: Sequence[CompiledPart],
    target: Target,
    precision: str = "auto",
    *,
    trusted: str,
) -> dict[str, Refusal]:
    """Give the parts that are wrong on right inputs, by name, with what is wrong in them.

    Parts of the backend `trusted` make the right inputs of the others.
    """
    tensors: dict[str, Array] = dict(sample_inputs(original))
    found: dict[str, Refusal] = {}
    for compiled in parts:
        model = compiled.part.model
        inputs = {name: tensors[name] for name in _names(required_inputs(model))}
        expected = run_session(open_session(model, quiet=True), inputs)
        if compiled.part.backend != trusted:
            mine = _run_parts([compiled], target, inputs)
            compared = _compared(model, [compiled], target, inputs, expected, mine, precision)
            wrong = compared.wrong()
            if wrong is not None:
                found[compiled.part.name] = Refusal(
                    f"its region gives another `{wrong.agreement.name}` than the model: {wrong}",
                    "this is a fault of the compiler, please report it",
                )
        tensors.update(expected)
    return found


def _compared(
    model: ir.Model,
    parts: Sequence[CompiledPart],
    target: Target,
    inputs: Tensors,
    expected: Mapping[str, Array],
    found: Mapping[str, Array],
    precision: str,
) -> _Found:
    # An output that no part makes is an input or a weight: there is nothing to prove.
    rows = tuple(judge(name, expected[name], found[name]) for name in expected if name in found)
    if not any(row.is_far for row in rows):
        return _Found(rows, {}, 1.0)
    unlike = any(row.unlike for row in rows)
    other, factor = (
        (_run_literally(parts, target, inputs), SAME_NUMBERS_FACTOR)
        if _numbers(parts) in _ROUNDED
        else _run_reference(model, inputs, precision, unlike=unlike)
    )
    spread = {name: judge(name, expected[name], other[name]) for name in expected if name in other}
    return _Found(rows, spread, factor)


def _numbers(parts: Sequence[CompiledPart]) -> str:
    """Give the number format in which a device is modelled, empty where none is."""
    found = {part.program.details.get("numbers", "") for part in parts}
    return next((name for name in ("bfp16", "bf16", "fp16", "integers") if name in found), "")


def _run_reference(
    original: ir.Model, inputs: Tensors, precision: str, *, unlike: bool
) -> tuple[dict[str, Array], float]:
    """Run the reference where it is far from itself, and say how much further we may be.

    - A chain of quantized layers amplifies a rounding to whole steps: ONNX Runtime's own optimized
      and literal ways disagree (a text detector in int8: cosine 0.94 on noise).
    - In bfloat16 an output near zero is all rounding. Weights and inputs alone, rounded once, show
      how much; every tensor between is rounded as well, hence the factor.
    """
    if precision == "bf16":
        from vermilion.backends.npu_numbers import is_data

        work = original.clone()
        for value in work.graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and is_data(value):  # scales of a Resize are what they are
                value.const_value = ir.Tensor(_rounded(tensor.numpy()), name=value.name)
        rounded = {name: _rounded(array) for name, array in inputs.items()}
        return run_session(open_session(work, quiet=True), rounded), BF16_FACTOR
    if unlike or any(node.op_type == "QuantizeLinear" for node in original.graph.all_nodes()):
        return run_session(open_session(original, quiet=True, optimize=False), inputs), 1.0
    return {}, 1.0


def _rounded(array: Array) -> Array:
    """Give what bfloat16 leaves of float32, and anything else as it is."""
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
        session = open_session(literal, quiet=True)
        wanted = _names(required_inputs(literal))
        tensors.update(run_session(session, {name: tensors[name] for name in wanted}))
    return tensors


def _run_parts(parts: Sequence[CompiledPart], target: Target, inputs: Tensors) -> dict[str, Array]:
    tensors: dict[str, Array] = dict(inputs)
    for compiled in parts:
        loaded = backend(compiled.part.backend).load(
            compiled.program, _StagedFiles(compiled), target, CompileOptions()
        )
        wanted = _names(required_inputs(compiled.part.model))
        tensors.update(loaded.run({name: tensors[name] for name in wanted}))
    return tensors


def _names(values: Sequence[ir.Value]) -> list[str]:
    return [str(value.name) for value in values]
