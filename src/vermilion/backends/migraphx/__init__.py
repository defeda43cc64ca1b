"""Parts that AMD GPUs execute through the MIGraphX provider of ONNX Runtime."""
