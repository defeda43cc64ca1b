"""A run of the model as it came, to hold every later form of it against."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import onnx_ir as ir

from vermilion.errors import Refusal, UnsupportedError, VermilionError
from vermilion.ir.execute import Array
from vermilion.ir.limits import MemoryBoundError
from vermilion.ir.literal.run import open_literally
from vermilion.ir.measure import agreement
from vermilion.ir.opset import is_operator, is_random, required_inputs
from vermilion.ir.passes.rewrite import PassStep, drop_if_unread, is_unread
from vermilion.ir.samples import draw_accepted
from vermilion.progress import Progress, no_progress

# Rewriting moves roundings: float32 networks of hundreds of layers stay above 100 dB, where 24 bits
# are 144. The others have 53, 11 and 8 bits, about 6 dB each, and shorter chains.
_MIN_SQNR_DB = {"float64": 180.0, "float32": 90.0, "float16": 40.0, "bfloat16": 25.0}

# One wrong element among millions hardly moves the sum of squares: no element may be off by more
# than this part of the largest one.
_MAX_PART = 1e-3

# Where large terms cancel, an output has few digits to begin with. Then the yardstick is how far
# it moves by itself when the input moves by four units in the last place; a pass may move it
# twice as far (6 dB), but never below 30.
_INPUT_ULPS = 4
_NOISE_MARGIN_DB = 6.0
_LOWEST_SQNR_DB = 30.0

# What these give lies between -1 and 1 with an absolute grain: PP-OCR detection answers noise
# with a Sigmoid of 1e-7. What goes into them is compared as well, and tells far more.
_SQUASHING = ("HardSigmoid", "Sigmoid", "Softmax", "Tanh")
_GRAIN_ULPS = 8

# A rounding moved across a tie may flip an index or a quantized step: twice as many as flip when
# the input moves as above, and not one in a hundred.
_FLIPPED_MARGIN = 2
_MAX_FLIPPED = 0.01


@dataclass(frozen=True)
class Probe:
    """Inputs and what they gave; without results there is nothing to compare with.

    `results` has the outputs by name, and for an output of a Sigmoid or the like what went into
    it, as `NAME before Sigmoid`.
    """

    model: ir.Model
    inputs: Mapping[str, Array]
    results: Mapping[str, Array]
    step: PassStep

    def difference(self, model: ir.Model) -> str:
        """Describe the first output of `model` that is not as it was, empty where all are."""
        if not self.results:
            return ""
        try:
            found = _run(model, self.inputs)
        except VermilionError as error:
            return error.message
        shared = [name for name in self.results if name in found]
        wrong = {name: reason for name in shared if (reason := self._compare(name, found))}
        if not wrong:
            return ""
        moved = _run(self.model, self._a_hair_apart())
        for name, reason in wrong.items():
            if not _is_noise(self.results[name], found[name], moved[name]):
                return f"output `{name}`: {reason}"
        return ""

    def unusable(self, reason: str) -> Probe:
        """Return a probe that compares nothing any more, and says why."""
        refusal = Refusal(f"outputs not compared: {reason}")
        return replace(self, results={}, step=PassStep(self.step.name, 0, (("model", refusal),)))

    def _compare(self, name: str, found: Mapping[str, Array]) -> str:
        before = self.results[name]
        squashed = any(_before(name, op_type) in found for op_type in _SQUASHING)
        if squashed and before.shape == found[name].shape and _is_float(before):
            grain = _GRAIN_ULPS * _last_bit(before)
            if agreement(name, before, found[name]).max_abs_error <= grain:
                return ""
        return _differs(before, found[name], _MIN_SQNR_DB.get(before.dtype.name, math.inf))

    def _a_hair_apart(self) -> dict[str, Array]:
        """Return the inputs, of which floats have moved by `_INPUT_ULPS` of their own."""
        return {
            name: np.asarray(array * array.dtype.type(1 + _INPUT_ULPS * _last_bit(array)))
            if isinstance(array, np.ndarray) and _is_float(array)
            else array
            for name, array in self.inputs.items()
        }


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16


def _last_bit(array: Array) -> float:
    return float(ml_dtypes.finfo(array.dtype).eps)  # type: ignore[no-untyped-call]


def take_probe(model: ir.Model, progress: Progress = no_progress) -> Probe:
    """Run `model` on sample inputs, unoptimized; the step says why where that cannot be.

    Raises: MemoryBoundError where the run would take more than half of the machine's memory.
    """
    empty = Probe(model, {}, {}, PassStep("compare-outputs"))
    random = [node.op_type for node in model.graph.all_nodes() if is_random(node)]
    if random:
        return empty.unusable(f"{random[0]} gives other numbers each time")
    try:
        opened = _open(model, progress)
        found = draw_accepted(model, "ordinary", lambda inputs: _numbers(opened(inputs)))
    except MemoryBoundError:
        raise  # what comes after the probe runs the same graph and is not bounded
    except VermilionError as error:
        return empty.unusable(error.message)
    if isinstance(found, Refusal):
        return empty.unusable(found.reason)
    sample, results = found
    if not all(isinstance(array, np.ndarray) for array in results.values()):
        return empty.unusable("an output is not a tensor")
    step = PassStep("compare-outputs", len(model.graph.outputs))
    return Probe(model, sample.inputs, results, step)


def _numbers(results: dict[str, Array]) -> dict[str, Array]:
    """Return what a run gave. Raises: UnsupportedError where there is no number in it."""
    floats = [a for a in results.values() if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
    if floats and len(floats) == len(results) and not any(np.isfinite(a).any() for a in floats):
        raise UnsupportedError("the outputs are not numbers")
    return results


def _run(model: ir.Model, inputs: Mapping[str, Array]) -> dict[str, Array]:
    return _open(model)(inputs)


def _open(
    model: ir.Model, progress: Progress = no_progress
) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Return what runs the model, bounded; results have the names that `Probe` says."""
    names = {value.name or "": value.name or "" for value in model.graph.outputs}
    watched = model
    if _squashed(model) or any(
        is_unread(model.graph, v) for v in model.graph.initializers.values()
    ):
        watched = model.clone()
    for value in list(watched.graph.initializers.values()):
        # ONNX Runtime drops what nobody reads, and then misses it when it is lent.
        drop_if_unread(watched.graph, value)
    for value, node, source in _squashed(watched):
        source.type, source.shape = value.type, value.shape
        watched.graph.outputs.append(source)
        names[_before(value.name or "", node.op_type)] = source.name or ""
    opened = open_literally(watched, progress=progress)

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = opened.run(inputs, list(names.values()))
        return {shown: found[name] for shown, name in names.items()}

    return run


