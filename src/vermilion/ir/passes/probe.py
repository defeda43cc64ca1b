"""A run of the model as it came, to hold every later form of it against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from vermilion.errors import Refusal, VermilionError
from vermilion.ir.execute import Array, open_session, run_session
from vermilion.ir.inputs import sample_inputs
from vermilion.ir.measure import agreement
from vermilion.ir.opset import is_random, required_inputs
from vermilion.ir.passes.report import PassStep

# Rewriting moves roundings: float32 networks of hundreds of layers stay above 100 dB, and what
# is wrong is far below 40. Half types keep 11 and 8 bits, about 6 dB each.
_MIN_SQNR_DB: Mapping[ir.DataType | None, float] = {
    ir.DataType.DOUBLE: 80.0,
    ir.DataType.FLOAT: 60.0,
    ir.DataType.FLOAT16: 35.0,
    ir.DataType.BFLOAT16: 20.0,
}

# A model that answers noise with numbers near 0 (PP-OCR detection: 1e-6 out of a Sigmoid) has
# few digits to begin with. Then the yardstick is how far its own output moves when the input
# moves by four units in the last place; a pass may move it twice as far (6 dB), never below 30.
_INPUT_ULPS = 4
_NOISE_MARGIN_DB = 6.0
_LOWEST_SQNR_DB = 30.0

# A rounding moved across a tie may flip an index or a quantized step, not one in a hundred.
_MAX_FLIPPED = 0.01


@dataclass(frozen=True)
class Probe:
    """Inputs and the outputs they gave; without outputs there is nothing to compare with."""

    model: ir.Model
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    step: PassStep

    def difference(self, model: ir.Model) -> str:
        """Describe the first output of `model` that is not as it was, empty where all are."""
        if not self.outputs:
            return ""
        try:
            found = _run(model, self.inputs)
        except VermilionError as error:
            return error.message
        floors = self._floors_db()
        wrong = {
            name: reason
            for name, before in self.outputs.items()
            if (reason := _differs(before, found[name], floors.get(name)))
        }
        if not wrong:
            return ""
        moved = self._noise_db()
        for name, reason in wrong.items():
            floor = max(_LOWEST_SQNR_DB, moved.get(name, math.inf) - _NOISE_MARGIN_DB)
            if floors.get(name) is None or _differs(self.outputs[name], found[name], floor):
                return f"output `{name}`: {reason}"
        return ""

    def unusable(self, reason: str) -> Probe:
        """Give a probe that compares nothing any more, and says why."""
        refusal = Refusal(f"outputs not compared: {reason}")
        return replace(self, outputs={}, step=PassStep(self.step.name, 0, (("model", refusal),)))

    def _floors_db(self) -> dict[str, float]:
        """Give the least agreement for each float output; the others must be equal."""
        return {
            value.name or "": _MIN_SQNR_DB[value.dtype]
            for value in self.model.graph.outputs
            if value.dtype in _MIN_SQNR_DB
        }

    def _noise_db(self) -> dict[str, float]:
        """Run the model as it came on inputs a hair apart; give how far each output moved."""
        apart = {
            name: array * array.dtype.type(1 + _INPUT_ULPS * np.finfo(array.dtype).eps)
            if array.dtype.kind == "f"
            else array
            for name, array in self.inputs.items()
        }
        moved = _run(self.model, apart)
        return {
            name: agreement(name, before, moved[name]).sqnr_db
            for name, before in self.outputs.items()
            if isinstance(before, np.ndarray) and before.shape == moved[name].shape
        }


def take_probe(model: ir.Model) -> Probe:
    """Run `model` once on sample inputs, unoptimized; the step says why where that cannot be."""
    empty = Probe(model, {}, {}, PassStep("compare-outputs"))
    random = [node.op_type for node in model.graph.all_nodes() if is_random(node)]
    if random:
        return empty.unusable(f"{random[0]} gives other numbers each time")
    try:
        inputs = sample_inputs(model)
        outputs = _run(model, inputs)
    except VermilionError as error:
        return empty.unusable(error.message)
    if all(array.dtype.kind == "f" and not np.isfinite(array).any() for array in outputs.values()):
        return empty.unusable("they are not numbers for the sample inputs")
    return Probe(model, inputs, outputs, PassStep("compare-outputs", len(outputs)))


def _run(model: ir.Model, inputs: Mapping[str, Array]) -> dict[str, Array]:
    session = open_session(model, optimize=False, quiet=True)
    return run_session(session, inputs, [value.name or "" for value in model.graph.outputs])


def interface_change(before: ir.Model, after: ir.Model) -> str:
    """Describe how inputs or outputs differ; an open size may have become known."""
    return _changed("input", required_inputs(before), required_inputs(after)) or _changed(
        "output", list(before.graph.outputs), list(after.graph.outputs)
    )


def _changed(kind: str, before: list[ir.Value], after: list[ir.Value]) -> str:
    names = [value.name for value in before]
    if names != [value.name for value in after]:
        return f"the {kind}s were {names} and are {[value.name for value in after]}"
    for old, new in zip(before, after, strict=True):
        if old.dtype is not None and old.dtype != new.dtype:
            return f"{kind} `{old.name}` was {old.dtype.name} and is {new.dtype}"
        if not _narrows(old.shape, new.shape):
            return f"{kind} `{old.name}` had the shape {old.shape} and has {new.shape}"
    return ""


def _narrows(old: ir.Shape | None, new: ir.Shape | None) -> bool:
    if old is None or new is None:
        return old is None
    return len(old) == len(new) and all(
        a == b for a, b in zip(old.dims, new.dims, strict=True) if isinstance(a, int) and a >= 0
    )


def _differs(before: Array, after: Array, floor_db: float | None) -> str:
    if not isinstance(before, np.ndarray) or not isinstance(after, np.ndarray):
        return ""  # sequences and maps: their tensors have no name to report
    if before.shape != after.shape or before.dtype != after.dtype:
        return f"{before.dtype} {before.shape} became {after.dtype} {after.shape}"
    if floor_db is None:
        flipped = float(np.mean(before != after)) if before.size else 0.0
        return f"{flipped:.1%} of its values differ" if flipped > _MAX_FLIPPED else ""
    found = agreement("", before, after)
    if found.sqnr_db >= floor_db or found.max_abs_error == 0.0:
        return ""
    return f"{found.sqnr_db:.1f} dB, largest difference {found.max_abs_error:.3g}"
