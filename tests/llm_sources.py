"""A Hugging Face model of random weights with a tokenizer of its own, for the model builder."""

from __future__ import annotations

import json
from pathlib import Path

import llm_folders

_TEXT = "the small model reads a short text and then it writes another text about the weather"


# Family → transformers' name of it, and what its configuration needs beside the tiny measures.
_CLASSES = {
    "gemma2": ("Gemma2", {"head_dim": 16}),
    "llama": ("Llama", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
}


def random_model(folder: Path, family: str = "llama") -> Path:
    """Write a model of the measures in `llm_folders.TINY`; the same weights every time."""
    import torch
    import transformers
    from tokenizers import ByteLevelBPETokenizer

    folder.mkdir(parents=True)
    name, more = _CLASSES[family]
    measures = {key: value for key, value in llm_folders.TINY.items() if key != "model_type"}
    config = getattr(transformers, f"{name}Config")(
        **measures, **more, bos_token_id=1, eos_token_id=2
    )
    torch.manual_seed(0)
    getattr(transformers, f"{name}ForCausalLM")(config).save_pretrained(folder)
    tokenizer = ByteLevelBPETokenizer()
    specials = ["<pad>", "<s>", "</s>"]
    tokenizer.train_from_iterator([_TEXT] * 4, vocab_size=320, special_tokens=specials)
    tokenizer.save(str(folder / "tokenizer.json"))
    words = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": 128,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(words))
    return folder
