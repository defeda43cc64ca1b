"""Parts compiled ahead of time for AMD GPUs with IREE, and checked on the CPU."""
