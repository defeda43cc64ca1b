"""Float model and samples → quantized model and its distance from the original."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vermilion.quantize.guard import Promise as Promise


def __getattr__(name: str) -> object:
    """Import what scripts ask this package for only when they do: most of it needs no search."""
    if name == "Promise":
        from vermilion.quantize.guard import Promise

        return Promise
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
