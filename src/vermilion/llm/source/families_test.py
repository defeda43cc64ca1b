"""Every architecture: random weights, saved by transformers and read here, give its logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from described_numbers import logits_of
from random_models import MODELS, VOCABULARY, logits_of_torch
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
