"""Rounding weights so that errors cancel: each number takes over the errors of those before it.

For a row e of errors (weight less rounded weight) and H the mean of x·xᵀ, the error at the output
is e·H·eᵀ = Σ_j (Σ_{i≤j} R_ij e_i)², where H = R·Rᵀ with R upper triangular. Going through j in
order, the sum of j is made as small as the grid allows by rounding
    w_j + Σ_{i<j} e_i · R_ij ÷ R_jj
instead of w_j. Numbers that are multiplied with large inputs come first.
Source: E. Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers", 2022; that it is successive cancellation (Babai's nearest plane) is J. Chen et al.,
"The Geometry of LLM Quantization", 2025. Written so, one Cholesky is all the algebra it needs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vermilion.quantize.algorithms.native_cancel import Levels, native_cancel

Float32 = NDArray[np.float32]

# Part of the mean diagonal that is added to it. Source: Frantar et al., section 3.3.
_DAMPING = 0.01
_MOST_DAMPING = 10.0


def round_compensated(
    weights: Float32,
    gram: Float32,
    scale: Float32,
    limits: tuple[int, int],
    zero_point: Float32 | float = 0.0,
) -> Float32:
    """Return the integers for `weights` that do least damage to the output.

    Shapes: weights (G, O, K), gram (G, K, K), scale and zero point broadcast to (G, O, K).
    """
    integers = np.empty(weights.shape, np.float32)
    round_into(integers, weights, gram, scale, limits, zero_point)
    return integers


def round_into(
    integers: NDArray[np.generic],
    weights: Float32,
    gram: Float32,
    scale: Float32,
    limits: tuple[int, int],
    zero_point: Float32 | float = 0.0,
    mean: Float32 | None = None,
) -> Float32:
    """Fill `integers`, of 8 bits or float32; give what the errors add to each output, (G, O).

    That is for the row `mean`, (G, K), and nothing without it. `integers` and `weights` may lie
    in memory in any order.
    """
    order = np.argsort(-np.diagonal(gram, axis1=1, axis2=2), axis=1, kind="stable")
    lower = _cholesky(_reordered(gram, order[:, ::-1]))
    groups, rows, width = weights.shape
    scales, zeros = (_by_column(np.asarray(x, np.float32), order) for x in (scale, zero_point))
    levels = Levels(
        scales=_spread(scales, groups, rows),
        lowest=_spread(limits[0] - zeros, groups, rows),
        highest=_spread(limits[1] - zeros, groups, rows),
        zeros=_spread(zeros, groups, rows),
    )
    # Row by row what its last number takes over, and those before it, from its end.
    factors = np.ascontiguousarray(lower.transpose(0, 2, 1))
    means = np.zeros((groups, width), np.float32) if mean is None else np.ascontiguousarray(mean)
    return native_cancel(weights, order, factors, levels, means, integers)


def floats_compensated(weights: Float32, gram: Float32, bits: int) -> Float32:
    """Return the floats with so many bits for `weights` that do least damage to the output.

    What the last number of a row multiplies, such as a bias, is decided first: it is rounded to
    the nearest, and the others make up for it. Shapes: weights (G, O, K), gram (G, K, K).
    """
    own = np.diagonal(gram, axis1=1, axis2=2).copy()
    own[:, -1] = np.inf
    order = np.argsort(-own, axis=1, kind="stable")
    lower = _cholesky(_reordered(gram, order[:, ::-1]))
    factors = np.ascontiguousarray(lower.transpose(0, 2, 1))
    found = np.empty(weights.shape, np.float32)
    means = np.zeros(own.shape, np.float32)
    native_cancel(np.ascontiguousarray(weights), order, factors, bits, means, found)
    return found


def _cholesky(gram: Float32) -> Float32:
    """Factor all groups at once; float32 sums of many rows may lose the smallest eigenvalues."""
    mean = np.diagonal(gram, axis1=1, axis2=2).mean(axis=1)
    mean = np.where(mean > 0.0, mean, np.float32(1.0))  # a group that is never reached
    places = np.arange(gram.shape[1])
    damping = _DAMPING
    while damping < _MOST_DAMPING:
        damped = gram.copy()
        damped[:, places, places] += (np.float32(damping) * mean)[:, None]
        try:
            lower: Float32 = np.linalg.cholesky(damped)
        except np.linalg.LinAlgError:
            damping *= 10.0
            continue
        return lower
    return np.broadcast_to(np.eye(len(places), dtype=np.float32), gram.shape)


def _reordered(gram: Float32, order: NDArray[np.intp]) -> Float32:
    return np.stack([each[places][:, places] for each, places in zip(gram, order, strict=True)])


def _by_column(array: Float32, order: NDArray[np.intp]) -> Float32:
    """Return (G, O, K) as (G, K, O), K in the order of decision; K = 1 stays, it fits them all."""
    array = array.reshape((1,) * (3 - array.ndim) + array.shape).transpose(0, 2, 1)
    if array.shape[1] == 1:
        return array
    groups = np.broadcast_to(array, (len(order), *array.shape[1:]))
    return np.stack([each[places] for each, places in zip(groups, order, strict=True)])


def _spread(array: Float32, groups: int, rows: int) -> Float32:
    """Return (G, K or 1, O) in memory of its own."""
    wide = np.broadcast_to(np.asarray(array, np.float32), (groups, array.shape[1], rows))
    return np.ascontiguousarray(wide)
