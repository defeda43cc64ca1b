from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tiny_llama
from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.load import load_model
from vermilion.llm import ort_decoder
from vermilion.llm.genai_config import read_genai_config
from vermilion.llm.open_ort_decoder import FIRST_POSITION, keep_last_logits, open_ort_decoder
from vermilion.llm.ort_decoder import OrtDecoder

TOKENS = np.arange(20, 44)[None]


def opened(folder: Path, **options: Any) -> OrtDecoder:
    tiny_llama.write_folder(folder, tiny_llama.Tiny(**options))
    return open_ort_decoder(read_genai_config(folder), threads=1)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> OrtDecoder:
    return opened(tmp_path_factory.mktemp("ort") / "tiny")


def without_cache(folder: Path, tokens: np.ndarray) -> np.ndarray:
    """Run the graph as it is on a whole text, with nothing in its past."""
    session = open_session(load_model(folder / "model.onnx"), threads=1)
    inputs: dict[str, np.ndarray] = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    for value in session.get_inputs():
        if value.name.startswith("past"):
            inputs[value.name] = np.zeros((len(tokens), 2, 0, 16), np.float32)
        if value.name == "position_ids":
            inputs[value.name] = np.arange(tokens.shape[1])[None].repeat(len(tokens), 0)
    return run_session(session, inputs, ["logits"])["logits"]


@pytest.mark.parametrize(
    "options", [{}, {"bits": 4}, {"split_qkv": True}], ids=["packed", "4 bits", "split"]
)
def test_a_text_in_steps_is_the_text_at_once(tmp_path: Path, options: dict[str, Any]) -> None:
    made = opened(tmp_path, **options)
    expected = without_cache(tmp_path, TOKENS)[0]
    state = made.start(1, 32)
    first = state.forward(TOKENS[:, :10], every_position=True)
    rest = [state.forward(TOKENS[:, at : at + 1]) for at in range(10, 24)]
    found = np.concatenate([first[0], *rest])
    # Products of 4 bits take their other factor in 8, which differs with the number of rows.
    allowed = 1e-1 if options.get("bits") == 4 else 1e-5
    assert np.abs(found - expected).max() < allowed
    assert state.length == 24


def test_a_long_prompt_is_read_in_chunks(
    decoder: OrtDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = decoder.start(1, 32).forward(TOKENS, every_position=True)
    monkeypatch.setattr(ort_decoder, "CHUNK_TOKENS", 7)
    chunked = decoder.start(1, 32).forward(TOKENS, every_position=True)
    assert np.abs(chunked - whole).max() < 1e-5
    last = decoder.start(1, 32).forward(TOKENS)
    assert np.abs(last - whole[:, -1]).max() < 1e-5


def test_rows_of_a_batch_are_apart_and_can_be_reordered(decoder: OrtDecoder) -> None:
    rows = np.stack([TOKENS[0, :8], TOKENS[0, 8:16], TOKENS[0, 16:24]])
    state = decoder.start(3, 16)
    state.forward(rows)
    state.reorder(np.array([2, 0, 0]))
    after = state.forward(np.array([[7], [8], [9]]))
    for row, (source, token) in enumerate(((2, 7), (0, 8), (0, 9))):
        alone = decoder.start(1, 16)
        alone.forward(rows[source : source + 1])
        assert np.abs(alone.forward(np.array([[token]])) - after[row]).max() < 1e-5
    several = state.forward(np.array([[1, 2], [3, 4], [5, 6]]))
    assert several.shape == (3, 320)


def test_rewinding_forgets(decoder: OrtDecoder) -> None:
    state = decoder.start(1, 32)
    state.forward(TOKENS[:, :10])
    expected = state.forward(TOKENS[:, 10:12])
    state.rewind(4)
    state.forward(TOKENS[:, 14:20])
    state.rewind(4)
    state.forward(TOKENS[:, 4:10])
    assert np.abs(state.forward(TOKENS[:, 10:12]) - expected).max() < 1e-5


def test_a_pipeline_reads_prompts_with_one_graph_and_tokens_with_another(tmp_path: Path) -> None:
    """The same weights in floats and in 4 bits: each phase has its own graph's logits."""
    exact, rough = opened(tmp_path / "exact"), opened(tmp_path / "rough", bits=4)
    whole = tiny_llama.write_folder(tmp_path / "both")
    stages = []
    for name, prompt in (("exact", True), ("rough", False)):
        (whole / name).mkdir()
        for file in ("model.onnx", "model.onnx.data"):
            (whole / name / file).write_bytes((tmp_path / name / file).read_bytes())
        phases = {"run_on_prompt": prompt, "run_on_token_gen": not prompt}
        stages.append({name: {"filename": f"{name}/model.onnx", **phases}})
    data = tiny_llama.configuration(tiny_llama.Tiny())
    data["model"]["type"] = "decoder-pipeline"
    del data["model"]["decoder"]["filename"]
    data["model"]["decoder"]["pipeline"] = stages
    (whole / "genai_config.json").write_text(json.dumps(data))
    both = open_ort_decoder(read_genai_config(whole), threads=1)
    states = [one.start(1, 32) for one in (both, exact, rough)]
    prompts = [state.forward(TOKENS) for state in states]
    assert np.array_equal(prompts[0], prompts[1])
    assert np.abs(prompts[0] - prompts[2]).max() > 0.05
    rough_after_exact = states[0].forward(np.array([[5]]))
    assert np.abs(rough_after_exact - states[1].forward(np.array([[5]]))).max() > 0.05


def test_the_head_is_computed_for_the_last_position_only(tmp_path: Path) -> None:
    model = load_model(tiny_llama.write_folder(tmp_path) / "model.onnx")
    assert keep_last_logits(model, "logits")
    assert [value.name for value in model.graph.inputs][-1] == FIRST_POSITION
    assert not keep_last_logits(model, "logits"), "a second time there is nothing to do"
    assert not keep_last_logits(model, "nothing")


def test_what_cannot_be_appended_in_place_is_refused(tmp_path: Path) -> None:
    tiny_llama.write_folder(tmp_path)
    proto = onnx.load(tmp_path / "model.onnx")
    for node in proto.graph.node:
        node.output[:] = [f"{n}.old" if n == "present.0.key" else n for n in node.output]
    proto.graph.node.append(
        onnx.helper.make_node("Identity", ["present.0.key.old"], ["present.0.key"])
    )
    onnx.save(proto, tmp_path / "model.onnx")
    with pytest.raises(UnsupportedError, match="GroupQueryAttention"):
        open_ort_decoder(read_genai_config(tmp_path))


def test_wrong_use_and_damaged_folders(decoder: OrtDecoder, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="context is 256"):
        decoder.start(1, 257)
    state = decoder.start(2, 8)
    with pytest.raises(OptionError, match="do not fit"):
        state.forward(np.zeros((2, 9), np.int64))
    with pytest.raises(OptionError, match="2 sequences"):
        state.forward(np.zeros((1, 2), np.int64))
    with pytest.raises(OptionError, match="go back"):
        state.rewind(1)
    data = tiny_llama.configuration(tiny_llama.Tiny(layers=3))
    tiny_llama.write_folder(tmp_path)
    (tmp_path / "genai_config.json").write_text(json.dumps(data))
    with pytest.raises(UnsupportedError, match=r"no `past_key_values\.2\.key`"):
        open_ort_decoder(read_genai_config(tmp_path))
    (tmp_path / "model.onnx").unlink()
    with pytest.raises(ModelError, match="not in the folder"):
        open_ort_decoder(read_genai_config(tmp_path))
