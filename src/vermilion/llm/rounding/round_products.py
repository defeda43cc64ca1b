"""A decoder's products in 4 bits or 8, each rounded for what it reads behind rounded ones.

Weights are rounded one after the other, and each takes over the errors of those before it, weighed
by how the numbers that they are multiplied with belong together (`quantize/algorithms/compensate`);
those that are multiplied with large numbers come first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vermilion.llm.engine.description import Description, Product
from vermilion.llm.rounding.error_compensation import (
    Calibration,
    calibration_of,
    compensated,
    residual_error_of,
)
from vermilion.llm.rounding.forward import Floats, Forward, matrix_numbers, own_product, tensor
from vermilion.llm.rounding.shrunk_hessian import shrunk_hessian
from vermilion.quantize.algorithms.compensate import round_compensated
from vermilion.quantize.algorithms.descend import descend
from vermilion.quantize.one_thread import one_thread
from vermilion.quantize.weight_only import block_parameters

_LEVELS = 15
_MIDDLE = 128  # of codes of 8 bits
# Rows of the head that are looked at together: a vocabulary is long.
_MOST_COLUMNS = 8192
# The share of the identity, of the mean of the diagonal, where tokens begin with the same weights.
# (SmolLM2-135M in blocks of 32: of its divergence of 0.104 nats on its own texts, 0.014 are the
# head's and 0.016 the embedding's. With a share of 0, 0.1, 0.3, 1 and 3 the mean square error at
# the head is 1, 1.07, 1.20, 1.49 and 1.90 times as large, that of the rows 1, 0.75, 0.66, 0.60 and
# 0.57 times: together about 0.033, 0.029, 0.029, 0.032 and 0.038. Of the whole model it was not
# to be told from none: 0.078 and 0.081 on one text, 0.100 and 0.094 on another.)
_OF_IDENTITY = 0.2


@dataclass(frozen=True, eq=False)
class Rounded:
    """A product's weights: codes (columns, depth) of `bits`; scales, zeros (columns, blocks)."""

    codes: NDArray[np.uint8]
    scales: Floats
    zeros: NDArray[np.uint8]
    block: int
    bits: Literal[4, 8] = 4

    def numbers(self) -> Floats:
        """Return what they stand for: (depth, columns)."""
        width = self.codes.shape[1]
        scales, zeros = (
            np.repeat(one, self.block, axis=1)[:, :width].astype(np.float32)
            for one in (self.scales, self.zeros)
        )
        return np.ascontiguousarray(((self.codes - zeros) * scales).T)


def to_bytes(weight: Floats, block: int) -> Rounded:
    """Round a matrix (depth, columns) to the nearest numbers of 8 bits, symmetric."""
    depth, columns = weight.shape
    rows = np.pad(weight.T, ((0, 0), (0, -depth % block))).reshape(columns, -1, block)
    most = np.abs(rows).max(axis=2)
    scales = np.where(most > 0, most, np.float32(1)) / np.float32(_MIDDLE - 1)
    near = np.rint(rows / scales[:, :, None]) + np.float32(_MIDDLE)
    codes = near.reshape(columns, -1)[:, :depth].astype(np.uint8)
    zeros = np.full(scales.shape, _MIDDLE, np.uint8)
    return Rounded(codes, scales.astype(np.float32), zeros, block, 8)


def round_weights(
    weight: Floats, gram: Floats, block: int, *, is_symmetric: bool, is_polished: bool = True
) -> Rounded:
    """Round a matrix (depth, columns) that is multiplied with rows whose mean x·xᵀ is `gram`.

    `is_polished`: scales and codes are brought to their best in turn at the end, which takes long.
    """
    pieces = [
        _round_some(weight[:, at : at + _MOST_COLUMNS], gram, block, is_symmetric, is_polished)
        for at in range(0, weight.shape[1], _MOST_COLUMNS)
    ]
    return joined(pieces)


def joined(parts: Sequence[Rounded]) -> Rounded:
    """Return several side by side."""
    if len(parts) == 1:
        return parts[0]
    return Rounded(
        np.concatenate([one.codes for one in parts]),
        np.concatenate([one.scales for one in parts]),
        np.concatenate([one.zeros for one in parts]),
        parts[0].block,
        parts[0].bits,
    )


