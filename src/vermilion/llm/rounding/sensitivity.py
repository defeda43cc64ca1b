"""What rounding each product to 4 bits costs a model, and which stay in 8 bits for it.

To second order, the divergence of a model whose logits are off by δ is half of δ·F·δ, where F is
the covariance of the slopes of -log p(token) for tokens drawn as the model expects them. One
backward pass over a few texts gives those slopes g at the outputs of every product: a column of it
that is off by e costs half of (Σ g · x·e)², the sum over the rows x of a text. Errors of different
columns are unrelated.

Source of the idea: J. Martens, "New Insights and Perspectives on the Natural Gradient Method",
2020, sections 5 and 9 (the Fisher matrix as the curvature of the divergence).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vermilion.llm.engine.description import Description, Product
from vermilion.llm.rounding.forward import Floats, Forward, matrix_numbers, tensor
from vermilion.llm.rounding.round_products import round_weights
from vermilion.llm.rounding.shrunk_hessian import mean_hessian, row_weights, shrunk

if TYPE_CHECKING:
    from torch import Tensor

# Tokens that slopes are computed for, and of how many columns a product's error is.
_TEXTS, _LENGTH = 4, 256
_COLUMNS = 64
_SHRINKING = 0.65  # of correlations between inputs, which so few rows have by chance


def costs_of_rounding(
    description: Description, tokens: NDArray[np.int64], block: int, *, is_symmetric: bool,
    is_shared: bool,
) -> Mapping[str, float]:  # fmt: skip
    """Return the divergence in nats a token that each product in 4 bits makes, by its node.

    `tokens` are texts, (texts, length); some are read. `is_shared`: the head's weights are those
    that tokens begin with, too.
    """
    import torch

    few = tokens[:_TEXTS, :_LENGTH]
    found: dict[str, float] = {}
    forward = Forward(description, few)
    assert forward.embedded is not None, "it reads the tokens' rows"
    forward.embedded.requires_grad_(True)
    made: list[Tensor] = []

    def multiply(product: Product, read: Tensor) -> Tensor:
        weights = matrix_numbers(product.matrix)
        out = read @ tensor(weights)
        rows = read.detach().numpy()

        def cost(slopes: Tensor) -> None:
            is_both = is_shared and product is description.head
            own = is_symmetric or is_both
            found[product.node] = _cost(
                rows, slopes.numpy(), weights, block, is_symmetric=own, length=few.shape[1]
            )

        if not product.is_exact:
            out.register_hook(cost)
        if product is description.head:
            made.append(out if product.bias is None else out + tensor(product.bias))
        return out

    forward.run(multiply)
    logits = made[0] * description.logits_factor
    if description.logits_bound:
        logits = torch.tanh(logits / description.logits_bound) * description.logits_bound
    random = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(torch.softmax(logits.detach(), -1), 1, generator=random)[:, 0]
    torch.nn.functional.cross_entropy(logits, drawn, reduction="sum").backward()
    slopes = forward.embedded.grad
    if is_shared and slopes is not None:
        begun = forward.embedded.detach().numpy()
        found[description.head.node] += _cost_of_rows(few, begun, slopes.numpy(), block)
    return found


def _cost(
    rows: Floats, slopes: Floats, weights: Floats, block: int, *, is_symmetric: bool, length: int
) -> float:
    """Return what a product in 4 bits costs a token, by some of its columns."""
    step = max(1, weights.shape[1] // _COLUMNS)
    some = np.ascontiguousarray(weights[:, ::step])
    every = np.ones(len(rows), np.bool_)
    hessian = shrunk(mean_hessian(rows, row_weights(rows), every), _SHRINKING)
    rounded = round_weights(some, hessian, block, is_symmetric=is_symmetric, is_polished=False)
    off = rows @ (rounded.numbers() - some) * slopes[:, ::step]
    off = off.reshape(-1, length, some.shape[1]).sum(axis=1)
    columns: float = weights.shape[1] / some.shape[1]
    return float(np.square(off).sum()) * columns / (2 * len(rows))


def _cost_of_rows(tokens: NDArray[np.int64], begun: Floats, slopes: Floats, block: int) -> float:
    """Return what rows in 4 bits cost a token, (tokens, width), that texts begin with."""
    plain = np.eye(begun.shape[1], dtype=np.float32)
    near = round_weights(begun.T, plain, block, is_symmetric=True, is_polished=False)
    off = ((near.numbers().T - begun) * slopes).reshape(*tokens.shape, -1)
    total = 0.0
    for text, own in zip(tokens, off, strict=True):
        # A token has the same errors wherever it stands.
        _, places = np.unique(text, return_inverse=True)
        sums = np.zeros((places.max() + 1, own.shape[1]), np.float32)
        np.add.at(sums, places, own)
        total += float(np.square(sums).sum())
    return total / (2 * tokens.size)


def chosen_for_bytes(
    costs: Mapping[str, float], weights: Mapping[str, int], *, mean_bits: float = 8.0,
    most_cost: float = 0.0,
) -> frozenset[str]:  # fmt: skip
    """Return what stays in 8 bits, so that the rest costs no more than `most_cost`; 0: no matter.

    A weight has no more than `mean_bits` on average, 4 at least. `costs` and `weights`, the count
    of weights, have the same keys. What costs most for its size comes first; what does not fit any
    more is left out.
    """
    room, left = (mean_bits - 4) / 4 * sum(weights.values()), sum(costs.values())
    chosen = set()
    for name in sorted(costs, key=lambda one: -costs[one] / weights[one]):
        if most_cost and left <= most_cost:
            break
        if weights[name] <= room:
            chosen.add(name)
            room -= weights[name]
            left -= costs[name]
    return frozenset(chosen)
