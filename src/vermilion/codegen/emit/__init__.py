"""Kernels as LLVM IR, one file a family."""
