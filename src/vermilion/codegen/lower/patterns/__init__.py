"""Decompositions that exporters write, found and made one node again."""
