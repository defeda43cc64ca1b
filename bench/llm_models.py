"""The models of the language benchmark: a Llama of a billion random weights, and GGUF files.

    python bench/llm_models.py random TOKENIZER_DIR -o HF_DIR
    python bench/llm_models.py gguf HF_DIR TOKENIZER.gguf -o FILE.gguf

`random` writes a Hugging Face folder of the shape of a Llama 3.2 1B with the tokenizer of another
folder, always the same weights. `gguf` writes any Llama folder as Q4_0 (4 bits, a scale for 32
weights, as an OGA folder with `--block 32` has it), the head too, with the tokenizer fields of
another GGUF file. The OGA folder is `vermilion llm build HF_DIR -o OGA_DIR`. What it needs:
`pip install gguf safetensors`.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from gguf.quants import quantize
from safetensors import safe_open
from safetensors.numpy import save_file

SEED = 20261128
# The standard deviation that Llama's own configuration initializes with.
DEVIATION = 0.02
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
# Fields of a GGUF file that say what its tokenizer is.
TOKENIZER_PREFIX = "tokenizer."

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "dtype": "bfloat16",
    "eos_token_id": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": DEVIATION,
    "intermediate_size": 8192,
    "max_position_embeddings": 4096,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 49152,
}

# The parts of a layer: Hugging Face's name to GGUF's.
PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def main() -> None:
    """Write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    random = verbs.add_parser("random")
    random.add_argument("tokenizer", type=Path, help="a folder with tokenizer.json")
    random.add_argument("-o", "--out", type=Path, required=True)
    file = verbs.add_parser("gguf")
    file.add_argument("folder", type=Path)
    file.add_argument("tokenizer", type=Path, help="a GGUF file with the same tokenizer")
    file.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    if options.verb == "random":
        write_random(options.tokenizer, options.out)
    else:
        write_gguf(options.folder, options.tokenizer, options.out)


def write_random(tokenizer: Path, out: Path, config: dict[str, Any] = CONFIG) -> None:
    """Write a Hugging Face folder of random weights."""
    out.mkdir(parents=True, exist_ok=True)
    save_file(dict(random_weights(config)), out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=1), "utf-8")
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, out / name)


def random_weights(config: dict[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every tensor of a Llama with a tied head, by Hugging Face's names."""
    random = np.random.default_rng(SEED)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    yield "model.embed_tokens.weight", _weight(random, (config["vocab_size"], hidden))
    for layer in range(config["num_hidden_layers"]):
        for part, shape in shapes.items():
            yield f"model.layers.{layer}.{part}.weight", _weight(random, shape)
    yield "model.norm.weight", _weight(random, (hidden,))


def _weight(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Return a matrix of normal values, or the ones of a norm."""
    if len(shape) == 1:
        return np.ones(shape, ml_dtypes.bfloat16)
    values = random.standard_normal(shape, np.float32)
    values *= DEVIATION
    return values.astype(ml_dtypes.bfloat16)


def write_gguf(folder: Path, tokenizer: Path, out: Path) -> None:
    """Write a Llama folder with a tied head as a GGUF file of Q4_0."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    writer = gguf.GGUFWriter(out, "llama")
    _add_shape(writer, config, folder.name)
    _add_tokenizer(writer, tokenizer)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    with safe_open(folder / "model.safetensors", "numpy") as weights:
        for name in weights.keys():  # noqa: SIM118 -- not a mapping
            known = gguf_name(name)
            values = np.asarray(weights.get_tensor(name), np.float32)
            if values.ndim == 1:
                writer.add_tensor(known, values)
                continue
            count = heads.get(known.split(".")[-2])
            if count:
                values = interleave(values, count)
            kind = gguf.GGMLQuantizationType.Q4_0
            writer.add_tensor(known, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def gguf_name(name: str) -> str:
    """Return GGUF's name of a tensor.

    Raises: KeyError for one that a Llama does not have.
    """
    known = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
    }
    if name in known:
        return known[name]
    _, _, layer, part = name.removesuffix(".weight").split(".", 3)
    return f"blk.{layer}.{PARTS[part]}.weight"


def interleave(values: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows in the order in which GGUF's Llama rotates them: pairs beside each other."""
    rows, columns = values.shape
    halves = values.reshape(heads, 2, rows // heads // 2, columns)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows, columns)


def _add_shape(writer: gguf.GGUFWriter, config: dict[str, Any], name: str) -> None:
    writer.add_name(name)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)


def _add_tokenizer(writer: gguf.GGUFWriter, donor: Path) -> None:
    for field in gguf.GGUFReader(donor).fields.values():
        if field.name.startswith(TOKENIZER_PREFIX):
            kind, *inner = field.types
            writer.add_key_value(
                field.name, field.contents(), kind, sub_type=inner[-1] if inner else None
            )


if __name__ == "__main__":
    main()
