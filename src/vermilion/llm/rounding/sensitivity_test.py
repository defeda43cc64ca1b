"""What rounding a product costs, foretold by slopes, beside what it does cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vermilion.llm.engine.description import Product
from vermilion.llm.rounding.forward import Forward, matrix_numbers, own_product, tensor
from vermilion.llm.rounding.round_products import round_weights, to_bytes
from vermilion.llm.rounding.sensitivity import chosen_for_bytes, costs_of_rounding
from vermilion.llm.source.read_gguf_test import small

pytestmark = pytest.mark.needs("torch")


def logarithms(description: Any, tokens: Any, changed: str = "", weights: Any = None) -> Any:
    """Return the logarithms of what is expected after each token, with one product's weights."""
    import torch

    seen = {}

    def multiply(product: Product, read: Any) -> Any:
        own = read @ tensor(weights) if product.node == changed else own_product(product, read)
        seen[product.node] = own
        return own

    with torch.no_grad():
        Forward(description, tokens).run(multiply)
        return torch.log_softmax(seen[description.head.node], -1).double()


def test_costs_are_about_the_divergence_that_rounding_makes(tmp_path: Path) -> None:
    description = small(tmp_path / "m.gguf").describe()
    tokens = np.random.default_rng(3).integers(0, 320, (4, 96))
    found = costs_of_rounding(description, tokens, 32, is_symmetric=False, is_shared=False)
    products = [one for one in description.operations if isinstance(one, Product)]
    assert set(found) == {one.node for one in products}
    exact, ratios = logarithms(description, tokens), []
    for product in products:
        weights = matrix_numbers(product.matrix)
        plain = np.eye(len(weights), dtype=np.float32)
        rounded = round_weights(weights, plain, 32, is_symmetric=False, is_polished=False)
        now = logarithms(description, tokens, product.node, rounded.numbers())
        ratios.append(found[product.node] / float((exact.exp() * (exact - now)).sum(-1).mean()))
    # Those weights are rounded for inputs that belong together, these are not; random texts hardly
    # tell the difference.
    assert min(ratios) > 0.25
    assert max(ratios) < 4
    assert 0.5 < np.median(ratios) < 2


def test_an_embedding_of_the_same_weights_adds_to_the_costs_of_the_head(tmp_path: Path) -> None:
    description = small(tmp_path / "m.gguf").describe()
    tokens = np.random.default_rng(3).integers(0, 320, (2, 64))
    apart, shared = (
        costs_of_rounding(description, tokens, 32, is_symmetric=True, is_shared=one)
        for one in (False, True)
    )
    head = description.head.node
    assert shared[head] > 1.1 * apart[head]
    assert {n: c for n, c in apart.items() if n != head} == pytest.approx(
        {n: c for n, c in shared.items() if n != head}
    )


def test_what_costs_most_for_its_size_has_8_bits() -> None:
    costs = {"large": 4.0, "small": 2.0, "cheap": 0.1}
    weights = {"large": 400, "small": 100, "cheap": 500}
    chosen = [chosen_for_bytes(costs, weights, mean_bits=bits) for bits in (4, 4.4, 6, 8)]
    assert [set(one) for one in chosen] == [
        set(), {"small"}, {"small", "large"}, {"small", "large", "cheap"}
    ]  # fmt: skip
    chosen = [chosen_for_bytes(costs, weights, most_cost=most) for most in (7, 5, 3, 0.1)]
    assert [set(one) for one in chosen] == [
        set(),
        {"small"},
        {"small", "large"},
        {"small", "large"},
    ]


def test_8_bits_are_within_half_a_step(tmp_path: Path) -> None:
    """Blocks of nothing, and rows that no whole blocks make, too."""
    weight = np.random.default_rng(0).standard_normal((80, 5)).astype(np.float32)
    weight[:32, 2] = 0
    made = to_bytes(weight, 32)
    assert made.bits == 8
    assert made.codes.shape == (5, 80)
    step = np.repeat(made.scales, 32, axis=1)[:, :80].T
    assert (np.abs(made.numbers() - weight) <= 0.5001 * step).all()
    assert not made.numbers()[:32, 2].any()
