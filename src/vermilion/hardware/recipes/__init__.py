"""Scripts that build ONNX Runtime and onnxruntime-genai for AMD GPUs, and verify the result."""
