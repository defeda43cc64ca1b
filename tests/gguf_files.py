"""GGUF files, written for tests: a model of transformers under GGUF's names, or any tensors."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiny_llama import _byte_letters
from vermilion.llm.gguf import _TENSOR_TYPES

NUMBERS = {name: (number, block, size) for number, (name, block, size) in _TENSOR_TYPES.items()}
SPECIAL = ("<s>", "</s>", "<pad>")
TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }}\n{% endfor %}[assistant] "
Stored = tuple[str, NDArray[np.uint8]]


def write_gguf(
    path: Path, metadata: Mapping[str, object], tensors: Mapping[str, NDArray[Any] | Stored]
) -> Path:
    """Write a file: float32 arrays, or the name of a type with the bytes of its rows."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _text(key) + _value(value)
    body = bytearray()
    for name, given in tensors.items():
        kind, rows = given if isinstance(given, tuple) else ("F32", _bytes(given))
        number, block, size = NUMBERS[kind]
        shape = (*rows.shape[:-1], rows.shape[-1] // size * block)
        head += _text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", number, len(body))
        body += rows.tobytes()
        body += bytes(-len(body) % 32)
    path.write_bytes(head + bytes(-len(head) % 32) + body)
    return path


def _bytes(values: NDArray[Any]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values, np.float32).view(np.uint8)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: object) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    assert isinstance(value, list), "text, number or list"
    if not value or isinstance(value[0], str):
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(map(_text, value))
    if isinstance(value[0], float):
        return struct.pack("<IIQ", 9, 6, len(value)) + np.array(value, "<f4").tobytes()
    return struct.pack("<IIQ", 9, 5, len(value)) + np.array(value, "<i4").tobytes()


def vocabulary(count: int) -> dict[str, object]:
    """Return the metadata of a tokenizer with a token a byte, and some of two."""
    letters = _byte_letters()
    pairs = [a + b for a in "etaoinshr" for b in "abcdefghijklmnopqrstuvwxyz"]
    tokens = [*SPECIAL, *letters, *pairs][:count]
    tokens += [f"unused{at}" for at in range(len(tokens), count)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3, *[1] * (count - 3)],
        "tokenizer.ggml.merges": [f"{t[0]} {t[1]}" for t in tokens if len(t) == 2],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.chat_template": TEMPLATE,
    }


# A model of transformers -------------------------------------------------------------------------

_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output", "self_attn.dense": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.gate_up_proj": "ffn_up",
    "mlp.fc1": "ffn_up", "mlp.c_fc": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.fc2": "ffn_down",
    "mlp.c_proj": "ffn_down", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate": "ffn_gate_inp", "feed_forward.gate": "ffn_gate_inp", "mlp.router": "ffn_gate_inp",
    "block_sparse_moe.router": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm",
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm", "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm",
    "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down", "feed_forward.w3": "ffn_up",
    **{f"conv.{one}": f"shortconv.{one}" for one in ("conv", "in_proj", "out_proj")},
    **{f"mlp.shared_expert{s}.{one}_proj": f"ffn_{one}_shexp"
       for one in ("gate", "up", "down") for s in ("", "s")},
}  # fmt: skip
# Tensors of a layer whose names do not end with what they are.
_WHOLE_NAMES = {
    "self_attn.sinks": "attn_sinks.weight",
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
    "feed_forward.expert_bias": "exp_probs_b.bias",
    "mlp.gate.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
}
_EXPERTS = ("gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias")
_WHOLE = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "model.final_layernorm": "output_norm", "model.embedding_norm": "token_embd_norm",
}  # fmt: skip


@dataclass(frozen=True)
class AsGguf:
    """How a model is written: its architecture, and what of it is not as in a folder."""

    architecture: str
    keys: Mapping[str, object] = field(default_factory=dict)
    is_layer_norm: bool = False
    has_pairs: bool = False  # heads turn neighbours: rows of queries and keys are reordered
    has_post_norms: bool = False
    norm_offset: float = 0.0
    turned: int = 0  # numbers of a head; 0: all
    is_interleaved: bool = False  # what gates and what is gated of experts, and their rows turned


