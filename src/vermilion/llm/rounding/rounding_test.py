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
from vermilion.llm.open_model import read_model_config
from vermilion.llm.rounding.error_compensation import (
    calibration_of,
    compensated,
    residual_error_of,
)
from vermilion.llm.rounding.forward import Forward, matrix_numbers, own_product
from vermilion.llm.rounding.round_products import cut, round_products, round_weights
from vermilion.llm.rounding.shrunk_hessian import shrunk_hessian
from vermilion.llm.rounding.texts import own_texts, python_reference
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


def plain_gptq(weight: Any, rows: Any, block: int) -> Any:
    """Return what a weight is rounded to by GPTQ as published, symmetric, in float64.

    The mean of x·xᵀ as it is, 1 % of its mean diagonal added; columns in the order of the diagonal;
    before that, scales of least error weighed by the diagonal. (E. Frantar et al., 2022.)
    """
    depth, columns = weight.shape
    gram = rows.T.astype(np.float64) @ rows / len(rows)
    importance = np.diag(gram)
    own = weight.T.astype(np.float64).reshape(columns, -1, block)
    ends = np.take_along_axis(own, np.abs(own).argmax(axis=2)[..., None], axis=2)
    tried = np.array([ends / -8 * part for part in np.linspace(1.0, 0.7, 13)])
    off = np.clip(np.rint(own / tried), -8, 7) * tried - own
    errors = (off**2 * importance.reshape(-1, block)).sum(axis=3, keepdims=True)
    chosen = np.take_along_axis(tried, errors.argmin(axis=0)[None], axis=0)[0, :, :, 0]
    order = np.argsort(-importance)
    damped = gram[order][:, order] + 0.01 * importance.mean() * np.eye(depth)
    upper = np.linalg.cholesky(np.linalg.inv(damped)).T
    scales, left = np.repeat(chosen, block, axis=1)[:, order], weight.T[:, order].astype(np.float64)
    made = np.empty_like(left)
    for at in range(depth):
        made[:, at] = np.clip(np.rint(left[:, at] / scales[:, at]), -8, 7) * scales[:, at]
        left[:, at:] -= np.outer((left[:, at] - made[:, at]) / upper[at, at], upper[at, at:])
    return made[:, np.argsort(order)].T.astype(np.float32)


def decibels(rows: Any, weight: Any, made: Any) -> float:
    """Return the signal-to-noise ratio of the outputs of the row in the middle."""
    wanted = rows @ weight
    ratios = np.square(wanted).sum(axis=1) / np.square(rows @ made - wanted).sum(axis=1)
    return float(np.median(10 * np.log10(ratios)))


_SHAPES = ((128, 48, 32), (192, 64, 32), (256, 32, 64), (256, 64, 128), (384, 32, 32))


