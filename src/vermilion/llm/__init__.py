"""Language models: what operators they need, ONNX Runtime GenAI folders built, set up and run."""
