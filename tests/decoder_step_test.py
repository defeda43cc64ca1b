"""A step of a decoder with its cache: what the bench's network computes, and where it is placed."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from vermilion import compile_model
from vermilion.ir.execute import open_session, run_session
from vermilion.runtime.session import Session

BENCH = Path(__file__).resolve().parent.parent / "bench"
LAYERS = 2


@pytest.fixture(scope="module")
def step() -> ir.Model:
    sys.path.insert(0, str(BENCH))
    try:
        from decoder_step import Decoder, decoder_step
    finally:
        sys.path.remove(str(BENCH))
    sizes = Decoder(layers=LAYERS, width=64, heads=4, groups=2, inner=96, vocabulary=64, longest=32)
    return decoder_step(sizes)


def inputs(
    tokens: np.ndarray, start: int, cache: list[np.ndarray], mask: np.ndarray
) -> dict[str, np.ndarray]:
    batch, length = tokens.shape
    names = [f"past.{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    places = np.tile(np.arange(start, start + length), (batch, 1))
    given = {"input_ids": tokens, "position_ids": places, "attention_mask": mask}
    return {**given, **dict(zip(names, cache, strict=True))}


TOKENS = np.random.default_rng(5).integers(0, 64, (2, 6))
EMPTY = [np.zeros((2, 2, 0, 16), np.float32)] * (2 * LAYERS)
MASK = np.ones((2, 6), np.int64)


def test_tokens_one_by_one_are_the_same_as_at_once(step: ir.Model) -> None:
    session = open_session(step)
    whole = run_session(session, inputs(TOKENS, 0, EMPTY, MASK))["logits"]
    cache = EMPTY
    for at in range(6):
        given = inputs(TOKENS[:, at : at + 1], at, cache, MASK[:, : at + 1])
        logits, *cache = run_session(session, given).values()
        np.testing.assert_allclose(logits[:, 0], whole[:, at], atol=1e-5)


@pytest.mark.needs("iree")
def test_all_of_it_is_a_program_for_a_gpu_at_any_size(step: ir.Model, tmp_path: Path) -> None:
    done = compile_model(step, target="gfx1201", cache_dir=tmp_path)
    summary = done.report.summary
    assert summary.offloaded_operators == summary.operators
    assert {row["status"] for row in done.report.verification} == {"proven"}
    assert done.report.verification[0]["samples"] == ["ordinary", "edges", "large"]
    expected = run_session(open_session(step), inputs(TOKENS, 0, EMPTY, MASK))["logits"]
    with Session(done.artifact) as session:
        for start, length in ((0, 4), (4, 2)):
            if start == 0:
                cache = EMPTY
            place = slice(start, start + length)
            given = inputs(TOKENS[:, place], start, cache, MASK[:, : start + length])
            logits, *cache = session.run(None, given)
            np.testing.assert_allclose(logits, expected[:, place], atol=1e-4)
