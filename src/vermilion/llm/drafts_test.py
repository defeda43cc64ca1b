"""What is read ahead of its choice: found in the text, and changing no token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import small_decoders
from vermilion.errors import OptionError
from vermilion.llm.decoder import Decoder, EngineOptions, open_decoder
from vermilion.llm.drafts import follow
from vermilion.llm.genai_config import read_genai_config
from vermilion.llm.generation import Ends, Generation
from vermilion.llm.search import SearchOptions


@pytest.mark.parametrize(
    ("text", "count", "wanted"),
    [
        ([1, 2, 3, 4, 9, 2, 3], 3, [4, 9, 2]),
        ([1, 2, 3, 4, 9, 2, 3], 1, [4]),
        ([1, 2, 3, 4, 9, 5, 3], 3, []),  # one token that stood before is too little
        ([2, 3, 5, 1, 2, 3, 6, 2, 3], 2, [6, 2]),  # of places that agree as far, the last
        ([1, 2, 3, 5, 8, 2, 3, 6, 1, 2, 3], 2, [5, 8]),  # the one that agrees further
        ([7, 7, 7, 7], 4, [7]),  # up to the end of the text
        ([1, 2], 4, []),
        ([3], 4, []),
        ([2, 3, 4, 2, 3], 0, []),
    ],
)
def test_what_followed_the_same_tokens(text: list[int], count: int, wanted: list[int]) -> None:
    assert follow(np.array(text, np.int32), count).tolist() == wanted


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    root = tmp_path_factory.mktemp("drafts")
    folder = small_decoders.decoder_folder(root / "small", small_decoders.Options(window=40))
    options = EngineOptions(1, engine="native", prefill="int8", cache=root / "cache")
    return open_decoder(read_genai_config(folder), options).decoder


GREEDY = SearchOptions(max_length=150, min_length=150)
DRAWN = replace(GREEDY, do_sample=True, temperature=0.03, top_k=5, top_p=1.0, random_seed=3)
PENALIZED = replace(GREEDY, repetition_penalty=1.05)


def made(decoder: Decoder, options: SearchOptions, *, ahead: bool) -> tuple[Any, Any]:
    """Return a text, its logits, and what counts what was read ahead."""
    generator = Generation(decoder, options, Ends((1,), 0))
    drafts = generator.read_ahead() if ahead else None
    prompt = np.tile(np.arange(20, 36), 3)  # it repeats itself
    logits = []
    for part in (prompt[:30], prompt[30:]):
        generator.append_tokens(part)
        for _ in range(30):
            logits.append(generator.get_logits())
            generator.generate_next_token()
    generator.rewind_to(90)
    generator.append_tokens(prompt[:20])
    while not generator.is_done():
        logits.append(generator.get_logits())
        generator.generate_next_token()
    return (generator.get_sequence(0), np.concatenate(logits)), drafts


@pytest.mark.parametrize("options", [GREEDY, DRAWN, PENALIZED], ids=["greedy", "drawn", "penalty"])
def test_a_text_is_what_it_is_without(decoder: Decoder, options: SearchOptions) -> None:
    """Bit by bit: each token is computed as if it were alone."""
    (text, logits), _ = made(decoder, options, ahead=False)
    (other_text, other_logits), drafts = made(decoder, options, ahead=True)
    assert np.array_equal(text, other_text)
    assert np.array_equal(logits, other_logits)
    assert drafts.read_ahead >= drafts.taken > 0


def test_no_engine_reads_ahead_that_would_round_otherwise(decoder: Decoder) -> None:
    batch = Generation(decoder, replace(GREEDY, batch_size=2), Ends((1,), 0))
    assert batch.read_ahead() is None
    with pytest.raises(OptionError):
        batch.get_sequence(2)
