"""Float model and samples → quantized model and its distance from the original."""
