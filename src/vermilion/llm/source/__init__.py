"""Models as they are published, GGUF files and Hugging Face folders, → the engine's description."""
