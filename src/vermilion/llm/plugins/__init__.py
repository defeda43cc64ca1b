"""Operators compiled ahead: the plugin that a model with new shapes needs, written, read, found."""
