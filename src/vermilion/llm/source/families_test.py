"""Every architecture: random weights, saved by transformers and read here, give its logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from described_numbers import logits_of
from random_models import MODELS, VOCABULARY, RandomModel, logits_of_torch
from vermilion.llm.source.open_source import FolderSource

pytestmark = pytest.mark.needs("transformers", "torch")


@pytest.mark.parametrize("name", MODELS)
def test_its_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = MODELS[name].save(tmp_path)
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, 40).tolist()
    description = FolderSource(tmp_path).describe()
    for count in (8, 40):  # with windows of 6, and a length of 16 for long rope
        theirs = logits_of_torch(model, tokens[:count])
        ours = logits_of(description, tokens[:count])
        assert np.abs(ours - theirs).max() < 2e-5 * np.abs(theirs).max()


_VARIANTS = {
    "exaone4, turned nowhere": RandomModel(
        "Exaone4", {"head_dim": 16, "sliding_window": 6, "layer_types": ["full_attention"] * 4}
    ),
    "gemma2, exact activation": RandomModel(
        "Gemma2", {"head_dim": 16, "sliding_window": 6, "hidden_activation": "gelu"}
    ),
}


@pytest.mark.parametrize("name", _VARIANTS)
def test_what_a_configuration_may_say_of_a_family(name: str, tmp_path: Path) -> None:
    model = _VARIANTS[name].save(tmp_path)
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, 40).tolist()
    theirs = logits_of_torch(model, tokens)
    ours = logits_of(FolderSource(tmp_path).describe(), tokens)
    assert np.abs(ours - theirs).max() < 2e-5 * np.abs(theirs).max()
