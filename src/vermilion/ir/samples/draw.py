"""Samples: one array for each input, of sizes and with values that the graph allows.

Sizes come first (`open_sizes`): the first plausible ones in which shape inference finds no
contradiction. Then the values: what the graph asks of each input (`walk`, `roles`), drawn by kind
(`values`). Small vectors of integers may be shapes; with those as constants, inference looks once
more. What nobody can know before the run is found out by it: `draw_accepted` draws again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import onnx
import onnx_ir as ir

from vermilion.errors import Refusal, UnsupportedError, VermilionError
from vermilion.ir.limits import TimeLimitError
from vermilion.ir.opset import required_inputs
from vermilion.ir.samples.prepare import Prepared, Sized, prepare
from vermilion.ir.samples.values import (
    MAX_INPUT_BYTES,
    Array,
    SampleKind,
    Want,
    between,
    draw_array,
)
from vermilion.ir.samples.walk import find_wants

T = TypeVar("T")

_KINDS: tuple[SampleKind, ...] = ("ordinary", "edges", "large")
_REDRAWS = 4  # of values whose shapes contradict each other
_FEW_ATTEMPTS = 6
_ENOUGH_SECONDS = 10.0
_SEQUENCE_LENGTH = 2
_MOST_PARAMETERS = 8  # elements of a vector that may be a shape, not data


@dataclass(frozen=True)
class Sample:
    """Inputs for one run.

    `inputs` has an array for each required input (a list of arrays for a sequence), `sizes` what
    open dimensions were taken to be; one without a name is called `INPUT[AXIS]`.
    """

    kind: SampleKind
    inputs: Mapping[str, Array]
    sizes: Mapping[str, int]


def draw_sample(
    model: ir.Model,
    kind: SampleKind = "ordinary",
    *,
    seed: int = 0,
    attempt: int = 0,
    sizes: Mapping[str, int] | None = None,
) -> Sample:
    """Return the sample of this kind, seed and attempt: the same one each time.

    `ordinary`: floats of the standard normal distribution, integers spread over what is legal.
    `edges`: zeros of both signs, equal, small and large values; integers at both ends of what is
    legal; all booleans false. `large`: floats 30 times as large, images up to 255, other sizes for
    open dimensions. Later attempts have other sizes and values. `sizes` binds some dimensions.

    Raises: UnsupportedError for an input of which no sample can be made; ModelError where one
    would need more than `MAX_INPUT_BYTES`.
    """
    return _drawn(prepare(model, kind, sizes), kind, seed, attempt)


def inferred_for_sample(model: ir.Model) -> onnx.GraphProto | None:
    """Return the graph with all shapes that the first ordinary sample leads to.

    None where inference fails.
    """
    return prepare(model, "ordinary").sized(0).inferred()


def draw_accepted(
    model: ir.Model,
    kind: SampleKind,
    run: Callable[[Mapping[str, Array]], T],
    *,
    seed: int = 0,
    attempts: int = 16,
    sizes: Mapping[str, int] | None = None,
    likes: Callable[[T], bool] = lambda result: True,
) -> tuple[Sample, T] | Refusal:
    """Return the first sample that `run` accepts, and what it returned.

    An UnsupportedError of `run` says that it does not accept the inputs (a TimeLimitError, that it
    is not worth trying others); any other error is raised. A Refusal has the first
    reason, the one for the likeliest inputs. What is accepted and not liked is returned where
    nothing else is accepted.
    """
    reasons: list[str] = []  # an error would hold the arrays of the run that raised it
    prepared = prepare(model, kind, sizes)
    begin, accepted = time.perf_counter(), None
    for attempt in range(attempts):
        # What is refused is refused at once, or looked for where a run takes long: few of those.
        if attempt >= _FEW_ATTEMPTS and time.perf_counter() - begin > _ENOUGH_SECONDS:
            break
        try:
            sample = _drawn(prepared, kind, seed, attempt)
        except VermilionError as error:
            reasons.append(_words(error))
            continue
        try:
            result = run(sample.inputs)
            if likes(result):
                return sample, result
            accepted = accepted or (sample, result)
        except UnsupportedError as error:
            reasons.append(_words(error))
            if isinstance(error, TimeLimitError):
                break  # each further attempt may take as long
    if accepted is not None:
        return accepted
    if not reasons:
        return Refusal("no sample was drawn", "allow at least one attempt")
    return Refusal(
        f"none of {len(reasons)} samples is accepted: {reasons[0]}",
        "give inputs of your own with `--input`",
    )


def _words(error: VermilionError) -> str:
    return f"{error.message} ({error.where})" if error.where else error.message


def _drawn(prepared: Prepared, kind: SampleKind, seed: int, attempt: int) -> Sample:
    sized = prepared.sized(attempt)
    inputs: dict[str, Array] = {}
    for redraw in range(_REDRAWS):
        # The second draw of one attempt is not the first of the next.
        salt = attempt + 101 * redraw
        wants = None
        if sized.facts is not None:
            wants = find_wants(sized.model, sized.facts, kind, salt, seed)
        inputs = _arrays(sized, wants.by_name if wants else {}, kind, seed, salt)
        if wants is None or not wants.of_shapes or sized.agrees(inputs):
            break
    return Sample(kind, inputs, sized.sizes)


def _arrays(
    sized: Sized,
    wants: Mapping[str, Want],
    kind: SampleKind,
    seed: int,
    salt: int,
) -> dict[str, Array]:
    plain = kind == "ordinary" and salt == 0
    number = _KINDS.index(kind)
    floats = np.random.default_rng(seed if plain else [seed, number, salt])
    others = np.random.default_rng([seed, number, salt, 1])
    return {
        value.name or "": _array(value, sized, wants, kind, salt, floats, others)
        for value in required_inputs(sized.model)
    }


def _array(
    value: ir.Value,
    sized: Sized,
    wants: Mapping[str, Want],
    kind: SampleKind,
    salt: int,
    floats: np.random.Generator,
    others: np.random.Generator,
) -> Array:
    shape = sized.shape(value)
    want = wants.get(value.name or "") or _usual(value, kind, salt)
    return _of_type(value.type, value, shape, want, kind, floats, others)


def _of_type(
    of: ir.TypeProtocol | None,
    value: ir.Value,
    shape: tuple[int, ...],
    want: Want | None,
    kind: SampleKind,
    floats: np.random.Generator,
    others: np.random.Generator,
) -> Array:
    """Return a tensor, or a list of them for a sequence, as ONNX Runtime takes it."""
    if isinstance(of, ir.SequenceType):
        return [  # type: ignore[return-value]
            _of_type(of.elem_type, value, shape, want, kind, floats, others)
            for _ in range(_SEQUENCE_LENGTH)
        ]
    if isinstance(of, ir.OptionalType):
        return _of_type(of.elem_type, value, shape, want, kind, floats, others)
    tensor = ir.Value(name=value.name, type=of, shape=value.shape)
    return draw_array(tensor, shape, want, kind, floats, others)


def _usual(value: ir.Value, kind: SampleKind, salt: int) -> Want | None:
    """Return what to try for integers of which the graph asks nothing that is understood."""
    dtype = value.dtype
    if dtype is None or not dtype.is_integer():
        return None
    if "mask" in (value.name or "").lower():
        return between(0, 1, marked=True, hard=False)
    readers = value.uses()
    standard = bool(readers) and all(
        node.domain == ""
        and not any(attribute.type in _BODIES for attribute in node.attributes.values())
        for node, _ in readers
    )
    if not standard or salt % 2:
        return between(0, 1, hard=False)  # safe as token ids, masks and indices
    if dtype.bitwidth <= 8:
        return None
    sizes = value.shape.dims if value.shape is not None else ()
    if len(sizes) < 2 and all(isinstance(size, int) and size <= _MOST_PARAMETERS for size in sizes):
        # Computed with, and then perhaps a shape: a large one would fill the memory.
        return between(1, 4, hard=False)
    spread = {"ordinary": 10, "edges": 1000, "large": 100}[kind]
    return between(-spread, spread, hard=False)


_BODIES = (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)


__all__ = ["MAX_INPUT_BYTES", "Array", "sample_inputs"]


def sample_inputs(model: ir.Model, seed: int = 0) -> dict[str, Array]:
    """Return one array for each input that has no default, by name: the ordinary sample.

    Floats are drawn from the standard normal distribution; integers are spread over what the graph
    allows; booleans alternate, beginning with true; strings are `a`. Open dimensions have the
    first sizes that fit: 1, and `IMAGE_SIDE` for the last two of a rank-4 float input, where the
    graph allows it.

    Raises: UnsupportedError for an input of which no sample can be made; ModelError where the
    input would need more than `MAX_INPUT_BYTES`.
    """
    return dict(draw_sample(model, seed=seed).inputs)
