"""Language models compiled ahead of time: for programs in C, and for onnxruntime-genai."""