@pytest.mark.parametrize("number", range(10))
def test_ten_layers_are_at_least_as_near_on_other_texts_as_with_plain_gptq(number: int) -> None:
    """Spectra that fall fast and slowly, numbers of different size, texts short and shorter.

    In every other layer, the first token of each text has a row ten times as large as others.
    """
    depth, columns, block = _SHAPES[number % 5]
    random = np.random.default_rng(number)
    falling = np.exp(-np.arange(depth) * (3 + number % 4) / depth)
    mixing = (
        random.standard_normal((depth, depth)) * falling @ random.standard_normal((depth, depth))
    )
    sizes = np.exp(0.7 * random.standard_normal(depth))
    first = 45 * random.standard_normal(depth) * (random.random(depth) < 0.05)

    def draw(count: int) -> Any:
        found = random.standard_normal((count, depth)) @ mixing / depth
        found = sizes * (found + 0.05 * random.standard_normal((count, depth)))
        found[::64] += first * (number % 2)
        return found.astype(np.float32)

    weight = (random.standard_normal((depth, columns)) / np.sqrt(depth)).astype(np.float32)
    seen, fresh = draw(128 * (-(-depth // 128)) * (2 if number % 3 else 8)), draw(512)

    def rounded(own: Any, gram: Any) -> Any:
        return round_weights(own, gram, block, is_symmetric=True).numbers()

    ours = decibels(fresh, weight, rounded(weight, shrunk_hessian(seen, 64, weight, rounded)))
    assert ours > decibels(fresh, weight, plain_gptq(weight, seen, block))
    assert ours > decibels(fresh, weight, rounded(weight, np.eye(depth, dtype=np.float32)))
    if number % 2:
        mean = seen.T @ seen / np.float32(len(seen))
        assert ours > decibels(fresh, weight, rounded(weight, mean)) + 1


def test_what_texts_relate_by_chance_is_left_out() -> None:
    """Numbers that do not belong together: weights are best rounded one by one."""
    random = np.random.default_rng(0)
    weight = random.standard_normal((256, 64)).astype(np.float32)
    seen, fresh = (random.standard_normal((512, 256)).astype(np.float32) for _ in range(2))

    def rounded(own: Any, gram: Any) -> Any:
        return round_weights(own, gram, 32, is_symmetric=True).numbers()

    ours = decibels(fresh, weight, rounded(weight, shrunk_hessian(seen, 64, weight, rounded)))
    nearest = decibels(fresh, weight, rounded(weight, np.eye(256, dtype=np.float32)))
    assert ours > nearest - 0.3
    assert ours > decibels(fresh, weight, plain_gptq(weight, seen, 32)) + 0.5


def head_rows(description: Any, tokens: list[int]) -> Any:
    """Return what the head reads of a text and of another one."""
    seen = {}

    def multiply(product: Product, read: Any) -> Any:
        seen[product.node] = read
        return own_product(product, read)

    Forward(description, np.array([tokens, tokens[::-1]])).run(multiply)
    made = seen["output"].numpy() @ matrix_numbers(description.head.matrix)
    return made if description.head.bias is None else made + description.head.bias


def test_numbers_on_their_way_are_those_of_the_model(tmp_path: Path) -> None:
    description = small(tmp_path / "m.gguf").describe()
    tokens = np.random.default_rng(3).integers(0, 320, 20).tolist()
    found, wanted = head_rows(description, tokens), logits_of(description, tokens)
    assert np.abs(found[:20] - wanted).max() < 1e-4 * np.abs(wanted).max()


@pytest.mark.needs("transformers", "torch")
@pytest.mark.parametrize("name", ["gemma3", "phi3, long rope", "phi", "lfm2, biases"])
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


def test_weights_compensate_for_errors_of_inputs_and_of_the_residual_stream() -> None:
    """Errors that are linear in the rows: on other rows, most is made up for."""
    random = np.random.default_rng(2)
    off, missed = (random.standard_normal((64, 64)).astype(np.float32) / 40 for _ in range(2))
    weight = random.standard_normal((64, 64)).astype(np.float32)
    exact, fresh = np.split(correlated(4096, 64), 2)
    read = exact + exact @ off
    seen = calibration_of(read, exact, read.T @ read / np.float32(len(read)))
    left = []
    for own in (weight, compensated(weight, seen, exact @ missed)):
        wanted = fresh @ (weight + missed)
        left.append(np.linalg.norm((fresh + fresh @ off) @ own - wanted) / np.linalg.norm(wanted))
    assert left[1] < 0.5 * left[0]
    same = compensated(weight, calibration_of(exact, exact, seen.hessian), None)
    assert np.abs(same - weight).max() == 0


def test_weights_that_tokens_begin_with_are_rounded_for_both(tmp_path: Path) -> None:
    """Their rows are nearer than for the head alone, and symmetric beside others that are not."""
    description = small(tmp_path / "m.gguf").describe()
    tokens = np.random.default_rng(3).integers(0, 320, (4, 64))
    wanted, errors = matrix_numbers(description.head.matrix), []
    for is_shared in (False, True):
        found = round_products(
            description, tokens, 32, is_symmetric=False, is_wanted=lambda _: True,
            done=lambda *_: None, is_shared=is_shared,
        )  # fmt: skip
        errors.append(np.linalg.norm(found["output"].numbers() - wanted))
        assert (found["output"].zeros == 8).all() == is_shared
        assert (found["0.ffn_down"].zeros != 8).any()
    assert errors[1] < errors[0]


def test_what_a_product_is_added_to_is_known(tmp_path: Path) -> None:
    """Behind attention and behind the inner part, what the rounded model is short of."""
    description = small(tmp_path / "m.gguf").describe()
    tokens = np.random.default_rng(3).integers(0, 320, (2, 16))
    exact, now = Forward(description, tokens), Forward(description, tokens)
    found = {}

    def multiply(product: Product, read: Any) -> Any:
        found[product.node] = residual_error_of(product, exact, now)
        return own_product(product, read) * 1.01

    for at in range(len(description.operations)):
        now.compute(at, multiply)
        exact.compute(at, own_product)
    added = {node for node, one in found.items() if one is not None}
    assert added == {"0.attn_output", "0.ffn_down"}
    assert np.abs(found["0.attn_output"]).max() == 0  # the embedding is nobody's product
    assert np.abs(found["0.ffn_down"]).max() > 0


def test_mixtures_are_refused(tmp_path: Path) -> None:
    description = mixture(tmp_path / "m.gguf", {}).describe()
    with pytest.raises(UnsupportedError, match="mixtures of experts"):
        head_rows(description, [1, 2, 3])


def test_pieces_lie_evenly_in_a_text() -> None:
    assert list(cut(list(range(100)), 10, 3)) == [list(range(at, at + 10)) for at in (0, 30, 60)]
    assert list(cut(list(range(25)), 10, 8)) == [list(range(10)), list(range(10, 20))]
    assert list(cut([1, 2], 10, 8)) == []


def test_a_model_writes_the_same_texts_every_time(tmp_path: Path) -> None:
    """More than are written at once, each from a token of its own."""
    small(tmp_path / "m.gguf")
    config = read_model_config(tmp_path / "m.gguf")
    texts, again = (own_texts(config, 20, 24, tmp_path / "cache") for _ in range(2))
    assert texts.shape == (20, 24)
    assert (texts == again).all()
    begin = config.source.begin() if config.source is not None else ()
    assert len(begin) == 1
    assert (texts[:, 0] == begin[0]).all()
    assert len(set(texts[:, 1])) > 10
    assert len(set(texts[:, 2:].reshape(-1))) > 50


def test_the_text_that_comes_with_python_is_prose() -> None:
    text = python_reference()
    assert len(text) > 100_000
    assert "  " not in text
