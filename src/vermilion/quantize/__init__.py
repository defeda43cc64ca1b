"""Float model and samples → quantized model and its distance from the original."""

from vermilion.quantize.quantize import Quantized, quantize_model
from vermilion.quantize.report import LayerError

__all__ = ["LayerError", "Quantized", "quantize_model"]
