"""Compiled bundles: written, read, cached and run."""
