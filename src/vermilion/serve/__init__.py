"""Models behind HTTP: KServe's API version 2 for networks, OpenAI's for language models."""
