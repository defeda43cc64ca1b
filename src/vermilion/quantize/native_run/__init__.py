"""Convolution networks in bfloat16 on this CPU, with kernels that are compiled once."""
