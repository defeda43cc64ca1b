"""Model file → graph: loading, checking, costs, passes, and running by ONNX Runtime."""
