"""Compiled models without Python: the C library, its header and its sources."""
