"""A Llama of random weights in an OGA folder, with the nodes that the model builder writes.

The same weights every time; no torch. Both onnxruntime-genai and ours open it. The tokenizer has
a token a byte, and a few special ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

SPECIAL = ("<pad>", "<s>", "</s>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
END = SPECIAL.index("</s>")


@dataclass(frozen=True)
class Tiny:
    """What the model is like."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 16
    inner: int = 96
    vocabulary: int = 320
    context: int = 256
    bits: int = 32  # 4: MatMulNBits in blocks of 32
    seed: int = 0
    split_qkv: bool = False  # Q, K and V apart, rotations apart, positions as an input
    end: int = END

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_size


def write_folder(folder: Path, tiny: Tiny = Tiny()) -> Path:
    """Write the folder of a model: graph, weights, configuration, tokenizer, chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(
        graph(tiny), folder / "model.onnx", save_as_external_data=True, location="model.onnx.data"
    )
    (folder / "genai_config.json").write_text(json.dumps(configuration(tiny), indent=1))
    write_tokenizer(folder, tiny.vocabulary)
    return folder


def configuration(tiny: Tiny) -> dict[str, Any]:
    inputs = {
        "input_ids": "input_ids",
        "attention_mask": "attention_mask",
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    }
    if tiny.split_qkv:
        inputs["position_ids"] = "position_ids"
    outputs = {
        "logits": "logits",
        "present_key_names": "present.%d.key",
        "present_value_names": "present.%d.value",
    }
    return {
        "model": {
            "type": "llama",
            "bos_token_id": 1,
            "eos_token_id": tiny.end,
            "pad_token_id": 0,
            "vocab_size": tiny.vocabulary,
            "context_length": tiny.context,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": "model.onnx",
                "head_size": tiny.head_size,
                "hidden_size": tiny.hidden,
                "num_attention_heads": tiny.heads,
                "num_hidden_layers": tiny.layers,
                "num_key_value_heads": tiny.kv_heads,
                "inputs": inputs,
                "outputs": outputs,
            },
        },
        "search": {
            "do_sample": False,
            "early_stopping": True,
            "length_penalty": 1.0,
            "max_length": tiny.context,
            "min_length": 0,
            "num_beams": 1,
            "num_return_sequences": 1,
            "past_present_share_buffer": True,
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_k": 50,
            "top_p": 1.0,
        },
    }


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Write a byte-level tokenizer without merges, as `tokenizers` and onnxruntime-genai read."""
    words = {word: number for number, word in enumerate(SPECIAL)}
    for letter in _byte_letters():
        words[letter] = len(words)
    for number in range(len(words), vocabulary):
        words[f"Ġunused{number}"] = number
    added = [
        {
            "id": words[word],
            "content": word,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for word in SPECIAL
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    level["use_regex"] = True
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": level,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": words,
            "merges": [],
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
    about = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<pad>",
        "model_max_length": 1 << 20,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def _byte_letters() -> list[str]:
    """Return a letter for each byte, as GPT-2 does: printable ones stand for themselves."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in own]
    letters = {byte: chr(byte) for byte in own}
    letters |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    return [letters[byte] for byte in range(256)]


class _Graph:
    """Nodes and weights, as they come."""

    def __init__(self, tiny: Tiny) -> None:
        self.tiny = tiny
        self.random = np.random.default_rng(tiny.seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}

    def node(
        self, kind: str, inputs: list[str], outputs: list[str], domain: str = "", **attributes: Any
    ) -> str:
        name = f"/{outputs[0]}/{kind}"
        node = helper.make_node(kind, inputs, outputs, name, domain=domain, **attributes)
        self.nodes.append(node)
        return outputs[0]

    def weight(self, name: str, values: NDArray[Any]) -> str:
        self.weights[name] = numpy_helper.from_array(values, name)
        return name

    def norm(self, name: str, width: int) -> str:
        values = 1 + 0.1 * self.random.standard_normal(width)
        return self.weight(name, values.astype(np.float32))

    def product(self, name: str, x: str, depth: int, width: int, output: str = "") -> str:
        spread = 1.0 / np.sqrt(depth)
        values = (self.random.standard_normal((depth, width)) * spread).astype(np.float32)
        out = [output or f"{name}/output_0"]
        if self.tiny.bits == 32:
            return self.node("MatMul", [x, self.weight(f"{name}.weight", values)], out)
        blocks = -(-depth // 32)
        padded = np.zeros((width, blocks * 32), np.float32)
        padded[:, :depth] = values.T
        padded = padded.reshape(width, blocks, 32)
        scales = np.maximum(np.abs(padded).max(axis=2), 1e-6) / 7
        numbers = np.clip(np.rint(padded / scales[..., None]) + 8, 0, 15).astype(np.uint8)
        packed = numbers[..., 0::2] | (numbers[..., 1::2] << 4)
        inputs = [x, self.weight(f"{name}.weight_Q4", packed)]
        inputs.append(self.weight(f"{name}.weight_scales", scales.astype(np.float32)))
        sizes = {"K": depth, "N": width, "bits": 4, "block_size": 32, "accuracy_level": 4}
        return self.node("MatMulNBits", inputs, out, "com.microsoft", **sizes)


def graph(tiny: Tiny) -> onnx.ModelProto:
    made = _Graph(tiny)
    one = made.weight("one", np.array([1], np.int64))
    index = made.weight("index", np.array(1, np.int64))
    made.node("ReduceSum", ["attention_mask", one], ["mask_sum"], keepdims=0)
    made.node("Sub", ["mask_sum", one], ["seqlens_long"])
    made.node("Cast", ["seqlens_long"], ["seqlens"], to=TensorProto.INT32)
    made.node("Shape", ["attention_mask"], ["mask_shape"])
    made.node("Gather", ["mask_shape", index], ["total_long"], axis=0)
    made.node("Cast", ["total_long"], ["total"], to=TensorProto.INT32)
    frequencies = 10000.0 ** (-np.arange(0, tiny.head_size, 2) / tiny.head_size)
    angles = np.arange(tiny.context)[:, None] * frequencies[None, :]
    made.weight("cos_cache", np.cos(angles).astype(np.float32))
    made.weight("sin_cache", np.sin(angles).astype(np.float32))
    table = made.random.standard_normal((tiny.vocabulary, tiny.hidden)).astype(np.float32)
    made.weight("model.embed_tokens.weight", table)
    x = made.node("Gather", ["model.embed_tokens.weight", "input_ids"], ["embedded"])
    eps = {"epsilon": 1e-5}
    norm = made.norm("model.layers.0.input_layernorm.weight", tiny.hidden)
    normed = made.node(
        "SimplifiedLayerNormalization", [x, norm], ["normed.0"], axis=-1, stash_type=1, **eps
    )
    for layer in range(tiny.layers):
        x, normed = _layer(made, layer, x, normed)
    made.product("/lm_head/MatMul", normed, tiny.hidden, tiny.vocabulary, "logits")
    return _model(made)


def _layer(made: _Graph, layer: int, x: str, normed: str) -> tuple[str, str]:
    tiny, at = made.tiny, f"/model/layers.{layer}"
    attended = _attention(made, layer, at, normed)
    o = made.product(f"{at}/attn/o_proj", attended, tiny.heads * tiny.head_size, tiny.hidden)
    x, normed = _skip_norm(made, f"{at}/post_attention_layernorm", x, o)
    gate = made.product(f"{at}/mlp/gate_proj", normed, tiny.hidden, tiny.inner)
    up = made.product(f"{at}/mlp/up_proj", normed, tiny.hidden, tiny.inner)
    made.node("Sigmoid", [gate], [f"{at}/sigmoid"])
    made.node("Mul", [gate, f"{at}/sigmoid"], [f"{at}/silu"])
    made.node("Mul", [f"{at}/silu", up], [f"{at}/gated"])
    down = made.product(f"{at}/mlp/down_proj", f"{at}/gated", tiny.inner, tiny.hidden)
    return _skip_norm(made, f"/model/layers.{layer + 1}/input_layernorm", x, down)


def _skip_norm(made: _Graph, name: str, x: str, other: str) -> tuple[str, str]:
    scale = made.norm(f"{name}.weight", made.tiny.hidden)
    outputs = [f"{name}/output_0", "", "", f"{name}/output_3"]
    kind = "SkipSimplifiedLayerNormalization"
    made.node(kind, [x, other, scale], outputs, "com.microsoft", epsilon=1e-5)
    return outputs[3], outputs[0]


def _attention(made: _Graph, layer: int, at: str, normed: str) -> str:
    tiny = made.tiny
    width, kv_width = tiny.heads * tiny.head_size, tiny.kv_width
    if tiny.split_qkv:
        parts = [
            made.product(f"{at}/attn/{name}_proj", normed, tiny.hidden, size)
            for name, size in (("q", width), ("k", kv_width), ("v", kv_width))
        ]
        for index, heads in ((0, tiny.heads), (1, tiny.kv_heads)):
            inputs = [parts[index], "position_ids", "cos_cache", "sin_cache"]
            name = f"{at}/attn/rotated.{index}"
            sizes = {"num_heads": heads, "rotary_embedding_dim": 0}
            parts[index] = made.node("RotaryEmbedding", inputs, [name], "com.microsoft", **sizes)
    else:
        qkv = made.product(f"{at}/attn/qkv_proj", normed, tiny.hidden, width + 2 * kv_width)
        parts = [qkv, "", ""]
    caches = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
    inputs = [*parts, *caches, "seqlens", "total"]
    inputs += [] if tiny.split_qkv else ["cos_cache", "sin_cache"]
    outputs = [f"{at}/attn/output_0", *(f"present.{layer}.{kind}" for kind in ("key", "value"))]
    return made.node(
        "GroupQueryAttention",
        inputs,
        outputs,
        "com.microsoft",
        num_heads=tiny.heads,
        kv_num_heads=tiny.kv_heads,
        scale=tiny.head_size**-0.5,
        local_window_size=-1,
        softcap=0.0,
        do_rotary=0 if tiny.split_qkv else 1,
        rotary_interleaved=0,
    )


def _model(made: _Graph) -> onnx.ModelProto:
    tiny = made.tiny
    info = helper.make_tensor_value_info
    places = [f"{layer}.{kind}" for layer in range(tiny.layers) for kind in ("key", "value")]
    past = ["batch", tiny.kv_heads, "past", tiny.head_size]
    present = ["batch", tiny.kv_heads, "total_length", tiny.head_size]
    tokens, numbers = ["batch", "tokens"], TensorProto.INT64
    inputs = [info("input_ids", numbers, tokens)]
    inputs.append(info("attention_mask", numbers, ["batch", "total_length"]))
    if tiny.split_qkv:
        inputs.append(info("position_ids", numbers, tokens))
    inputs += [info(f"past_key_values.{place}", TensorProto.FLOAT, past) for place in places]
    outputs = [info("logits", TensorProto.FLOAT, [*tokens, tiny.vocabulary])]
    outputs += [info(f"present.{place}", TensorProto.FLOAT, present) for place in places]
    weights = list(made.weights.values())
    main = helper.make_graph(made.nodes, "main_graph", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(main, opset_imports=opsets, ir_version=10)
