"""Language models small enough for tests: GGUF headers, configurations, OGA folders."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SMOLLM2: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
TINY: Mapping[str, Any] = {
    **SMOLLM2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 320,
    "max_position_embeddings": 128,
}

GGUF_LLAMA: Mapping[str, object] = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.context_length": 128,
    "tokenizer.ggml.tokens": [f"word {i}" for i in range(2000)],
}


def gguf_bytes(
    metadata: Mapping[str, object] = GGUF_LLAMA,
    tensors: Sequence[tuple[str, tuple[int, ...]]] = (("token_embd.weight", (64, 320)),),
    version: int = 3,
) -> bytes:
    """Return a GGUF file with F32 tensors of zeros."""
    out = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += _text(key) + _value(value)
    offset = 0
    for name, shape in tensors:
        out += _text(name) + struct.pack("<I", len(shape))
        out += struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", 0, offset)
        offset += 4 * int(np.prod(shape))
    return out + bytes(-len(out) % 32) + bytes(offset)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: object) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    assert isinstance(value, list), "text, number or list of texts"
    items = b"".join(_text(item) for item in value)
    return struct.pack("<IIQ", 9, 8, len(value)) + items


def config_file(folder: Path, **changes: object) -> Path:
    """Write a `config.json`; a change to None removes the key."""
    data = {key: value for key, value in {**TINY, **changes}.items() if value is not None}
    path = folder / "config.json"
    path.write_text(json.dumps(data))
    return path


def genai_data() -> dict[str, Any]:
    """Return the configuration of the folder below, as the builder writes it."""
    return {
        "model": {
            "type": "llama",
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 2,
            "vocab_size": 320,
            "context_length": 128,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": "model.onnx",
                "head_size": 16,
                "hidden_size": 64,
                "num_attention_heads": 4,
                "num_hidden_layers": 2,
                "num_key_value_heads": 2,
                "inputs": {"input_ids": "input_ids", "attention_mask": "attention_mask"},
                "outputs": {"logits": "logits"},
            },
        },
        "search": {"max_length": 128, "past_present_share_buffer": True},
    }


def oga_folder(folder: Path, data: Mapping[str, Any] | None = None) -> Path:
    """Write a folder like the builder's for `TINY`, with a graph that is read and never run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "genai_config.json").write_text(json.dumps(data or genai_data()))
    (folder / "tokenizer.json").write_text("{}")
    onnx.save(_graph(), folder / "model.onnx")
    return folder


def _graph() -> onnx.ModelProto:
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(name: str, shape: tuple[int, ...], dtype: str = "float32") -> str:
        weights.append(numpy_helper.from_array(np.zeros(shape, dtype), name))
        return name

    def product(name: str, x: str, depth: int, width: int) -> str:
        blocks = -(-depth // 32)
        inputs = [x, weight(f"{name}.B", (width, blocks, 16), "uint8")]
        inputs.append(weight(f"{name}.scales", (width, blocks)))
        sizes = {"K": depth, "N": width, "bits": 4, "block_size": 32, "accuracy_level": 4}
        nodes.append(_node("MatMulNBits", inputs, [f"{name}.y"], name, **sizes))
        return f"{name}.y"

    table = weight("embed.weight", (320, 64))
    nodes.append(_node("Gather", [table, "input_ids"], ["x"], "/model/embed_tokens/Gather", ""))
    x = "x"
    for layer in range(2):
        at = f"/model/layers.{layer}"
        scale = weight(f"{at}.norm", (64,))
        nodes.append(
            _node("SimplifiedLayerNormalization", [x, scale], [f"{at}.n"], at, "", axis=-1)
        )
        qkv = product(f"{at}/attn/qkv_proj/MatMul", f"{at}.n", 64, 128)
        caches = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        lengths = ["seqlens", "total"]
        rotary = [weight(f"{at}.cos", (128, 8)), weight(f"{at}.sin", (128, 8))]
        outs = [f"{at}.a", *(f"present.{layer}.{kind}" for kind in ("key", "value"))]
        heads = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}
        inputs = [qkv, "", "", *caches, *lengths, *rotary]
        nodes.append(_node("GroupQueryAttention", inputs, outs, f"{at}/attn", **heads))
        o = product(f"{at}/attn/o_proj/MatMul", f"{at}.a", 64, 64)
        scale = weight(f"{at}.norm2", (64,))
        outs = [f"{at}.n2", "", "", f"{at}.sum"]
        name = f"{at}/post_attention_layernorm"
        nodes.append(_node("SkipSimplifiedLayerNormalization", [x, o, scale], outs, name))
        gate = product(f"{at}/mlp/gate_proj/MatMul", f"{at}.n2", 64, 96)
        up = product(f"{at}/mlp/up_proj/MatMul", f"{at}.n2", 64, 96)
        nodes.append(_node("Sigmoid", [gate], [f"{at}.s"], f"{at}/act", ""))
        nodes.append(_node("Mul", [gate, f"{at}.s"], [f"{at}.g"], f"{at}/act/Mul", ""))
        nodes.append(_node("Mul", [f"{at}.g", up], [f"{at}.h"], f"{at}/Mul", ""))
        x = product(f"{at}/mlp/down_proj/MatMul", f"{at}.h", 96, 64)
    scale = weight("final.norm", (64,))
    inputs = [x, scale]
    nodes.append(_node("SimplifiedLayerNormalization", inputs, ["f"], "/final_norm", "", axis=-1))
    nodes.append(
        _node("Identity", [product("/lm_head/MatMul", "f", 64, 320)], ["logits"], "out", "")
    )
    return _model(nodes, weights)


def _model(nodes: list[onnx.NodeProto], weights: list[onnx.TensorProto]) -> onnx.ModelProto:
    def info(name: str, kind: int, shape: list[Any]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    cache = ["batch", 2, "past", 16]
    places = [f"{layer}.{kind}" for layer in range(2) for kind in ("key", "value")]
    inputs = [
        info("input_ids", TensorProto.INT64, ["batch", "tokens"]),
        info("seqlens", TensorProto.INT32, ["batch"]),
        info("total", TensorProto.INT32, [1]),
        *(info(f"past_key_values.{place}", TensorProto.FLOAT, cache) for place in places),
    ]
    outputs = [
        info("logits", TensorProto.FLOAT, ["batch", "tokens", 320]),
        *(info(f"present.{place}", TensorProto.FLOAT, ["batch", 2, "all", 16]) for place in places),
    ]
    graph = helper.make_graph(nodes, "main_graph", inputs, outputs, weights)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _node(
    kind: str,
    inputs: list[str],
    outputs: list[str],
    name: str,
    domain: str = "com.microsoft",
    **attributes: int,
) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, outputs, name, domain=domain, **attributes)
