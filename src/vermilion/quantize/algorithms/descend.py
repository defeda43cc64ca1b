"""What is left to gain after successive cancellation: scales and codes, each at its best in turn.

For weights W of a layer, what they are rounded to Q = (codes - zeros) · scales and H the mean of
x·xᵀ, the error at the output is Σ (W - Q)·H·(W - Q)ᵀ. Of all scales but one block's, or all codes
but one column's, the best value is a division away: it falls with every step.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]

_DAMPING = 0.01  # as in `compensate`
_MOST_WORK = 5e10  # products; a layer of 2,048 × 4,096 has a third of it
# A scale that would move by more than this part of itself is left: its block is all but zero.
_MOST_MOVED = 0.25


def descend(
    weight: Float32,
    codes: Float32,
    scales: Float32,
    zeros: Float32,
    gram: Float32,
    limits: tuple[int, int],
) -> tuple[Float32, Float32]:
    """Return better codes and scales.

    Shapes: weight and codes (O, K), scales and zeros (O, K ÷ block), gram (K, K).
    """
    outputs, width = weight.shape
    if outputs * width * width > _MOST_WORK:
        return codes, scales
    damped = gram.copy()
    places = np.arange(width)
    damped[places, places] += np.float32(_DAMPING) * gram[places, places].mean()
    scales = _rescaled(weight, codes, scales, zeros, damped)
    codes = _recoded(weight, codes, scales, zeros, damped, limits)
    return codes, _rescaled(weight, codes, scales, zeros, damped)


def _rescaled(
    weight: Float32, codes: Float32, scales: Float32, zeros: Float32, gram: Float32
) -> Float32:
    """Bring one block's scales after the other's to where the error is least."""
    block = codes.shape[1] // scales.shape[1]
    centred = codes - np.repeat(zeros, block, axis=1)
    found = scales.copy()
    off = (weight - centred * np.repeat(found, block, axis=1)) @ gram
    for number in range(scales.shape[1]):
        here = slice(number * block, (number + 1) * block)
        own = centred[:, here]
        curved = np.einsum("ok,kl,ol->o", own, gram[here, here], own, optimize=True)
        moved = np.einsum("ok,ok->o", off[:, here], own) / np.maximum(curved, 1e-30)
        moved = np.where(np.abs(moved) <= _MOST_MOVED * np.abs(found[:, number]), moved, 0.0)
        found[:, number] += moved
        off -= (moved[:, None] * own).astype(np.float32) @ gram[here]
    return found


def _recoded(
    weight: Float32,
    codes: Float32,
    scales: Float32,
    zeros: Float32,
    gram: Float32,
    limits: tuple[int, int],
) -> Float32:
    """Bring one column's codes after the other's to where the error is least."""
    block = codes.shape[1] // scales.shape[1]
    found = codes.copy()
    off = (weight - (codes - np.repeat(zeros, block, axis=1)) * np.repeat(scales, block, 1)) @ gram
    for column in np.argsort(-np.diagonal(gram)):
        scale = scales[:, column // block]
        wanted = found[:, column] + off[:, column] / (gram[column, column] * scale)
        best = np.clip(np.rint(wanted), *limits)
        step = best - found[:, column]
        rows = np.flatnonzero(step)
        if rows.size:
            found[rows, column] = best[rows]
            off[rows] -= (step[rows] * scale[rows])[:, None] * gram[column]
    return found
