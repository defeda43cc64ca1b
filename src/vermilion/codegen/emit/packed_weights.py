"""Constant weights of products in the order in which the inner loop reads them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.numeric import Numeric
from vermilion.codegen.workers import aligned_bytes


def pack_weights(
    weights: NDArray[np.generic], numeric: Numeric, vectors: int, lanes: int
) -> NDArray[np.generic]:
    """Return weights in the order in which the inner loop reads them.

    Weights that have the packed type are rounded already.

    Shapes: weights (channels, taps_y, taps_x, run) → blocks of [tap][group][vector][part][lane][of
    part]; the last block has only the vectors that it needs, lanes and groups are filled up with
    zeros.
    """
    packed_type = np.dtype(numeric.weight_type)
    rounded = weights if weights.dtype == packed_type else numeric.to_weights(weights)
    channels, taps_y, taps_x, run = weights.shape
    groups = -(-run // numeric.group)
    count, depth = -(-channels // lanes), taps_y * taps_x * groups
    padded = rounded.reshape(channels, taps_y * taps_x, run)
    if channels % lanes or run % numeric.group:
        padded = np.zeros((count * lanes, taps_y * taps_x, groups * numeric.group), packed_type)
        padded[:channels, :, :run] = rounded.reshape(channels, -1, run)
    # (vector, lane, depth, of part, part), where of one part all of a group is moved as one word
    moved, of_part = np.dtype(np.uint32), 1
    if numeric.parts > 1:
        moved, of_part = packed_type, numeric.group // numeric.parts
    items = np.ascontiguousarray(padded).view(moved)
    items = items.reshape(count, lanes, depth, of_part, numeric.parts)
    packed = aligned_bytes(items.nbytes).view(moved)
    for start in range(0, count, vectors):
        block = items[start : start + vectors].transpose(2, 0, 4, 1, 3)
        place = items[:start].size
        packed[place : place + block.size].reshape(block.shape)[:] = block
    return packed.view(packed_type)
