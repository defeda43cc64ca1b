"""A GGUF file → a folder of plain floats for Hugging Face: transformers and gguf do it.

`python -m vermilion.llm.gguf_folder FILE.gguf FOLDER` is a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def convert(source: Path, folder: Path) -> None:
    """Read the weights, undo their quantization and save them with the tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    named = {"gguf_file": source.name, "trust_remote_code": False}
    tokenizer = AutoTokenizer.from_pretrained(source.parent, **named)
    model: Any = AutoModelForCausalLM.from_pretrained(
        source.parent,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
        **named,
    )
    # transformers 5 keeps the mark of a quantized model on one that is not any more, and then
    # refuses to save it.
    for holder, name in (
        (model, "hf_quantizer"),
        (model, "is_quantized"),
        (model, "quantization_method"),
        (model.config, "quantization_config"),
    ):
        if name in vars(holder):
            delattr(holder, name)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
