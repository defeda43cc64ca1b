"""The texts that weights are rounded for where nobody gives one: what the model itself writes.

They are of every kind that the model knows, and nothing is downloaded or passed on. (SmolLM2-135M,
each product's weights rounded for 2,048 tokens, error of its outputs on other prose: 1 to 3 dB less
than for as many of Python's reference.)
Source of the idea: Z. Liu et al., "LLM-QAT: Data-Free Quantization Aware Training for Large
Language Models", 2023, section 3.1.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import OptionError
from vermilion.llm.decoder import EngineOptions
from vermilion.llm.genai_config import GenaiConfig
from vermilion.llm.open_model import open_own_model
from vermilion.progress import Progress, no_progress

_TOGETHER = 16  # texts that are written at once: as many as the kernels for single tokens take
_LEAST_CHARACTERS = 200  # of a topic: shorter ones are a line or two


def own_texts(
    config: GenaiConfig, count: int, length: int, cache: Path, progress: Progress = no_progress
) -> NDArray[np.int64]:
    """Return texts that a model writes: (count, length) tokens, the same every time.

    Each begins with a token drawn from all, and goes on past tokens that end a text; every next one
    is drawn with the probability that the model gives it.
    Raises: UnsupportedError where our engine does not run the model.
    """
    decoder = open_own_model(config, EngineOptions(engine="native", cache=cache)).decoder
    begin = () if config.source is None else config.source.begin()
    random = np.random.default_rng(0)
    texts = []
    for first in range(0, count, _TOGETHER):
        batch = min(_TOGETHER, count - first)
        tokens = np.empty((batch, length), np.int64)
        given = len(begin) + 1
        tokens[:, : len(begin)] = begin
        tokens[:, given - 1] = random.integers(0, decoder.vocabulary_size, batch)
        state = decoder.start(batch, length)
        logits = state.forward(tokens[:, :given])
        for at in range(given, length):
            tokens[:, at] = _drawn(logits, random)
            progress("writing a text", first * length + at * batch, count * length)
            if at + 1 < length:
                logits = state.forward(tokens[:, at : at + 1])
        texts.append(tokens)
    return np.concatenate(texts)


def _drawn(logits: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.int64]:
    """Return a token of each row, drawn by its probability."""
    sums = np.cumsum(np.exp(logits - logits.max(axis=1, keepdims=True)), axis=1, dtype=np.float64)
    wanted = random.random(len(sums)) * sums[:, -1]
    pairs = zip(sums, wanted, strict=True)
    last = logits.shape[1] - 1
    found = [min(int(np.searchsorted(own, one, side="right")), last) for own, one in pairs]
    return np.array(found, np.int64)


def python_reference() -> str:
    """Return the prose of Python's language reference, which comes with Python.

    Raises: OptionError where this Python was installed without it.
    """
    if find_spec("pydoc_data") is None or find_spec("pydoc_data.topics") is None:
        raise OptionError(
            "this Python has no `pydoc_data.topics`, whose text is used where none is given",
            hint="`--calibration FILE`, a text of some thousand words",
        )
    from pydoc_data.topics import topics

    kept = [text for text in topics.values() if len(text) >= _LEAST_CHARACTERS]
    prose = re.sub(r"\n(?=[^\n])[ ]*(?=\S)", " ", "\n\n".join(kept))
    return re.sub(r"[ ]{2,}", " ", re.sub(r"\*{2,}|[=~\-]{4,}", " ", prose))