def _round_some(
    weight: Floats, gram: Floats, block: int, is_symmetric: bool, is_polished: bool
) -> Rounded:
    depth, columns = weight.shape
    short = -depth % block
    rows = np.pad(weight.T, ((0, 0), (0, short))).reshape(columns, -1, block)
    own = np.diagonal(gram)
    weighing = np.pad(own, (0, short)).reshape(1, -1, block)
    scales, zeros = (
        one[:, :, 0] for one in block_parameters(rows, weighing, symmetric=is_symmetric)
    )
    spread = [np.repeat(one, block, axis=1)[None, :, :depth] for one in (scales, zeros)]
    with one_thread():
        codes = round_compensated(
            np.ascontiguousarray(weight.T)[None], gram[None], spread[0], (0, _LEVELS), spread[1]
        )[0]
        if is_polished and not short:
            codes, scales = descend(
                np.ascontiguousarray(weight.T), codes, scales, zeros, gram, (0, _LEVELS)
            )
    return Rounded(codes.astype(np.uint8), scales.astype(np.float32), zeros.astype(np.uint8), block)


def round_products(
    description: Description,
    tokens: NDArray[np.int64],
    block: int,
    *,
    is_symmetric: bool,
    is_wanted: Callable[[Product], bool],
    done: Callable[[int, int], None],
    is_shared: bool = False,
    in_bytes: Collection[str] = (),
) -> Mapping[str, Rounded]:
    """Return the rounded weights of the wanted products, by their nodes.

    `tokens` are texts of one length, (texts, length). What is not wanted stays as it is.
    `is_shared`: the head's weights are those that tokens begin with, too; those are symmetric.
    `in_bytes`: the nodes of those that are rounded to 8 bits.
    Raises: UnsupportedError for what is not computed here.
    """
    import torch

    found: dict[str, Rounded] = {}
    exact, now = Forward(description, tokens), Forward(description, tokens)
    last: list[tuple[tuple[str, int, int], Calibration]] = []  # the rows that were read last
    length = tokens.shape[1]

    def rounded_for(weight: Floats, hessian: Floats) -> Floats:
        made = round_weights(weight, hessian, block, is_symmetric=is_symmetric, is_polished=False)
        return made.numbers()

    def choose(product: Product, read: Floats) -> Floats:
        weights = matrix_numbers(product.matrix)
        if product.is_exact or not is_wanted(product):
            return weights
        is_both = is_shared and product is description.head
        if is_both and product.node in in_bytes:
            found[product.node] = to_bytes(weights, block)
            return found[product.node].numbers()
        own = (product.source.buffer, product.source.offset, product.source.width)
        if not last or last[0][0] != own:
            hessian = shrunk_hessian(read, length, weights, rounded_for)
            before = np.asarray(exact.rows(product.source))
            last[:] = [(own, calibration_of(read, before, hessian))]
        seen = last[0][1]
        wanted = compensated(weights, seen, residual_error_of(product, exact, now))
        hessian = with_identity(seen.hessian) if is_both else seen.hessian
        if product.node in in_bytes:
            rounded = to_bytes(wanted, block)
        else:
            rounded = round_weights(wanted, hessian, block, is_symmetric=is_symmetric or is_both)
        found[product.node] = rounded
        return rounded.numbers()

    def multiply(product: Product, read: torch.Tensor) -> torch.Tensor | None:
        weights = choose(product, np.ascontiguousarray(read))
        return None if product is description.head else read @ tensor(weights)

    def multiply_exact(product: Product, read: torch.Tensor) -> torch.Tensor | None:
        return None if product is description.head else own_product(product, read)

    count = len(description.operations)
    with torch.no_grad():
        for at in range(count):
            now.compute(at, multiply)
            exact.compute(at, multiply_exact)
            done(at + 1, count)
    return found


def with_identity(hessian: Floats) -> Floats:
    """Return the Hessian of weights that are multiplied with, and that tokens begin with as well.

    What tokens begin with is read as it is: to those rows, every number counts alike.
    """
    made = hessian.copy()
    made[np.diag_indices(len(made))] += np.float32(_OF_IDENTITY * np.diagonal(hessian).mean())
    return made


def cut(tokens: list[int], length: int, most: int) -> Iterator[list[int]]:
    """Yield up to `most` pieces of a text, of one length, spread evenly over it."""
    count = len(tokens) // length
    wanted = min(count, most)
    for number in range(wanted):
        at = (number * count // wanted) * length
        yield tokens[at : at + length]
