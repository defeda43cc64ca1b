"""Weights rounded for what they are multiplied with: numbers on their way, and what errors cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from described_numbers import logits_of
from random_models import MODELS
from vermilion.errors import UnsupportedError
from vermilion.llm.engine.description import Product
from vermilion.llm.rounding.forward import Forward, matrix_numbers
from vermilion.llm.rounding.round_products import cut, round_products, round_weights
from vermilion.llm.rounding.texts import calibration_text
from vermilion.llm.source.open_source import FolderSource
from vermilion.llm.source.read_gguf_test import mixture, small


def correlated(rows: int, width: int) -> Any:
    """Return rows whose numbers belong together, some of them large."""
    random = np.random.default_rng(0)
    mixed = random.standard_normal((rows, width // 4)) @ random.standard_normal((width // 4, width))
    return (mixed * np.linspace(0.1, 3, width) + 0.05 * mixed.std()).astype(np.float32)


@pytest.mark.parametrize("is_symmetric", [True, False])
@pytest.mark.parametrize(("depth", "block"), [(128, 32), (96, 64), (160, 128)])
def test_errors_cancel(depth: int, block: int, is_symmetric: bool) -> None:
    random = np.random.default_rng(1)
    rows, weight = correlated(600, depth), random.standard_normal((depth, 48)).astype(np.float32)
    gram = rows.T @ rows / np.float32(len(rows))
    own = round_weights(weight, gram, block, is_symmetric=is_symmetric)
    plain = round_weights(weight, np.eye(depth, dtype=np.float32), block, is_symmetric=is_symmetric)
    assert own.codes.max() <= 15
    assert own.codes.shape == (48, depth)
    assert own.scales.shape == (48, -(-depth // block))
    errors = [np.linalg.norm(rows @ (one.numbers() - weight)) for one in (own, plain)]
    assert errors[0] < 0.7 * errors[1]
    assert np.linalg.norm(plain.numbers() - weight) < 0.15 * np.linalg.norm(weight)


def head_rows(description: Any, tokens: list[int]) -> Any:
    """Return what the head reads of a text and of another one."""
    seen = {}

    def choose(product: Product, read: Any) -> Any:
        seen[product.node] = read
        return matrix_numbers(product.matrix)

    Forward(description, np.array([tokens, tokens[::-1]])).run(choose, lambda *_: None)
    made = seen["output"] @ matrix_numbers(description.head.matrix)
    return made if description.head.bias is None else made + description.head.bias


def test_numbers_on_their_way_are_those_of_the_model(tmp_path: Path) -> None:
    description = small(tmp_path / "m.gguf").describe()
    tokens = np.random.default_rng(3).integers(0, 320, 20).tolist()
    found, wanted = head_rows(description, tokens), logits_of(description, tokens)
    assert np.abs(found[:20] - wanted).max() < 1e-4 * np.abs(wanted).max()


@pytest.mark.needs("transformers", "torch")
@pytest.mark.parametrize("name", ["gemma3", "phi3, long rope", "phi"])
def test_so_are_those_of_other_architectures(name: str, tmp_path: Path) -> None:
    MODELS[name].save(tmp_path)
    description = FolderSource(tmp_path).describe()
    tokens = np.random.default_rng(3).integers(0, 160, 20).tolist()
    found = head_rows(description, tokens) * description.logits_factor
    if description.logits_bound:
        found = np.tanh(found / description.logits_bound) * description.logits_bound
    wanted = logits_of(description, tokens)
    assert np.abs(found[:20] - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_products_are_rounded_one_after_the_other(tmp_path: Path) -> None:
    """Each for what it reads once those before it are rounded; others stay as they are."""
    description = small(tmp_path / "m.gguf").describe()
    tokens = np.random.default_rng(3).integers(0, 320, (4, 64))
    steps: list[tuple[int, int]] = []
    found = round_products(
        description, tokens, 32, is_symmetric=True,
        is_wanted=lambda product: product.node != "0.attn_v",
        done=lambda done, total: steps.append((done, total)),
    )  # fmt: skip
    names = {one.node for one in description.operations if isinstance(one, Product)}
    assert set(found) == names - {"0.attn_v"}
    assert steps[-1][0] == steps[-1][1] == len(description.operations)


def test_mixtures_are_refused(tmp_path: Path) -> None:
    description = mixture(tmp_path / "m.gguf", {}).describe()
    with pytest.raises(UnsupportedError, match="mixtures of experts"):
        head_rows(description, [1, 2, 3])


def test_pieces_lie_evenly_in_a_text() -> None:
    assert list(cut(list(range(100)), 10, 3)) == [list(range(at, at + 10)) for at in (0, 30, 60)]
    assert list(cut(list(range(25)), 10, 8)) == [list(range(10)), list(range(10, 20))]
    assert list(cut([1, 2], 10, 8)) == []


def test_the_text_that_comes_with_python_is_prose() -> None:
    text = calibration_text()
    assert len(text) > 100_000
    assert "  " not in text
