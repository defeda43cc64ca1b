"""Inputs that a model's graph allows, drawn where the user gave none."""

from vermilion.ir.samples.draw import (
    Sample,
    draw_accepted,
    draw_sample,
    inferred_for_sample,
    sample_inputs,
)
from vermilion.ir.samples.open_sizes import open_axes
from vermilion.ir.samples.values import SampleKind

__all__ = [
    "Sample",
    "SampleKind",
    "draw_accepted",
    "draw_sample",
    "inferred_for_sample",
    "open_axes",
    "sample_inputs",
]
