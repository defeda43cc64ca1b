"""Kernels of a language model's decoder: rows of activations, a cache, weights in blocks."""
