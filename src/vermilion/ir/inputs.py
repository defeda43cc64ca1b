"""Inputs to try a model with where the user gave none: the same ones each time."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.ir.samples import draw_sample
from vermilion.ir.samples.values import MAX_INPUT_BYTES
from vermilion.ir.samples.want import Array

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
