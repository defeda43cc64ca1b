"""A Hugging Face model of random weights with a tokenizer of its own, for the model builder."""

from __future__ import annotations

import json
from pathlib import Path

import llm_folders

_TEXT = "the small model reads a short text and then it writes another text about the weather"


def random_llama(folder: Path) -> Path:
    """Write the model of `llm_folders.TINY`; the same weights every time."""
    import torch
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM

    folder.mkdir(parents=True)
    names = {key: value for key, value in llm_folders.TINY.items() if key != "model_type"}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**names, bos_token_id=1, eos_token_id=2)).save_pretrained(folder)
    tokenizer = ByteLevelBPETokenizer()
    specials = ["<pad>", "<s>", "</s>"]
    tokenizer.train_from_iterator([_TEXT] * 4, vocab_size=320, special_tokens=specials)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "GPT2Tokenizer",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": 128,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
