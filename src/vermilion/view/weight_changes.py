"""What differs between the weights of two nodes that match: in words, and by how much."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest

import numpy as np
import onnx_ir as ir

from vermilion.view.canonical import Part

_MOST_VALUES = 1 << 26


def weights_differ(a: Part, b: Part) -> bool:
    """Say whether any weight differs."""
    return next(weight_changes(a, b), None) is not None


def weight_changes(a: Part, b: Part) -> Iterator[tuple[str, str, float]]:
    """Yield the kind of a change, its words, and its size as a share of the largest value."""
    for mine, theirs in zip_longest(a.weights, b.weights):
        if mine is None or theirs is None:
            had, word = (mine, "is gone") if theirs is None else (theirs, "is new")
            yield "weights", f"{a.op}: weight `{had[0]}` {word}", 1.0
            continue
        (name, x), (_, y) = mine, theirs
        if _equal(x, y):
            continue
        kind = "quantization" if name.endswith(("_scale", "_zero_point")) else "weights"
        what, size = _weight_words(x, y)
        yield kind, f"{a.op}: {name} {what}", size


def _equal(x: ir.TensorProtocol, y: ir.TensorProtocol) -> bool:
    if x.dtype != y.dtype or list(x.shape) != list(y.shape):
        return False
    return x is y or x.tobytes() == y.tobytes()


def _weight_words(x: ir.TensorProtocol, y: ir.TensorProtocol) -> tuple[str, float]:
    if list(x.shape) != list(y.shape):
        return f"shape {list(x.shape)} → {list(y.shape)}", 1.0
    if x.dtype == ir.DataType.STRING or y.dtype == ir.DataType.STRING:
        return "texts differ", 1.0
    types = "" if x.dtype == y.dtype else f"{x.dtype.name.lower()} → {y.dtype.name.lower()}, "
    step = max(1, x.size // _MOST_VALUES)
    a, b = (t.numpy().reshape(-1)[::step].astype(np.float64) for t in (x, y))
    if a.size == 1:
        digits = next((n for n in (6, 9, 17) if f"{a[0]:.{n}g}" != f"{b[0]:.{n}g}"), 6)
        one = f"{types}{a[0]:.{digits}g} → {b[0]:.{digits}g}"
        return one, _share(abs(float(a[0] - b[0])), float(abs(a[0])))
    with np.errstate(invalid="ignore"):
        apart = np.abs(a - b)
    changed = int(np.count_nonzero((a != b) & ~(np.isnan(a) & np.isnan(b))))
    largest = float(np.nanmax(apart, initial=0.0))
    most = float(np.nanmax(np.abs(a), initial=0.0))
    share = _share(largest, most)
    return (
        f"{types}{changed:,} of {a.size:,} values differ, by {largest:.3g} at most "
        f"({share:.2%} of the largest)"
    ), share


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else float(part > 0)
