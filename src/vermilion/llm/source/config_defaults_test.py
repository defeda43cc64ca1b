"""Configurations that leave fields out: read as the classes of transformers read them."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vermilion.errors import UnsupportedError
from vermilion.llm.source.blueprint import Blueprint
from vermilion.llm.source.config_defaults import DEFAULTS
from vermilion.llm.source.families import FAMILIES
from vermilion.llm.source.open_source import FolderSource
from vermilion.llm.source.read_config import read_config

needs_transformers = pytest.mark.needs("transformers", "torch")
# Heads that any default of `num_key_value_heads` divides.
MEASURES = {
    "vocab_size": 160, "hidden_size": 4096, "intermediate_size": 96, "num_hidden_layers": 8,
    "num_attention_heads": 32, "max_position_embeddings": 128, "eos_token_id": 1,
}  # fmt: skip


def read(folder: Path, fields: dict[str, Any]) -> tuple[Blueprint, object]:
    """Return what a configuration describes, and whether its head is tied."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    fields_read = read_config(folder)[0].fields
    return FolderSource(folder).blueprint(), fields_read.get("tie_word_embeddings", False)


def as_transformers_has_it(folder: Path, fields: dict[str, Any]) -> dict[str, Any]:
    """Return all fields of a configuration, as its class fills them in."""
    import transformers

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(fields))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers.AutoConfig.from_pretrained(folder).save_pretrained(folder)
    whole: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return whole


def assert_alike(fields: dict[str, Any], folder: Path) -> None:
    """Compare what is read of a configuration with what is read of it when it is whole."""
    found, is_tied = read(folder / "own", fields)
    wanted, wants_tied = read(folder / "own", as_transformers_has_it(folder / "whole", fields))
    assert is_tied == wants_tied
    measures = (
        "head_size", "key_heads", "inner", "turned", "epsilon", "scale", "score_bound",
        "logits_bound", "logits_factor", "embedding_factor", "residual_factor", "mixture",
        "activation",
    )  # fmt: skip
    for name in measures:
        assert getattr(found, name) == getattr(wanted, name), name
    for own, other in zip(found.layers, wanted.layers, strict=True):
        assert (own.window, own.is_mixture, own.taps) == (
            other.window, other.is_mixture, other.taps,
        )  # fmt: skip
        assert (own.turning is None) == (other.turning is None)
        if own.turning is not None and other.turning is not None:
            assert np.allclose(own.turning.frequencies, other.turning.frequencies, rtol=1e-6)
            assert own.turning.attention == pytest.approx(other.turning.attention)
            assert own.turning.short == other.turning.short


def test_there_is_a_row_for_each() -> None:
    assert set(DEFAULTS) == {name for family in FAMILIES for name in family.configs}


@needs_transformers
@pytest.mark.parametrize("kind", DEFAULTS)
def test_fields_that_are_left_out_are_those_of_the_class(kind: str, tmp_path: Path) -> None:
    assert_alike({**MEASURES, "model_type": kind}, tmp_path)


@needs_transformers
@pytest.mark.parametrize("kind", sorted(DEFAULTS.keys() - {"phi3"}))  # which has long rope alone
def test_a_base_that_is_left_out_is_that_of_the_class(kind: str, tmp_path: Path) -> None:
    rule = {"rope_type": "linear", "factor": 4.0}
    assert_alike({**MEASURES, "model_type": kind, "rope_scaling": rule}, tmp_path)


@needs_transformers
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("smollm3", {"use_sliding_window": True, "sliding_window": 6}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 3}),
        ("qwen2", {"layer_types": ["sliding_attention"] * 8, "sliding_window": 6}),
        ("gemma2", {"sliding_window": 6, "sliding_window_pattern": 3}),
        ("olmo3", {"sliding_window": 6, "sliding_window_pattern": 3}),
        ("gpt_oss", {"sliding_window": 6, "sliding_window_pattern": 3}),
        ("cohere2", {"sliding_window": 6, "sliding_window_pattern": 3}),
        ("exaone4", {"sliding_window": 6, "sliding_window_pattern": 3}),
        ("exaone4", {"sliding_window": 6, "layer_types": ["full_attention"] * 8}),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}),
        ("llama", {
            "rope_scaling": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            }
        }),
        ("llama", {
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e5},
        }),
        ("phi3", {"partial_rotary_factor": 0.5}),
        ("phi3", {
            "original_max_position_embeddings": 64,
            "rope_scaling": {
                "type": "yarn", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64,
            },
        }),
        ("qwen3_moe", {"num_experts": 16}),
    ],
)  # fmt: skip
def test_what_a_class_makes_of_its_fields(
    kind: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    assert_alike({**MEASURES, "model_type": kind, **fields}, tmp_path)


@pytest.mark.parametrize(
    ("kind", "fields", "words"),
    [
        ("llama", {"partial_rotary_factor": 0.5}, "whose class turns whole heads"),
        ("qwen3", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "`partial_rotary_factor`"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "`attn_logit_softcapping` = 50.0 of a"),
        ("llama", {"final_logit_softcapping": 30.0}, "`final_logit_softcapping`"),
        ("llama", {"residual_multiplier": 0.2}, "`residual_multiplier`"),
        ("llama", {"sliding_window": 4096}, "`sliding_window` = 4096 of a `llama`"),
        ("ernie4_5_moe", {"moe_norm_min": 0.5}, "`moe_norm_min` = 0.5"),
    ],
)
def test_what_the_class_of_a_model_does_not_compute(
    kind: str, fields: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        read(tmp_path, {**MEASURES, "model_type": kind, **fields})


@pytest.mark.parametrize(
    "fields", [{"partial_rotary_factor": 1.0}, {"sliding_window": None, "residual_multiplier": 1.0}]
)
def test_what_changes_nothing_is_read(fields: dict[str, Any], tmp_path: Path) -> None:
    assert read(tmp_path, {**MEASURES, "model_type": "llama", **fields})[0].head_size == 128
