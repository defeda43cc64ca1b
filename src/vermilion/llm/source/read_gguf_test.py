"""GGUF files of every architecture and type: logits against transformers, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from described_numbers import logits_of
from gguf_files import AsGguf, metadata_of, tensors_of, write_gguf
from random_models import MODELS, VOCABULARY, logits_of_torch
from vermilion.errors import ModelError, UnsupportedError
from vermilion.llm.source.open_source import GgufSource

needs_torch = pytest.mark.needs("transformers", "torch")
_WINDOW = {"attention.sliding_window": 6}
CASES = {
    "llama": AsGguf("llama", has_pairs=True),
    "llama, tied": AsGguf("llama", has_pairs=True),
    "llama, linear rope": AsGguf(
        "llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, has_pairs=True
    ),
    "llama, linear rope without a rule": AsGguf(
        "llama", {"rope.scaling.factor": 4.0}, has_pairs=True
    ),
    "llama, yarn": AsGguf(
        "llama",
        {
            "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32,
        },
        has_pairs=True,
    ),
    "mistral": AsGguf("llama", _WINDOW, has_pairs=True),
    "qwen2": AsGguf("qwen2"),
    "qwen3": AsGguf("qwen3"),
    "phi3, window": AsGguf("phi3", _WINDOW),
    "phi4, part of a head": AsGguf("phi3", turned=8),
    "gemma": AsGguf("gemma", norm_offset=1.0),
    "granite": AsGguf(
        "granite",
        {
            "embedding_scale": 6.0, "attention.scale": 0.3, "residual_scale": 0.4,
            "logit_scale": 3.0,
        },
        has_pairs=True,
    ),
    "smollm3": AsGguf("smollm3", has_pairs=True),
    "olmo": AsGguf("olmo", is_layer_norm=True, has_pairs=True),
    "olmo2": AsGguf("olmo2", has_post_norms=True),
    "olmo3": AsGguf("olmo2", _WINDOW, has_post_norms=True),
    "phi": AsGguf("phi2", is_layer_norm=True, turned=8),
    "nemotron": AsGguf("nemotron", is_layer_norm=True, norm_offset=1.0, turned=8),
    "starcoder2": AsGguf("starcoder2", _WINDOW, is_layer_norm=True),
    "arcee": AsGguf("arcee", has_pairs=True),
    "exaone4": AsGguf("exaone4", _WINDOW, has_post_norms=True),
    "exaone4, no windows": AsGguf("exaone4", has_post_norms=True),
    "hunyuan": AsGguf("hunyuan-dense", {"rope.freq_base": 1e4 * 50.0 ** (16 / 14)}),
    "lfm2": AsGguf(
        "lfm2",
        {
            "attention.head_count_kv": [0, 2, 0, 2, 0, 0], "shortconv.l_cache": 3,
            "feed_forward_length": 80,
        },
    ),
    "lfm2 moe": AsGguf(
        "lfm2moe",
        {
            "attention.head_count_kv": [0, 2, 0], "shortconv.l_cache": 3, "expert_count": 8,
            "expert_used_count": 3, "expert_gating_func": 2, "expert_weights_scale": 1.5,
            "leading_dense_block_count": 1,
        },
    ),
    "mixtral": AsGguf("llama", {"expert_count": 8, "expert_used_count": 3}, has_pairs=True),
    "qwen2 moe": AsGguf(
        "qwen2moe",
        {"expert_count": 6, "expert_used_count": 3, "expert_shared_feed_forward_length": 48},
    ),
    "qwen3 moe": AsGguf("qwen3moe", {"expert_count": 10, "expert_used_count": 4}),
    "olmoe": AsGguf("olmoe", {"expert_count": 8, "expert_used_count": 3}),
    "granite moe": AsGguf(
        "granitemoe",
        {
            "embedding_scale": 6.0, "attention.scale": 0.3, "residual_scale": 0.4,
            "logit_scale": 3.0, "expert_count": 8, "expert_used_count": 3,
        },
        has_pairs=True,
    ),
    "ernie 4.5 moe": AsGguf(  # whose folders have neighbours already
        "ernie4_5-moe",
        {"expert_count": 8, "expert_used_count": 3, "interleave_moe_layer_step": 1},
    ),
    "glm4 moe": AsGguf(
        "glm4moe",
        {
            "expert_count": 8, "expert_used_count": 3, "expert_gating_func": 2,
            "expert_weights_scale": 1.5, "expert_weights_norm": True,
            "leading_dense_block_count": 1,
        },
        has_post_norms=True, turned=8,
    ),
    "gpt-oss": AsGguf(
        "gpt-oss",
        {
            **_WINDOW, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32, "expert_count": 8, "expert_used_count": 3,
            "expert_gating_func": 3,
        },
        has_post_norms=True, is_interleaved=True,
    ),
}  # fmt: skip


def written(name: str, path: Path, **more: Any) -> Any:
    """Write a model; return it as transformers made it."""
    model, how = MODELS[name.removesuffix(" without a rule")].make(), CASES[name]
    write_gguf(path, {**metadata_of(model, how), **more}, tensors_of(model, how))
    return model


@needs_torch
@pytest.mark.parametrize("name", CASES)
def test_its_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = written(name, tmp_path / "m.gguf")
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, 40).tolist()
    theirs = logits_of_torch(model, tokens)
    ours = logits_of(GgufSource(tmp_path / "m.gguf").describe(), tokens)
    assert np.abs(ours - theirs).max() < 3e-5 * np.abs(theirs).max()


@needs_torch
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("gemma2", {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
        ("gemma2", {}),  # its first files leave them out
        ("gemma3", {"rope.freq_base": 1e6}),
    ],
)
def test_gemma_has_its_norms_and_windows(name: str, keys: dict[str, float], tmp_path: Path) -> None:
    how = AsGguf(name, {**_WINDOW, **keys}, has_post_norms=True, norm_offset=1.0)
    # llama.cpp's scale of these is by the size of a head.
    fields = {**MODELS[name].fields, "query_pre_attn_scalar": 16}
    model = type(MODELS[name])(MODELS[name].name, fields, MODELS[name].config).make()
    write_gguf(tmp_path / "m.gguf", metadata_of(model, how), tensors_of(model, how))
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, 40).tolist()
    theirs = logits_of_torch(model, tokens)
    ours = logits_of(GgufSource(tmp_path / "m.gguf").describe(), tokens)
    assert np.abs(ours - theirs).max() < 3e-5 * np.abs(theirs).max()


@needs_torch
def test_factors_of_rotations_are_those_of_llama_3(tmp_path: Path) -> None:
    model, how = MODELS["llama 3 rope"].make(), CASES["llama"]
    plain = 1 / 5e5 ** (np.arange(0, 16, 2, dtype=np.float32) / np.float32(16))
    factors = plain / model.model.rotary_emb.inv_freq.numpy()
    tensors = {**tensors_of(model, how), "rope_freqs.weight": factors.astype(np.float32)}
    write_gguf(tmp_path / "m.gguf", metadata_of(model, how), tensors)
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, 40).tolist()
    theirs = logits_of_torch(model, tokens)
    ours = logits_of(GgufSource(tmp_path / "m.gguf").describe(), tokens)
    assert np.abs(ours - theirs).max() < 3e-5 * np.abs(theirs).max()


@needs_torch
def test_factors_by_length_are_those_of_phi(tmp_path: Path) -> None:
    model, how = MODELS["phi3, long rope"].make(), AsGguf(
        "phi3",
        {
            "rope.scaling.original_context_length": 16,
            "rope.scaling.attn_factor": float(MODELS["phi3, long rope"].make()
                                              .model.rotary_emb.attention_scaling),
        },
    )  # fmt: skip
    rope = model.config.rope_parameters
    factors = {
        f"rope_factors_{part}.weight": np.array(rope[f"{part}_factor"], np.float32)
        for part in ("short", "long")
    }
    tensors = {**tensors_of(model, how), **factors}
    write_gguf(tmp_path / "m.gguf", metadata_of(model, how), tensors)
    tokens = np.random.default_rng(5).integers(0, VOCABULARY, 40).tolist()
    for count in (12, 40):
        theirs = logits_of_torch(model, tokens[:count])
        ours = logits_of(GgufSource(tmp_path / "m.gguf").describe(), tokens[:count])
        assert np.abs(ours - theirs).max() < 3e-5 * np.abs(theirs).max()


# What is refused ---------------------------------------------------------------------------------


def small(path: Path, keys: dict[str, object] | None = None, **tensors: Any) -> GgufSource:
    """Write a Llama of one layer."""
    random = np.random.default_rng(0)

    def matrix(*shape: int) -> Any:
        return random.standard_normal(shape).astype(np.float32)

    weights = {
        "token_embd.weight": matrix(320, 64), "output_norm.weight": np.ones(64),
        "blk.0.attn_norm.weight": np.ones(64), "blk.0.ffn_norm.weight": np.ones(64),
        "blk.0.attn_q.weight": matrix(64, 64), "blk.0.attn_k.weight": matrix(32, 64),
        "blk.0.attn_v.weight": matrix(32, 64), "blk.0.attn_output.weight": matrix(64, 64),
        "blk.0.ffn_gate.weight": matrix(96, 64), "blk.0.ffn_up.weight": matrix(96, 64),
        "blk.0.ffn_down.weight": matrix(64, 96), **tensors,
    }  # fmt: skip
    from gguf_files import vocabulary

    metadata: dict[str, object] = {
        "general.architecture": "llama", "llama.embedding_length": 64, "llama.block_count": 1,
        "llama.context_length": 128, "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5, **vocabulary(320), **(keys or {}),
    }  # fmt: skip
    kept = {name: value for name, value in weights.items() if value is not None}
    write_gguf(path, {k: v for k, v in metadata.items() if v is not None}, kept)
    return GgufSource(path)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"general.architecture": "phimoe"}, "sparse mixer"),
        ({"general.architecture": "rwkv7"}, "recurrent"),
        ({"general.architecture": "somethingnew"}, "`somethingnew` are not read"),
        (
            {
                "llama.expert_count": 8,
                "llama.expert_used_count": 2,
                "llama.expert_group_count": 4,
            },
            "among 4 groups",
        ),
        (
            {
                "llama.expert_count": 8,
                "llama.expert_used_count": 2,
                "llama.expert_gating_func": 9,
            },
            "by the rule 9",
        ),
        ({"llama.attention.clamp_kqv": 8.0}, "`llama.attention.clamp_kqv` = 8.0 is not known"),
        ({"llama.attention.value_length": 32}, "another size than keys'"),
        ({"llama.rope.scaling.type": "dynamic"}, "rule `dynamic`"),
        ({"split.count": 4}, "several files"),
        ({"tokenizer.ggml.pre": "viking"}, "cut by the rule `viking`"),
        ({"tokenizer.ggml.model": "bert"}, "of the kind `bert`"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    keys: dict[str, object], words: str, tmp_path: Path
) -> None:
    source = small(tmp_path / "m.gguf", keys)
    with pytest.raises(UnsupportedError, match=words):
        source.config()


def test_a_tensor_that_nothing_reads_is_named(tmp_path: Path) -> None:
    source = small(tmp_path / "m.gguf", **{"blk.0.attn_sub_norm.weight": np.ones(64)})
    with pytest.raises(UnsupportedError, match=r"`blk.0.attn_sub_norm.weight`"):
        source.describe()


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"blk.0.attn_v.weight": None}, r"no tensor `blk.0.attn_v.weight`"),
        ({"blk.0.ffn_norm.weight": np.ones(48)}, "norms 48 numbers of 64"),
        ({"blk.0.ffn_up.weight": np.ones((80, 64))}, "80 x 64, and 96 x 64 is needed"),
        ({"blk.0.attn_q.bias": np.ones(8)}, "`0.attn_q.bias` has 8 numbers, and 64 are needed"),
        ({"blk.0.attn_q.weight": np.ones((32, 64))}, "`0.attn_q` is 32 x 64, and 64 x 64"),
        (
            {"blk.0.attn_qkv.weight": np.ones((128, 64)), "blk.0.attn_qkv.bias": np.ones(100)},
            "`0.attn_qkv.bias` has 100 numbers, and 128 are needed",
        ),
        ({"rope_freqs.weight": np.ones(3)}, "3 factors for 8 pairs"),
        ({"output_norm.weight": np.full(64, np.nan)}, "not finite"),
        ({"blk.0.ffn_gate_inp.weight": np.ones((8, 64))}, "has a router, and the model no experts"),
    ],
)
def test_weights_of_another_shape_are_named(
    tensors: dict[str, Any], words: str, tmp_path: Path
) -> None:
    source = small(tmp_path / "m.gguf", **tensors)
    with pytest.raises(ModelError, match=words):
        source.describe()


_EIGHT = {"llama.expert_count": 8, "llama.expert_used_count": 2}


def mixture(path: Path, keys: dict[str, object], **tensors: Any) -> GgufSource:
    """Write a Mixtral of one layer."""
    weights = {
        "blk.0.ffn_gate_inp.weight": np.ones((8, 64)),
        "blk.0.ffn_gate_exps.weight": np.ones((8, 96, 64)),
        "blk.0.ffn_up_exps.weight": np.ones((8, 96, 64)),
        "blk.0.ffn_down_exps.weight": np.ones((8, 64, 96)),
        **{f"blk.0.ffn_{one}.weight": None for one in ("gate", "up", "down")},
    }
    return small(path, {**_EIGHT, **keys}, **{**weights, **tensors})


@pytest.mark.parametrize(
    ("keys", "tensors", "words"),
    [
        ({"llama.expert_used_count": 9}, {}, "9 of 8 experts"),
        ({"llama.expert_count": 5000, "llama.expert_used_count": 1}, {}, "1 of 5000 experts"),
        ({}, {"blk.0.ffn_up_exps.weight": np.ones((7, 96, 64))}, "for 8 experts"),
        ({}, {"blk.0.ffn_up_exps.weight": np.ones((8, 64))}, "for 8 experts"),
        ({}, {"blk.0.ffn_up_exps.weight": np.ones((8, 80, 64))}, "the experts of layer 0 are"),
        ({}, {"blk.0.ffn_gate_inp.weight": np.ones((6, 64))}, "6 x 64, and 8 x 64 is needed"),
        ({}, {"blk.0.ffn_down_exps.weight": None}, "no tensor `blk.0.ffn_down_exps.weight`"),
        ({}, {"blk.0.ffn_up_exps.bias": np.ones((8, 80))}, "has biases"),
        ({}, {"blk.0.exp_probs_b.bias": np.ones(9)}, "9 numbers for 8 experts"),
    ],
)
def test_experts_of_another_shape_are_named(
    keys: dict[str, object], tensors: dict[str, Any], words: str, tmp_path: Path
) -> None:
    assert mixture(tmp_path / "sound.gguf", {}).describe().mixtures
    source = mixture(tmp_path / "m.gguf", keys, **tensors)
    with pytest.raises(ModelError, match=words):
        source.describe()
