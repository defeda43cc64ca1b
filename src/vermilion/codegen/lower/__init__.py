"""ONNX graph → steps: what is fused, which layout, which kernel."""
