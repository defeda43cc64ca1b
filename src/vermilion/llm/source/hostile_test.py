"""Damaged and hostile files: a model, or one clear error, whatever the bytes are."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gguf_files import write_gguf
from vermilion.errors import ModelError, UnsupportedError, VermilionError
from vermilion.llm.engine.block_types import block_type
from vermilion.llm.source.open_source import FolderSource, GgufSource
from vermilion.llm.source.read_gguf_test import mixture, small
from vermilion.llm.source.safetensors import read_safetensors

COUNT = 1000
CONFIG = {
    "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "eos_token_id": 1,
    "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 32,
    "max_position_embeddings": 64,
}  # fmt: skip


def damaged(whole: bytes, head: int, chance: random.Random) -> bytes:
    """Change, cut, repeat or fill some bytes of the first ones of a file."""
    data = bytearray(whole)
    kind = chance.randrange(5)
    if kind == 0:
        return bytes(data[: chance.randrange(len(data))])
    for _ in range(chance.randint(1, 6)):
        at = chance.randrange(head)
        if kind == 1:
            data[at] = chance.randrange(256)
        elif kind == 2:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 3:
            value = chance.choice((0, 1, 255, 1 << 31, (1 << 63) - 1, (1 << 64) - 1))
            data[at : at + 8] = struct.pack("<Q", value)
        else:
            begin = chance.randrange(head)
            data[at:at] = data[begin : begin + chance.randint(1, 64)]
    return bytes(data)


def refusals(
    path: Path, whole: bytes, head: int, read: Callable[[], object], count: int = COUNT
) -> int:
    """Read a file damaged in many ways; return how often that was refused."""
    chance, refused = random.Random(11), 0
    for _ in range(count):
        path.write_bytes(damaged(whole, head, chance))
        try:
            read()
        except VermilionError:
            refused += 1
    return refused


def test_damaged_gguf_files(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    type_ = block_type("Q4_K")
    assert type_ is not None
    blocks = np.zeros((64, type_.bytes * 1), np.uint8)
    small(path, **{"blk.0.ffn_down.weight": ("Q4_K", blocks)}, **{
        "blk.0.ffn_gate.weight": np.ones((256, 64)), "blk.0.ffn_up.weight": np.ones((256, 64))
    }, keys={"llama.feed_forward_length": 256})  # fmt: skip
    whole = path.read_bytes()
    head = whole.index(b"blk.0.ffn_down") + 200

    def read() -> None:
        source = GgufSource(path)
        source.config()
        source.describe()

    read()
    assert COUNT // 3 < refusals(path, whole, head, read) < COUNT


_ODD = (
    "", "x", 0, 1, 7, (1 << 31) - 1, 0.0, -1.5, 1e30, float("nan"), float("inf"), True, False, [],
    ["a"], [1, 2, 3], [0.5],
)  # fmt: skip
_KEYS = (
    "general.architecture", "general.alignment", "split.count", "llama.attention.causal",
    "llama.attention.head_count", "llama.attention.head_count_kv", "llama.attention.key_length",
    "llama.attention.layer_norm_rms_epsilon", "llama.attention.scale",
    "llama.attention.sliding_window", "llama.attention.sliding_window_pattern",
    "llama.attention.value_length", "llama.attn_logit_softcapping", "llama.block_count",
    "llama.context_length", "llama.embedding_length", "llama.expert_count",
    "llama.expert_gating_func", "llama.expert_used_count", "llama.feed_forward_length",
    "llama.logit_scale", "llama.nextn_predict_layers", "llama.rope.dimension_count",
    "llama.rope.freq_base", "llama.rope.freq_base_swa", "llama.rope.scaling.attn_factor",
    "llama.rope.scaling.factor", "llama.rope.scaling.original_context_length",
    "llama.rope.scaling.type", "llama.rope.scaling.yarn_beta_fast", "llama.vocab_size",
    "tokenizer.chat_template", "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix",
    "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id", "tokenizer.ggml.merges",
    "tokenizer.ggml.model", "tokenizer.ggml.padding_token_id", "tokenizer.ggml.pre",
    "tokenizer.ggml.scores", "tokenizer.ggml.token_type", "tokenizer.ggml.tokens",
)  # fmt: skip


@pytest.mark.parametrize("key", _KEYS)
@pytest.mark.parametrize("rule", ["", "yarn"])
def test_values_that_no_writer_makes(key: str, rule: str, tmp_path: Path) -> None:
    """Whole files, of which one value is of another type or size."""
    path = tmp_path / "m.gguf"
    scaling = {"llama.rope.scaling.type": rule, "llama.rope.scaling.factor": 4.0} if rule else {}
    for value in _ODD:
        source = small(path, {**scaling, key: value})
        told = ""
        try:
            source.config()
            source.describe()
        except VermilionError as error:
            told = error.message
        assert len(told) < 500, value


def test_damaged_mixtures(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    mixture(path, {"llama.expert_gating_func": 2, "llama.expert_weights_norm": True})
    whole = path.read_bytes()
    head = whole.index(b"blk.0.ffn_down_exps") + 60
    assert COUNT // 20 < refusals(path, whole, head, lambda: GgufSource(path).describe(), 200) < 200


def test_damaged_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    rows = {name: np.ones((4, 8), np.float32) for name in ("a.weight", "b.weight", "c.weight")}
    header, at, body = {}, 0, b""
    for name, values in rows.items():
        end = at + values.nbytes
        header[name] = {"dtype": "F32", "shape": [4, 8], "data_offsets": [at, end]}
        body, at = body + values.tobytes(), end
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    whole = struct.pack("<Q", len(text)) + text + body
    path.write_bytes(whole)
    assert set(read_safetensors(path)) == set(rows)
    refused = refusals(path, whole, 8 + len(text), lambda: read_safetensors(path))
    assert COUNT // 3 < refused < COUNT


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"dtype": "F32", "shape": [4], "data_offsets": [0, 1 << 40]}, "cut short"),
        ({"dtype": "F32", "shape": [5], "data_offsets": [0, 16]}, "another size"),
        ({"dtype": "F33", "shape": [4], "data_offsets": [0, 16]}, "the type 'F33'"),
        ({"dtype": "F32", "shape": [-4], "data_offsets": [0, 16]}, "no shape"),
        ({"dtype": "F32", "shape": [1 << 60, 16], "data_offsets": [0, 16]}, "no shape"),
        ([], "the type None"),
    ],
)
def test_tensors_that_cannot_be(about: object, words: str, tmp_path: Path) -> None:
    text = json.dumps({"a": about}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(16))
    with pytest.raises(ModelError, match=words):
        read_safetensors(path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "ministral3"}, "scaled by their position"),
        ({"model_type": "gemma3"}, "reads images or sound"),
        ({"model_type": "unheard_of"}, "`unheard_of` are not read"),
        ({"num_local_experts": 8}, "`num_local_experts` = 8"),
        ({"rope_scaling": {"rope_type": "proportional"}}, "rule `proportional`"),
        ({"rope_parameters": {"llama_4_scaling_beta": 0.1}}, "`llama_4_scaling_beta` = 0.1"),
        ({"hidden_act": "mish"}, "activation `mish`"),
        ({"layer_types": ["chunked_attention"]}, "chunked_attention"),
    ],
)
def test_configurations_that_are_not_computed(
    change: dict[str, object], words: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(UnsupportedError, match=words):
        FolderSource(tmp_path).blueprint()


def test_an_index_that_leads_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2) + b"{}")
    index = {"weight_map": {"a": "../../etc/passwd"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="no file of this folder"):
        FolderSource(tmp_path).describe()


def test_a_block_that_is_cut_by_a_row(tmp_path: Path) -> None:
    small(tmp_path / "m.gguf")
    rows = np.zeros((320, 18 * 2), np.uint8)
    write_gguf(tmp_path / "q.gguf", {"general.architecture": "llama"}, {"a.weight": ("Q4_0", rows)})
    data = bytearray((tmp_path / "q.gguf").read_bytes())
    at = data.index(b"a.weight") + len(b"a.weight") + 4
    data[at : at + 8] = struct.pack("<Q", 48)  # no whole blocks of 32
    (tmp_path / "q.gguf").write_bytes(bytes(data))
    file = GgufSource(tmp_path / "q.gguf").file
    tensor = file.tensor("a.weight")
    assert tensor is not None
    with pytest.raises(ModelError, match="no whole blocks of 32"):
        file.rows(tensor)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_theta": 1}, "by powers of 1"),
        (
            {
                "rope_scaling": {
                    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0,
                    "high_freq_factor": 4.0,
                }
            },
            "`low_freq_factor` and `high_freq_factor` are 4.0",
        ),
    ],
)  # fmt: skip
def test_rotations_that_cannot_be(change: dict[str, object], words: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(ModelError, match=words):
        FolderSource(tmp_path).blueprint()
