"""A run of ONNX Runtime's own session, into memory of the caller's where that is bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vermilion.backends.base import Array
from vermilion.ir.ort_values import needs_values, run_with_values

if TYPE_CHECKING:
    import onnxruntime as ort

# Booleans, integers, floats: what is bound by its address.
_NUMERIC = "biuf"


def run_peer(
    peer: ort.InferenceSession,
    names: Sequence[str],
    feed: Mapping[str, Any],
    options: Any,
    places: Mapping[str, Array],
) -> list[Any]:
    """Compute outputs, into `places` where there is one. Raises: what ONNX Runtime raises."""
    if needs_values(peer, feed):
        return run_with_values(peer, names, feed, options)
    if not places or not all(map(_is_bound_by_address, (*feed.values(), *places.values()))):
        found: list[Any] = peer.run(list(names), dict(feed), options)
        return found
    binding = peer.io_binding()
    for name, value in feed.items():
        if isinstance(value, np.ndarray):
            binding.bind_cpu_input(name, np.ascontiguousarray(value).reshape(value.shape))
        else:
            binding.bind_ortvalue_input(name, value)
    for name in names:
        place = places.get(name)
        if place is None:
            binding.bind_output(name)
        else:
            binding.bind_output(name, "cpu", 0, place.dtype, place.shape, place.ctypes.data)
    peer.run_with_iobinding(binding, options)
    made = zip(names, binding.get_outputs(), strict=True)
    return [places[name] if name in places else value.numpy() for name, value in made]


def _is_bound_by_address(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in _NUMERIC
    return hasattr(value, "_ortvalue") and value.is_tensor()
