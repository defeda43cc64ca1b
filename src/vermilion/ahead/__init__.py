"""Compiled models as libraries: code, weights and the C library in one `.so`, `.a` or `.o`."""