def metadata_of(model: Any, how: AsGguf) -> dict[str, object]:
    """Return the metadata of a model."""
    c, name = model.config, how.architecture
    size = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    epsilon = getattr(c, "rms_norm_eps", None) or getattr(
        c, "layer_norm_eps", getattr(c, "norm_epsilon", getattr(c, "norm_eps", 1e-5))
    )
    norm = "layer_norm_epsilon" if how.is_layer_norm else "layer_norm_rms_epsilon"
    rope = c.rope_parameters or {}
    rope = rope.get("full_attention", rope)
    own = {
        "embedding_length": c.hidden_size, "block_count": c.num_hidden_layers,
        "context_length": c.max_position_embeddings, "feed_forward_length": c.intermediate_size,
        "attention.head_count": c.num_attention_heads,
        "attention.head_count_kv": c.num_key_value_heads, f"attention.{norm}": float(epsilon),
        "attention.key_length": size, "attention.value_length": size,
        "rope.dimension_count": how.turned or size,
        "rope.freq_base": float(rope.get("rope_theta", 1e6)), **how.keys,
    }  # fmt: skip
    return {
        "general.architecture": name,
        **{f"{name}.{key}": value for key, value in own.items()},
        **vocabulary(c.vocab_size),
    }


def tensors_of(model: Any, how: AsGguf) -> dict[str, NDArray[Any]]:
    """Return the weights of a model under GGUF's names."""
    c = model.config
    size = getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    found: dict[str, NDArray[Any]] = {}
    for name, weight in model.state_dict().items():
        base, _, kind = name.rpartition(".")
        values = weight.numpy()
        if base == "lm_head" and c.tie_word_embeddings:
            continue
        if base in _WHOLE:
            stored = _WHOLE[base]
        else:
            _, _, number, rest = base.split(".", 3)
            own = f"{rest}.{kind}"
            if own in _WHOLE_NAMES:
                found[f"blk.{number}.{_WHOLE_NAMES[own]}"] = values.reshape(-1)
                continue
            if kind in _EXPERTS:
                found |= _experts(f"blk.{number}", kind, values, how)
                continue
            after = "post_attention_norm" if how.has_post_norms else "ffn_norm"
            own = {**_LAYER, "post_attention_layernorm": after}[rest]
            stored = f"blk.{number}.{own}"
            if own == "ffn_gate_inp_shexp":
                values = values.reshape(-1)
            if own == "shortconv.conv" and kind == "weight":
                values = values[:, 0]
            if how.has_pairs and own in ("attn_q", "attn_k"):
                values = _neighbours(values, size, how.turned or size)
        if "norm" in base:
            values = values + np.float32(how.norm_offset if kind == "weight" else 0)
        found[f"{stored}.{kind}"] = values
    return found


def _experts(
    layer: str, kind: str, values: NDArray[Any], how: AsGguf
) -> dict[str, NDArray[Any]]:  # fmt: skip
    """Return the matrices of all experts, or their biases, as they are stored."""
    name = kind.removesuffix("_bias")
    last = "weight" if name == kind else "bias"
    if how.is_interleaved and last == "weight":
        values = values.swapaxes(1, 2)
    if name == "down_proj":
        return {f"{layer}.ffn_down_exps.{last}": np.ascontiguousarray(values)}
    half = values.shape[1] // 2
    places = (slice(0, half), slice(half, None))
    if how.is_interleaved:
        places = (slice(0, None, 2), slice(1, None, 2))
    return {
        f"{layer}.ffn_{one}_exps.{last}": np.ascontiguousarray(values[:, place])
        for one, place in zip(("gate", "up"), places, strict=True)
    }


def _neighbours(values: NDArray[Any], size: int, turned: int) -> NDArray[Any]:
    """Return rows in which numbers that are turned together lie side by side."""
    heads = values.reshape(-1, size, *values.shape[1:])
    order = np.arange(size)
    order[:turned] = np.arange(turned).reshape(2, -1).T.reshape(-1)
    return heads[:, order].reshape(values.shape)