def _squashed(model: ir.Model) -> list[tuple[ir.Value, ir.Node, ir.Value]]:
    """Return outputs that are squashed just before, the nodes that do it, and what they read."""
    found: list[tuple[ir.Value, ir.Node, ir.Value]] = []
    for value in model.graph.outputs:
        node = value.producer()
        if node is None or not is_operator(node, *_SQUASHING):
            continue
        source = node.inputs[0]
        if source is None or source.producer() is None or source.is_graph_output():
            continue
        if all(source is not other for _, _, other in found):
            found.append((value, node, source))
    return found


def _before(name: str, op_type: str) -> str:
    return f"{name} before {op_type}"


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


def _differs(before: Array, after: Array, floor_db: float) -> str:
    if before.shape != after.shape or before.dtype != after.dtype:
        return f"{before.dtype} {before.shape} became {after.dtype} {after.shape}"
    if before.dtype.name not in _MIN_SQNR_DB:
        flipped = _flipped(before, after)
        return f"{flipped:.2%} of its values differ" if flipped else ""
    found = agreement("", before, after)
    if found.max_abs_error == 0.0:
        return ""
    finite = before[np.isfinite(before)].astype(np.float64)
    largest = float(np.max(np.abs(finite), initial=0.0))
    if found.sqnr_db >= floor_db and found.max_abs_error <= _MAX_PART * largest:
        return ""
    return f"{found.sqnr_db:.1f} dB, largest difference {found.max_abs_error:.3g}"


def _flipped(before: Array, after: Array) -> float:
    return float(np.mean(before != after)) if before.size else 0.0


def _is_noise(before: Array, after: Array, moved: Array) -> bool:
    """Say whether `after` is no further from `before` than what a hair at the inputs does.

    `moved` is what `before` becomes of inputs a hair apart.
    """
    if before.shape != after.shape or before.dtype != after.dtype or before.shape != moved.shape:
        return False
    if before.dtype.name not in _MIN_SQNR_DB:
        allowed = min(_MAX_FLIPPED, _FLIPPED_MARGIN * _flipped(before, moved))
        return _flipped(before, after) <= allowed
    own, found = agreement("", before, moved), agreement("", before, after)
    floor_db = max(_LOWEST_SQNR_DB, own.sqnr_db - _NOISE_MARGIN_DB)
    return found.sqnr_db >= floor_db
