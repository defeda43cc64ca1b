"""The decoder of a language model on our own code generator."""

from __future__ import annotations

from vermilion.llm.engine.open_native import open_native_decoder

__all__ = ["open_native_decoder"]
