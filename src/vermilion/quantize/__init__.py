"""Float model and samples → quantized model and its distance from the original."""

from vermilion.quantize.quantize import Quantized, quantize_model
from vermilion.quantize.report import LayerError
from vermilion.quantize.samples import Samples, open_samples

__all__ = ["LayerError", "Quantized", "Samples", "open_samples", "quantize_model"]
