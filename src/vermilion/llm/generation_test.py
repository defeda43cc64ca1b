"""The loop on a tiny model: threads, memory, ends, guidance."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

import tiny_llama
from vermilion.errors import OptionError
from vermilion.llm.decoder import Decoder, EngineOptions, open_decoder
from vermilion.llm.genai_config import read_genai_config
from vermilion.llm.generation import Ends, Generation
from vermilion.llm.guidance import Guidance, start_guides
from vermilion.llm.search import SearchOptions
from vermilion.llm.tokenizer import open_tokenizer

NO_END = Ends((tiny_llama.END,), 0)
LONG = tiny_llama.Tiny(layers=1, heads=2, kv_heads=1, context=16384)

ENGINES = [pytest.param("native", marks=pytest.mark.needs("avx2")), "onnxruntime"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.write_folder(tmp_path_factory.mktemp("long") / "tiny", LONG)


@pytest.fixture(scope="module", params=ENGINES)
def decoder(
    folder: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Decoder:
    cache = tmp_path_factory.mktemp("code")
    options = EngineOptions(1, engine=request.param, prefill="fp32", cache=cache)
    return open_decoder(read_genai_config(folder), options).decoder


def generate(decoder: Decoder, first: int, count: int) -> list[int]:
    # The end is kept from coming, so that a text has the length that is asked for.
    options = SearchOptions(max_length=8 + count, min_length=8 + count)
    made = Generation(decoder, options, NO_END)
    made.append_tokens(np.arange(first, first + 8))
    while not made.is_done():
        made.generate_next_token()
    return made.get_sequence(0).tolist()


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


def test_ten_thousand_tokens_take_no_more_memory_than_their_cache(decoder: Decoder) -> None:
    """ONNX Runtime's scratch memory grows up to the longest sequence, so that is made twice."""
    # One layer's keys and values, a head of 16 floats each: touched as the sequence grows.
    cache = 10_000 * 2 * 16 * 4
    generate(decoder, 20, 10_000)
    held = resident_bytes()
    assert len(generate(decoder, 20, 10_000)) == 10_008
    assert resident_bytes() - held < cache + (1 << 20)


def test_generators_leave_nothing_behind(decoder: Decoder) -> None:
    generate(decoder, 20, 500)
    held = resident_bytes()
    for _ in range(10):
        generate(decoder, 20, 500)
    assert resident_bytes() - held < 1 << 20


def test_two_generators_in_two_threads_do_not_disturb_each_other(decoder: Decoder) -> None:
    alone = [generate(decoder, first, 300) for first in (20, 120)]
    found: dict[int, list[list[int]]] = {20: [], 120: []}

    def work(first: int) -> None:
        found[first] = [generate(decoder, first, 300) for _ in range(3)]

    threads = [threading.Thread(target=work, args=(first,)) for first in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert alone[0] != alone[1]
    assert found == {20: [alone[0]] * 3, 120: [alone[1]] * 3}


def test_a_prompt_in_pieces_is_a_prompt(decoder: Decoder) -> None:
    prompt = np.arange(20, 60)
    whole, pieces = (Generation(decoder, SearchOptions(max_length=64), NO_END) for _ in range(2))
    whole.append_tokens(prompt)
    for at in range(0, 40, 7):
        pieces.append_tokens(prompt[at : at + 7])
    assert np.abs(whole.get_logits() - pieces.get_logits()).max() < 1e-5


@pytest.mark.needs("llguidance")
def test_text_of_a_form(folder: Path, decoder: Decoder) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
        # A model of random weights would fill the text with spaces, which JSON allows.
        "x-guidance": {"whitespace_flexible": False},
    }
    guidance = Guidance("json_schema", json.dumps(schema))
    options = SearchOptions(max_length=120, do_sample=True, random_seed=3)
    texts, file = [], (folder / "tokenizer.json").read_text()
    for _ in range(2):
        guides = start_guides(guidance, file, vocabulary=320, end=tiny_llama.END, count=1)
        made = Generation(decoder, options, NO_END, guides)
        made.append_tokens(np.arange(20, 28))
        while not made.is_done():
            made.generate_next_token()
        texts.append(open_tokenizer(folder).decode(made.get_sequence(0)[8:]))
    found = json.loads(texts[0])
    assert set(found) == {"a", "b"}
    assert found["b"] in ("x", "y")
    assert texts[0] == texts[1]


@pytest.mark.needs("llguidance")
def test_a_form_that_cannot_be_followed(folder: Path) -> None:
    with pytest.raises(OptionError, match="no kind of guidance"):
        Guidance("xml", "<a/>")
    file = (folder / "tokenizer.json").read_text()
    for kind, text in (("json_schema", "{"), ("regex", "("), ("lark_grammar", "start: nothing")):
        with pytest.raises(OptionError, match=kind if kind != "json_schema" else "no JSON"):
            start_guides(Guidance(kind, text), file, vocabulary=320, end=2, count=1)
