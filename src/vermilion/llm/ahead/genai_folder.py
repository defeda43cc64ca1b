"""A compiled decoder → a folder of onnxruntime-genai whose decoder runs in our plugin.

Its graph is one context node. Keys and values of a sequence lie where onnxruntime-genai keeps them,
in the form of our kernels: what it hands over as past is what it takes as present.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from vermilion.clib.library import PROVIDER
from vermilion.errors import ArtifactError, OptionError, UnsupportedError
from vermilion.llm.ahead.parts import PART
from vermilion.llm.ahead.write import TargetDecoder, write_decoder_bundle
from vermilion.llm.engine.image import Facts
from vermilion.llm.genai_config import NAME, GenaiConfig
from vermilion.runtime.ep_context import CONTEXT, DOMAIN, OPERATOR
from vermilion.store.ed25519 import SigningKey
from vermilion.version import VERSION

MODEL, BUNDLE = "model_ctx.onnx", "model_ctx.rai"
_IR_VERSION, _OPSET = 9, 17
# What a folder has beside its graph: the tokenizer, chat templates.
_TEXT_FILES = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt",
    "*.jinja", "generation_config.json",
)  # fmt: skip
_NAMES = {
    "inputs": {
        "input_ids": "input_ids",
        "attention_mask": "attention_mask",
        "past_key_names": "past_key_values.%d.key",
        "past_value_names": "past_key_values.%d.value",
    },
    "outputs": {
        "logits": "logits",
        "present_key_names": "present.%d.key",
        "present_value_names": "present.%d.value",
    },
}


def write_genai_folder(
    made: TargetDecoder, config: GenaiConfig, context: int, folder: Path, key: SigningKey | None
) -> None:
    """Write a folder beside its place, then rename it.

    Raises: OptionError where there is one already; UnsupportedError for models that it cannot hold;
    ArtifactError where it cannot be written.
    """
    facts = made.image.facts
    _check(facts, context, folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
            place = Path(name) / "folder"
            place.mkdir()
            graph = context_graph(made).SerializeToString(deterministic=True)
            (place / MODEL).write_bytes(graph)
            write_decoder_bundle(made, place / BUNDLE, key, graph)
            text = json.dumps(_configuration(config, facts, context), indent=1)
            (place / NAME).write_text(text, encoding="utf-8")
            for file in _text_files(config):
                shutil.copy(file, place / file.name)
            if config.source is not None and not (place / "tokenizer.json").is_file():
                own = config.source.tokenizer_file()
                (place / "tokenizer.json").write_text(own, encoding="utf-8")
            place.rename(folder)
    except OSError as error:
        raise ArtifactError(
            f"the folder cannot be written: {error.strerror or error}",
            where=str(folder),
            hint="choose a place that you may write to, with room for it",
        ) from error


def _check(facts: Facts, context: int, folder: Path) -> None:
    if folder.exists():
        raise OptionError(
            f"`{folder}` is there already", where="--output", hint="name a new folder"
        )
    if 0 < facts.short < context:
        raise UnsupportedError(
            f"sequences of more than {facts.short} tokens turn all positions otherwise, which "
            "onnxruntime-genai does not read again",
            where=str(folder),
            hint=f"`--context {facts.short}`",
        )


def context_graph(made: TargetDecoder) -> onnx.ModelProto:
    """Return the graph of one node, with onnxruntime-genai's inputs and outputs."""
    facts = made.image.facts
    # Room for blocks of 64 tokens: numbers of float32 take twice what ours do, or there are twice
    # as many.
    wider = 2 if facts.cache_item_bytes == 4 else 1

    def value(name: str, kind: int, *shape: int | str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    def caches(side: str, prefix: str, length: str) -> list[onnx.ValueInfoProto]:
        names = _NAMES[side]
        keys, values = names[f"{prefix}_key_names"], names[f"{prefix}_value_names"]
        return [
            value(name % layer, TensorProto.FLOAT, "batch", heads, length, size * wider)
            for layer, (heads, size) in enumerate(facts.layers)
            for name in (keys, values)
        ]

    inputs = [
        value("input_ids", TensorProto.INT64, "batch", "sequence"),
        value("attention_mask", TensorProto.INT64, "batch", "total"),
        *caches("inputs", "past", "past"),
    ]
    outputs = [
        value("logits", TensorProto.FLOAT, "batch", 1, facts.vocabulary),
        *caches("outputs", "present", "present"),
    ]
    node = helper.make_node(
        OPERATOR,
        [one.name for one in inputs],
        [one.name for one in outputs],
        PART,
        domain=DOMAIN,
        main_context=1,
        embed_mode=0,
        ep_sdk_version=VERSION,
        hardware_architecture=made.target.name,
        partition_name=PART,
        source=PROVIDER,
        **{CONTEXT: BUNDLE},
    )
    graph = helper.make_graph([node], PART, inputs, outputs)
    opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)


def _configuration(config: GenaiConfig, facts: Facts, context: int) -> dict[str, Any]:
    """Return `genai_config.json`: what the model's says, with our decoder."""
    model: dict[str, Any] = dict(config.model)
    heads, size = facts.layers[0]
    decoder: dict[str, Any] = {
        name: value for name, value in config.decoder.items() if name.startswith(("num_", "hidden"))
    }
    decoder |= {
        "session_options": {"log_id": "onnxruntime-genai", "provider_options": [{PROVIDER: {}}]},
        "filename": MODEL,
        "head_size": size * (2 if facts.cache_item_bytes == 4 else 1),
        "hidden_size": facts.hidden_width,
        "num_hidden_layers": len(facts.layers),
        "num_key_value_heads": heads,
        "inputs": _NAMES["inputs"],
        "outputs": _NAMES["outputs"],
    }
    decoder.setdefault("num_attention_heads", heads)
    model |= {"decoder": decoder, "vocab_size": facts.vocabulary, "context_length": context}
    known = config.data.get("search")
    search = dict(known) if isinstance(known, dict) else {}
    search |= {"past_present_share_buffer": True, "num_beams": 1, "max_length": context}
    return {"model": model, "search": search}


def _text_files(config: GenaiConfig) -> Iterator[Path]:
    if config.folder.is_dir():
        for pattern in _TEXT_FILES:
            yield from sorted(config.folder.glob(pattern))
