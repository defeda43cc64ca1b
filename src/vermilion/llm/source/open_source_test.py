"""Published models, opened and run on our own code."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from described_numbers import logits_of
from gguf_files import TEMPLATE
from random_models import MODELS, logits_of_torch
from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.llm.decoder import EngineOptions, open_decoder
from vermilion.llm.engine.block_types import block_type
from vermilion.llm.engine.block_types_test import random_rows
from vermilion.llm.generate import Conversation, Sampling, generate
from vermilion.llm.open_model import AnyModel, open_model, read_model_config
from vermilion.llm.source.open_source import FolderSource, GgufSource
from vermilion.llm.source.read_gguf_test import small

WIDTH = 256


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model whose matrices are of several types, as mixtures have them."""
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"

    def rows(name: str, columns: int, depth: int = WIDTH) -> Any:
        found = block_type(name)
        assert found is not None
        return name, random_rows(found, columns, depth)

    small(
        path,
        {"llama.embedding_length": WIDTH, "llama.feed_forward_length": WIDTH},
        **{
            "token_embd.weight": rows("Q6_K", 320), "output.weight": rows("Q8_0", 320),
            "output_norm.weight": np.ones(WIDTH), "blk.0.attn_norm.weight": np.ones(WIDTH),
            "blk.0.ffn_norm.weight": np.ones(WIDTH), "blk.0.attn_q.weight": rows("Q4_K", WIDTH),
            "blk.0.attn_k.weight": rows("Q4_K", WIDTH // 2),
            "blk.0.attn_v.weight": rows("Q6_K", WIDTH // 2),
            "blk.0.attn_output.weight": rows("Q4_K", WIDTH),
            "blk.0.ffn_gate.weight": rows("Q4_0", WIDTH),
            "blk.0.ffn_up.weight": rows("Q4_0", WIDTH),
            "blk.0.ffn_down.weight": rows("Q4_K", WIDTH),
        },
    )  # fmt: skip
    return path


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def opened(file: Path, cache: Path, **more: Any) -> AnyModel:
    return open_model(file, EngineOptions(1, cache=cache, **more))


@pytest.mark.parametrize(("prefill", "limit"), [("fp32", 2e-5), ("int8", 0.05)])
def test_logits_are_those_of_the_file_s_weights(
    prefill: Any, limit: float, file: Path, cache: Path
) -> None:
    tokens = np.random.default_rng(1).integers(3, 320, 40)
    wanted = logits_of(GgufSource(file).describe(), tokens.tolist())
    for _ in range(2):  # packed, and from what was kept
        model: Any = opened(file, cache, prefill=prefill)
        state = model.decoder.start(1, 64)
        found = state.forward(tokens[None, :30], every_position=True)[0]
        singly = [state.forward(tokens[None, at : at + 1])[0] for at in range(30, 40)]
        difference = np.abs(np.concatenate([found, singly]) - wanted).max(axis=1)
        # Scores of random weights are far apart: where two are near, 8 bits choose the other.
        worst = difference.max() if prefill == "fp32" else np.median(difference)
        assert worst < limit * np.abs(wanted).max()


@pytest.mark.needs("tokenizers", "jinja2")
def test_text_goes_in_and_comes_out(file: Path, cache: Path) -> None:
    model = opened(file, cache, prefill="int8")
    assert model.encode("tea", as_chat=False)[0] == 0  # what every text begins with
    assert model.apply_chat_template([{"role": "user", "content": "x"}]) == "[user] x\n[assistant] "
    assert TEMPLATE
    options = EngineOptions(1, prefill="int8", cache=cache)
    made = generate(file, "tea", Sampling(4, logprobs=2), options)
    assert made.new_tokens == 4 or made.stopped == "end"
    assert len(made.logprobs) == made.new_tokens
    assert made.logprobs[0].likeliest[0][0] == made.logprobs[0].token
    assert "Q6_K: 6.5625 bits a weight, read as 8.625" in made.weights
    assert "Q4_0: 4.5 bits a weight, read as stored" in made.weights
    banned = tuple((one, -100.0) for one, _ in made.logprobs[0].likeliest)
    other = generate(file, "tea", Sampling(1, logprobs=1, logit_bias=banned), options)
    assert other.logprobs[0].token not in dict(banned)
    assert other.logprobs[0].likeliest[0] == made.logprobs[0].likeliest[0]


@pytest.mark.needs("tokenizers", "jinja2")
def test_an_answer_that_is_interrupted_can_be_followed(file: Path, cache: Path) -> None:
    talk = Conversation(opened(file, cache, prefill="int8"), Sampling(12))
    asked = iter([False, False, True])
    made = talk.answer("tea", should_stop=lambda: next(asked))
    assert (made.stopped, made.new_tokens) == ("interrupted", 2)
    again = talk.answer("more")
    assert again.new_tokens > 0
    nothing = talk.answer("and", should_stop=lambda: True)
    assert (nothing.stopped, nothing.new_tokens, nothing.text) == ("interrupted", 0, "")


def test_what_other_engines_cannot_read(file: Path, tmp_path: Path) -> None:
    for engine in ("onnxruntime", "onnxruntime-genai"):
        with pytest.raises(UnsupportedError, match="folders of onnxruntime-genai alone"):
            open_model(file, EngineOptions(engine=engine))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no such folder"):
        read_model_config(tmp_path / "nothing")
    (tmp_path / "x.gguf").write_bytes(b"no model")
    with pytest.raises(ModelError, match="not a GGUF file"):
        read_model_config(tmp_path / "x.gguf")


def test_packed_folders_keep_their_numbers(tmp_path: Path) -> None:
    """Codes of GPTQ, AWQ and compressed-tensors give (code - zero point) · scale."""
    from vermilion.llm.engine.block_forms import numbers_of
    from vermilion.llm.source.packed_weights import packed_part, packing_of
    from vermilion.llm.source.safetensors import SafeTensor

    random = np.random.default_rng(0)
    depth, columns, group = 64, 32, 32
    codes = random.integers(0, 16, (depth, columns)).astype(np.uint32)
    zeros = random.integers(1, 16, (depth // group, columns)).astype(np.uint32)
    scales = random.random((depth // group, columns)).astype(np.float16)
    numbers = (codes.astype(np.float32) - np.repeat(zeros, group, 0)) * np.repeat(
        scales.astype(np.float32), group, 0
    )

    def words(values: Any, order: Any = range(8)) -> Any:
        """Pack eight neighbouring columns into a word."""
        parts = values.reshape(len(values), -1, 8)
        made = np.zeros(parts.shape[:2], np.uint32)
        for place, at in enumerate(order):
            made |= parts[:, :, at] << np.uint32(4 * place)
        return made

    def tensor(kind: str, values: Any) -> SafeTensor:
        return SafeTensor(kind, values.shape, np.ascontiguousarray(values).view(np.uint8).ravel())

    gptq = {
        "qweight": tensor("I32", words(codes.T).T), "qzeros": tensor("I32", words(zeros - 1)),
        "scales": tensor("F16", scales),
        "g_idx": tensor("I32", (np.arange(depth) // group).astype(np.int32)),
    }  # fmt: skip
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    awq = {
        "qweight": tensor("I32", words(codes, order)), "qzeros": tensor("I32", words(zeros, order)),
        "scales": tensor("F16", scales),
    }  # fmt: skip
    rows = {
        "weight_packed": tensor("I32", words(np.ascontiguousarray(codes.T))),
        "weight_scale": tensor("F16", np.ascontiguousarray(scales.T)),
    }
    middle = (codes.astype(np.float32) - 8) * np.repeat(scales.astype(np.float32), group, 0)
    weights = {"num_bits": 4, "group_size": group, "symmetric": True}
    cases = (
        ({"quant_method": "gptq", "bits": 4, "group_size": group}, gptq, numbers),
        ({"quant_method": "awq", "bits": 4, "group_size": group}, awq, numbers),
        (
            {
                "quant_method": "compressed-tensors", "format": "pack-quantized",
                "config_groups": {"group_0": {"weights": weights}},
            },
            rows, middle,
        ),
    )  # fmt: skip
    for config, tensors, wanted in cases:
        packing = packing_of(config, "here")
        assert packing is not None
        part: Any = packed_part(packing, tensors, "here")
        found = numbers_of(part.form, part.take(0, columns))
        assert np.array_equal(found, wanted.T), config["quant_method"]
    gptq["g_idx"] = tensor("I32", random.permutation(depth).astype(np.int32) // group)
    packing = packing_of(cases[0][0], "here")
    assert packing is not None
    with pytest.raises(UnsupportedError, match="regrouped"):
        packed_part(packing, gptq, "here")
    with pytest.raises(UnsupportedError, match="`bitsandbytes`"):
        packing_of({"quant_method": "bitsandbytes"}, "here")


@pytest.mark.needs("transformers", "torch")
def test_a_folder_of_hugging_face_runs_as_it_is(tmp_path: Path) -> None:
    """Long rope: a text that grows over the length where it is turned otherwise is read again."""
    kind = MODELS["phi3, long rope"]
    model = replace(kind, fields={**kind.fields, "num_hidden_layers": 1}).save(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "phi3"
    tokens = np.random.default_rng(2).integers(3, 160, 30)
    config = read_model_config(tmp_path)
    own = open_decoder(config, EngineOptions(1, cache=tmp_path / "cache"))
    assert "own code" in own.engine
    state = own.decoder.start(1, 64)
    for first, last in ((0, 10), (10, 15), (15, 16), (16, 17), (17, 30)):
        found = state.forward(tokens[None, first:last])[0]
        theirs = logits_of_torch(model, tokens[:last].tolist())[-1]
        assert np.abs(found - theirs).max() < 3e-5 * np.abs(theirs).max()
    state.rewind(12)
    found = state.forward(tokens[None, 12:14])[0]
    theirs = logits_of_torch(model, tokens[:14].tolist())[-1]
    assert np.abs(found - theirs).max() < 3e-5 * np.abs(theirs).max()


@pytest.mark.needs("transformers", "torch")
@pytest.mark.parametrize(
    "prefill", ["fp32", pytest.param("bf16", marks=pytest.mark.needs("avx512bf16"))]
)
def test_short_convolutions_remember_what_was_before(prefill: Any, tmp_path: Path) -> None:
    """Texts of a batch, in parts, token by token, and taken back; the last layer is none."""
    model = MODELS["lfm2"].save(tmp_path)
    tokens = np.random.default_rng(2).integers(3, 160, (2, 40))
    config, cache = read_model_config(tmp_path), tmp_path / "cache"
    own = open_decoder(config, EngineOptions(2, prefill=prefill, cache=cache))
    assert "own code" in own.engine
    limit = 3e-5 if prefill == "fp32" else 5e-2
    theirs = np.stack([logits_of_torch(model, one.tolist()) for one in tokens])
    state, largest = own.decoder.start(2, 64), np.abs(theirs).max()
    for first, last in ((0, 20), (20, 21), (21, 33), (33, 40)):
        found = state.forward(tokens[:, first:last])
        assert np.abs(found - theirs[:, last - 1]).max() < limit * largest
    state.rewind(21)
    again = state.forward(tokens[:, 21:40], every_position=True)
    assert np.abs(again - theirs[:, 21:40]).max() < limit * largest


@pytest.mark.needs("tokenizers", "jinja2")
def test_a_header_is_read_once(tmp_path: Path) -> None:
    path, cache = tmp_path / "m.gguf", tmp_path / "cache"
    small(path)
    plain, first, again = (GgufSource(path, place) for place in (None, cache, cache))

    def asked(source: GgufSource) -> list[object]:
        text = source.tokenizer(cache)
        told = (source.config(), source.begin(), dict(source.types()), source.tokenizer_file())
        return [*told, text.encode("tea"), text.has_template]

    assert asked(first) == asked(plain)
    assert asked(again) == asked(plain)
    assert "file" not in vars(again), "nothing of the file was read"
    small(path, {"llama.context_length": 64})  # another file at the same place
    other = GgufSource(path, cache)
    assert other.config()["model"]["context_length"] == 64  # type: ignore[index]
    path.write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(UnsupportedError, match=r"version 0|big-endian"):
        GgufSource(path, cache).config()


@pytest.mark.needs("transformers", "torch")
@pytest.mark.parametrize("name", ["qwen2 moe", "gpt-oss"])
def test_mixtures_run_on_our_own_code(name: str, tmp_path: Path) -> None:
    """Sinks, biases and a shared expert; prompts whole, in parts, and token by token."""
    kind = MODELS[name]
    model = replace(kind, fields={**kind.fields, "num_hidden_layers": 2}).save(tmp_path)
    tokens = np.random.default_rng(2).integers(3, 160, 40)
    own = open_decoder(
        read_model_config(tmp_path), EngineOptions(2, prefill="fp32", cache=tmp_path / "cache")
    )
    assert "own code" in own.engine
    theirs = logits_of_torch(model, tokens.tolist())
    state = own.decoder.start(1, 64)
    found = [*state.forward(tokens[None, :30], every_position=True)[0]]
    found += [state.forward(tokens[None, at : at + 1])[0] for at in range(30, 40)]
    assert np.abs(np.array(found) - theirs).max() < 3e-5 * np.abs(theirs).max()
    again = own.decoder.start(1, 64).forward(tokens[None, :30])[0]
    assert np.abs(again - theirs[29]).max() < 3e-5 * np.abs(theirs).max()


@pytest.mark.needs("transformers", "torch")
def test_experts_in_microscaled_floats_keep_their_numbers(tmp_path: Path) -> None:
    """Blocks of 32 codes with an exponent, as gpt-oss is published."""
    from random_models import packed_microscaled

    model = MODELS["gpt-oss"].save(tmp_path)
    rounded = packed_microscaled(tmp_path, model)
    tokens = np.random.default_rng(2).integers(3, 160, 12).tolist()
    description = FolderSource(tmp_path).describe()
    forms = {one.form() for two in description.mixtures for _, one in two.products}
    assert {(form.scale, form.bits) for form in forms} == {("e8m0", 4)}  # type: ignore[union-attr]
    theirs = logits_of_torch(rounded, tokens)
    assert np.abs(logits_of(description, tokens) - theirs).max() < 2e-5 * np.abs(theirs).max()
    own = open_decoder(read_model_config(tmp_path), EngineOptions(1, cache=tmp_path / "cache"))
    found = own.decoder.start(1, 16).forward(np.array([tokens]), every_position=True)[0]
    assert np.median(np.abs(found - theirs).max(axis=1)) < 0.05 * np.abs(theirs).max()
