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

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vermilion.llm.engine.description import Description, Product
from vermilion.llm.rounding.forward import Floats, Forward, matrix_numbers, tensor
from vermilion.llm.rounding.round_products import round_weights
from vermilion.llm.rounding.shrunk_hessian import mean_hessian, row_weights, shrunk

if TYPE_CHECKING:
    from torch import Tensor

# A product, its rows and the slopes at its outputs.
Watch = Callable[[Product, Floats, Floats], None]
# Tokens that slopes are computed for, and of how many columns a product's error is.
_TEXTS, _LENGTH = 4, 256
_COLUMNS = 64
_SHRINKING = 0.65  # of correlations between inputs, which so few rows have by chance


def costs_of_rounding(
    description: Description, tokens: NDArray[np.int64], block: int, *, is_symmetric: bool,
    is_shared: bool,
) -> Mapping[str, float]:  # fmt: skip
    """Return the divergence in nats a token that each product in 4 bits makes, by its node.

    `tokens` are texts, (texts, length); some are read, and one at a time where slopes are held.
    `is_shared`: the head's weights are those that tokens begin with, too.
    """
    few, head = tokens[:_TEXTS, :_LENGTH], description.head.node
    symmetric = {head} if is_shared else set()
    errors = _errors(description, few, block, is_symmetric=is_symmetric, symmetric=symmetric)
    found = dict.fromkeys(errors, 0.0)

    def watch(product: Product, rows: Floats, slopes: Floats) -> None:
        if product.node in errors:
            off = errors[product.node]
            columns: float = slopes.shape[1] / off.shape[1]
            sums = ((rows @ off) * slopes[:, :: _step(slopes.shape[1])]).sum(axis=0)
            found[product.node] += columns * float(np.square(sums).sum())

    for number, text in enumerate(few):
        begun, slopes = _slopes(description, text[None], number, watch)
        if is_shared:
            found[head] += _cost_of_rows(text, begun, slopes, block)
    return {name: one / (2 * few.size) for name, one in found.items()}


def _step(columns: int) -> int:
    return max(1, columns // _COLUMNS)


def _errors(
    description: Description, tokens: NDArray[np.int64], block: int, *, is_symmetric: bool,
    symmetric: Collection[str],
) -> Mapping[str, Floats]:  # fmt: skip
    """Return what some columns of each product are off by in 4 bits: (depth, columns)."""
    import torch

    found: dict[str, Floats] = {}

    def multiply(product: Product, read: Tensor) -> Tensor | None:
        weights = matrix_numbers(product.matrix)
        if not product.is_exact:
            rows = np.ascontiguousarray(read)
            some = np.ascontiguousarray(weights[:, :: _step(weights.shape[1])])
            mean = mean_hessian(rows, row_weights(rows), np.ones(len(rows), np.bool_))
            made = round_weights(
                some, shrunk(mean, _SHRINKING), block, is_polished=False,
                is_symmetric=is_symmetric or product.node in symmetric,
            )  # fmt: skip
            found[product.node] = made.numbers() - some
        return None if product is description.head else read @ tensor(weights)

    with torch.no_grad():
        Forward(description, tokens).run(multiply)
    return found


def _slopes(
    description: Description, text: NDArray[np.int64], seed: int, watch: Watch
) -> tuple[Floats, Floats]:
    """Have each product's rows and slopes at its outputs watched over one text, (1, length).

    Return the rows that its tokens begin with, and the slopes there.
    """
    import torch

    forward = Forward(description, text)
    made: list[Tensor] = []
    assert forward.embedded is not None, "it reads the tokens' rows"
    forward.embedded.requires_grad_(True)

    def multiply(product: Product, read: Tensor) -> Tensor:
        out = _watched(product, read, watch)
        if product is description.head:
            made.append(out if product.bias is None else out + tensor(product.bias))
        return out

    forward.run(multiply)
    logits = made[0] * description.logits_factor
    if description.logits_bound:
        logits = torch.tanh(logits / description.logits_bound) * description.logits_bound
    random = torch.Generator().manual_seed(seed)
    drawn = torch.multinomial(torch.softmax(logits.detach(), -1), 1, generator=random)[:, 0]
    torch.nn.functional.cross_entropy(logits, drawn, reduction="sum").backward()
    assert forward.embedded.grad is not None, "all logits come from there"
    return forward.embedded.detach().numpy(), forward.embedded.grad.numpy()


def _watched(product: Product, read: Tensor, watch: Watch) -> Tensor:
    """Multiply rows; weights are made anew on the way back, as all in floats take much memory."""
    import torch

    class Watched(torch.autograd.Function):  # type: ignore[misc]  # torch says Any
        @staticmethod
        def forward(ctx: Any, read: Tensor) -> Tensor:
            ctx.save_for_backward(read)
            return read @ tensor(matrix_numbers(product.matrix))

        @staticmethod
        def backward(ctx: Any, *slopes: Tensor) -> Tensor:
            (read,) = ctx.saved_tensors
            watch(product, read.numpy(), slopes[0].numpy())
            return slopes[0] @ tensor(matrix_numbers(product.matrix)).T

    out: Tensor = Watched.apply(read)
    return out


def _cost_of_rows(text: NDArray[np.int64], begun: Floats, slopes: Floats, block: int) -> float:
    """Return the sum of squares for rows in 4 bits, (tokens, width), that a text begins with."""
    plain = np.eye(begun.shape[1], dtype=np.float32)
    near = round_weights(begun.T, plain, block, is_symmetric=True, is_polished=False)
    off = (near.numbers().T - begun) * slopes
    # A token has the same errors wherever it stands.
    _, places = np.unique(text, return_inverse=True)
    sums = np.zeros((places.max() + 1, off.shape[1]), np.float32)
    np.add.at(sums, places, off)
    return float(np.square(sums).sum())


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
