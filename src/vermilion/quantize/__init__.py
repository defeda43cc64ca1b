"""Float model and samples → quantized model and its distance from the original."""

from vermilion.quantize.guard import Guarded, Promise, Trial, quantize_guarded
from vermilion.quantize.options import Options, Settings
from vermilion.quantize.quantize import quantize_model
from vermilion.quantize.report import LayerError
from vermilion.quantize.result import Quantized
from vermilion.quantize.samples import Samples, open_samples

__all__ = [
    "Guarded",
    "LayerError",
    "Options",
    "Promise",
    "Quantized",
    "Samples",
    "Settings",
    "Trial",
    "open_samples",
    "quantize_guarded",
    "quantize_model",
]
