from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tiny_llama
from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.llm import generate
from vermilion.llm.decoder import EngineOptions, open_decoder
from vermilion.llm.genai_config import read_genai_config
from vermilion.llm.generate import Conversation, Sampling
from vermilion.llm.hybrid import HybridRequest, generate_hybrid
from vermilion.llm.open_model import open_model, search_of
from vermilion.llm.plugins.compile_plugin import compile_plugin
from vermilion.llm.plugins.wanted import OperatorRequest, needs_of

PROMPT = np.arange(20, 44)[None]


def pipeline(folder: Path) -> Path:
    """Make a folder of the same graph twice, which is more than generated code takes."""
    tiny_llama.write_folder(folder)
    data = tiny_llama.configuration(tiny_llama.Tiny())
    data["model"]["type"] = "decoder-pipeline"
    decoder = data["model"]["decoder"]
    file = decoder.pop("filename")
    decoder["pipeline"] = [
        {"prompt": {"filename": file, "run_on_prompt": True, "run_on_token_gen": False}},
        {"token": {"filename": file, "run_on_prompt": False, "run_on_token_gen": True}},
    ]
    (folder / "genai_config.json").write_text(json.dumps(data))
    return folder


def test_what_generated_code_does_not_take_runs_on_onnx_runtime_with_the_reason(
    tmp_path: Path,
) -> None:
    config = read_genai_config(pipeline(tmp_path))
    opened = open_decoder(config, EngineOptions(threads=1))
    assert opened.engine.startswith("ONNX Runtime")
    assert opened.reason
    assert opened.decoder.start(1, 8).forward(PROMPT[:, :4]).shape == (1, 320)
    with pytest.raises(UnsupportedError):
        open_decoder(config, EngineOptions(threads=1, engine="native"))


@pytest.mark.needs("avx512bf16")
def test_a_hybrid_folder_runs_on_generated_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path / "cache"))
    tiny = tiny_llama.write_folder(tmp_path / "tiny", tiny_llama.Tiny(bits=4))
    operators = OperatorRequest("bf16", context=64)
    options = EngineOptions(1, engine="native")
    plain = open_decoder(read_genai_config(tiny), options).decoder
    compile_plugin(needs_of(tiny, operators), "p", tmp_path / "plugins")
    monkeypatch.setenv("DD_PLUGINS_ROOT", str(tmp_path / "plugins"))
    request = HybridRequest(tiny, tmp_path / "hybrid", operators, "stock")
    hybrid = generate_hybrid(request, lambda _: None).folder
    opened = open_decoder(read_genai_config(hybrid), options).decoder
    logits = [one.start(1, 32).forward(PROMPT) for one in (opened, plain)]
    assert np.abs(logits[0] - logits[1]).max() < 1e-5


@pytest.mark.needs("avx512bf16")
@pytest.mark.parametrize("bits", [32, 4])
def test_floats_stay_floats_and_few_bits_are_multiplied_in_bf16(tmp_path: Path, bits: int) -> None:
    config = read_genai_config(tiny_llama.write_folder(tmp_path, tiny_llama.Tiny(bits=bits)))
    chosen = "fp32" if bits == 32 else "bf16"
    logits = {
        prefill: open_decoder(
            config, EngineOptions(1, engine="native", prefill=prefill, cache=tmp_path / "cache")
        )
        .decoder.start(1, 32)
        .forward(PROMPT)
        for prefill in ("auto", "fp32", "bf16")
    }
    assert np.array_equal(logits["auto"], logits[chosen])
    assert not np.array_equal(logits["fp32"], logits["bf16"])


@pytest.mark.parametrize(
    ("options", "words"),
    [({"engine": "gpu"}, "--engine gpu"), ({"prefill": "int3"}, "int3"), ({"threads": -1}, "zero")],
)
def test_options_that_there_are_not(options: dict[str, object], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        EngineOptions(**options)  # type: ignore[arg-type]


def test_a_folder_with_search_options_of_a_wrong_type(tmp_path: Path) -> None:
    data = tiny_llama.configuration(tiny_llama.Tiny())
    data["search"]["top_k"] = "many"
    tiny_llama.write_folder(tmp_path)
    (tmp_path / "genai_config.json").write_text(json.dumps(data))
    with pytest.raises(ModelError, match="top_k"):
        search_of(read_genai_config(tmp_path))


@pytest.mark.needs("tokenizers", "jinja2")
@pytest.mark.parametrize(
    "engine", ["onnxruntime", pytest.param("native", marks=pytest.mark.needs("avx2"))]
)
def test_a_turn_is_the_same_with_the_cache_as_without(tmp_path: Path, engine: str) -> None:
    folder = tiny_llama.write_folder(tmp_path, tiny_llama.Tiny(end=4))
    options = EngineOptions(1, engine=engine, cache=tmp_path / "cache")  # type: ignore[arg-type]
    opened = open_model(folder, options)
    talk = Conversation(opened, Sampling(new_tokens=6))
    first = talk.answer("hello")
    second = talk.answer("again")
    messages = [{"role": "user", "content": "hello"}]
    messages.append({"role": "assistant", "content": first.text})
    messages.append({"role": "user", "content": "again"})
    whole = opened.encode(opened.apply_chat_template(messages), as_chat=False)
    assert second.prompt_tokens < len(whole) - 20
    fresh = opened.generator({"max_length": len(whole) + 6})
    fresh.append_tokens(whole)
    while not fresh.is_done():
        fresh.generate_next_token()
    assert second.text == talk._messages[-1]["content"]
    held = talk._generator.get_sequence(0).tolist()
    assert held == fresh.get_sequence(0).tolist()
    talk.start_again()
    assert talk.answer("hello").text == first.text


@pytest.mark.needs("tokenizers", "jinja2")
def test_a_conversation_that_outgrows_its_cache_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny_llama.write_folder(tmp_path, tiny_llama.Tiny(end=4, context=1024))
    opened = open_model(folder, EngineOptions(1, engine="onnxruntime"))
    texts = []
    for room in (8, 2048):
        monkeypatch.setattr(generate, "_FIRST_ROOM", room)
        talk = Conversation(opened, Sampling(new_tokens=6))
        texts.append([talk.answer(word).text for word in ("hello", "again", "more", "enough")])
    assert texts[0] == texts[1]
