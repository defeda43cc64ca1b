"""A GGUF file, or a Hugging Face folder, opened without any other step between."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vermilion.errors import ModelError
from vermilion.files import read_object
from vermilion.llm.engine.block_types import block_types
from vermilion.llm.engine.description import Description, Product
from vermilion.llm.genai_config import NAME
from vermilion.llm.gguf import GgufFile, is_gguf, open_gguf
from vermilion.llm.source.blueprint import Blueprint
from vermilion.llm.source.describe import describe
from vermilion.llm.source.families import Family
from vermilion.llm.source.folder_weights import FolderTensors
from vermilion.llm.source.gguf_tokenizer import read_vocabulary
from vermilion.llm.source.known_gguf import KnownHeader, known_header
from vermilion.llm.source.packed_weights import packing_of
from vermilion.llm.source.published import Source
from vermilion.llm.source.read_config import Config, blueprint_of, read_config
from vermilion.llm.source.read_gguf import GgufTensors, read_blueprint
from vermilion.llm.source.rope import MOST_POSITIONS
from vermilion.llm.source.safetensors import read_folder
from vermilion.llm.source.stored import FLOATS
from vermilion.llm.tokenizer import ChatTemplate, FolderTokenizer, open_tokenizer, open_tokenizer_of


def find_source(path: Path, cache: Path | None = None) -> Source | None:
    """Return the model of a path that is a GGUF file or a Hugging Face folder, None of another.

    `cache` keeps what the header of a GGUF file says.
    Raises: ModelError, UnsupportedError for one that cannot be read.
    """
    if path.is_file():
        return GgufSource(path, cache) if is_gguf(path) or path.suffix == ".gguf" else None
    if (path / NAME).is_file() or not (path / "config.json").is_file():
        return None
    return FolderSource(path)


def _config(
    family: str, vocabulary: int, context: int, ends: Sequence[int], pad: int | None
) -> dict[str, object]:
    model: dict[str, object] = {
        "type": family,
        "vocab_size": vocabulary,
        "context_length": min(context, MOST_POSITIONS),
        "eos_token_id": list(ends),
        "decoder": {"session_options": {}},
    }
    if pad is not None:
        model["pad_token_id"] = pad
    return {"model": model, "search": {}}


@dataclass(frozen=True, eq=False)
class GgufSource:
    """A GGUF file."""

    path: Path
    cache: Path | None = None  # where what its header says is kept; None: nowhere

    @cached_property
    def file(self) -> GgufFile:
        """The file, mapped."""
        return open_gguf(self.path)

    @cached_property
    def _header(self) -> KnownHeader:
        if self.cache is None:
            return self._read()
        return known_header(self.path, self.cache, self._read)

    def _read(self) -> KnownHeader:
        """Read the header, whatever is kept of it."""
        blueprint = self.blueprint()
        own = read_vocabulary(self.file.header.metadata, str(self.path))
        if not own.ends:
            raise ModelError("the file names no token that ends a text", where=str(self.path))
        embedding = self.file.tensor("token_embd.weight")
        vocabulary = embedding.shape[-1] if embedding is not None else own.tokens
        family = blueprint.family.gguf
        return KnownHeader(
            _config(family, vocabulary, blueprint.context, own.ends, own.pad),
            own.begin, own.template, own.named,
            _types(one.type for one in self.file.header.tensors if len(one.shape) > 1),
            own.file.encode(),
        )  # fmt: skip

    def config(self) -> dict[str, object]:
        """Return what a folder of onnxruntime-genai would have in its configuration."""
        return self._header.config

    def files(self) -> Sequence[Path]:
        """Return the file."""
        return (self.path,)

    def blueprint(self) -> Blueprint:
        """Return what it is like, without its weights."""
        return read_blueprint(self.file, GgufTensors(self.file))

    def types(self) -> Mapping[str, tuple[float, float]]:
        """Return the types of its matrices: bits of a weight as stored, and as it is read."""
        return self._header.types

    def describe(self) -> Description:
        """Return what it computes, over its weights."""
        tensors = GgufTensors(self.file)
        return describe(read_blueprint(self.file, tensors), tensors)

    def tokenizer(self, cache: Path) -> FolderTokenizer:
        """Return its tokenizer, with its chat template."""
        own = self._header
        template = ChatTemplate(own.template, str(self.path), own.named)
        return open_tokenizer_of(own.tokenizer, template, str(self.path), cache)

    def tokenizer_file(self) -> str:
        """Return the tokenizer as the package `tokenizers` writes one."""
        return self._header.tokenizer.decode()

    def begin(self) -> tuple[int, ...]:
        """Return the tokens that every text begins with."""
        begin = self._header.begin
        return () if begin is None else (begin,)


@dataclass(frozen=True, eq=False)
class FolderSource:
    """A Hugging Face folder."""

    path: Path

    @cached_property
    def _config(self) -> tuple[Config, Family]:
        return read_config(self.path)

    def config(self) -> dict[str, object]:
        """Return what a folder of onnxruntime-genai would have in its configuration."""
        config, family = self._config
        blueprint = blueprint_of(config, family)
        generation = self.path / "generation_config.json"
        own = read_object(generation) if generation.is_file() else {}
        ends = _tokens(own.get("eos_token_id", config.fields.get("eos_token_id")))
        if not ends:
            raise ModelError(
                "the configuration names no token that ends a text (`eos_token_id`)",
                where=config.where,
            )
        pads = _tokens(own.get("pad_token_id", config.fields.get("pad_token_id")))
        return _config(
            config.fields["model_type"] if isinstance(config.fields["model_type"], str) else "",
            config.whole("vocab_size"), blueprint.context, ends, pads[0] if pads else None,
        )  # fmt: skip

    def files(self) -> Sequence[Path]:
        """Return the configuration and the files of the weights."""
        return (self.path / "config.json", *sorted(self.path.glob("*.safetensors")))

    def blueprint(self) -> Blueprint:
        """Return what it is like, without its weights."""
        return blueprint_of(*self._config)

    def types(self) -> Mapping[str, tuple[float, float]]:
        """Return the types of its matrices: bits of a weight as stored, and as it is read."""
        tensors = read_folder(self.path).values()
        return _types(one.type for one in tensors if len(one.shape) > 1)

    def describe(self) -> Description:
        """Return what it computes, over its weights."""
        config, family = self._config
        if not any(self.path.glob("*.safetensors")):
            is_pickled = any(self.path.glob("*.bin"))
            raise ModelError(
                "the weights are Python pickles, which can run code"
                if is_pickled
                else "the folder has no weights",
                where=str(self.path),
                hint="download the `*.safetensors` files",
            )
        fields = config.fields
        is_tied = fields.get("tie_word_embeddings", family.has_tied_folders) is True
        is_tied = fields.get("tie_embedding", is_tied) is True  # LFM2's own name for it
        packing = packing_of(
            fields.get("quantization_config", fields.get("compression_config")), config.where
        )
        blueprint = blueprint_of(config, family)
        tensors = FolderTensors(
            self.path, read_folder(self.path), family.names or {}, is_tied, packing,
            layers=len(blueprint.layers) if fields.get("num_nextn_predict_layers") else None,
        )  # fmt: skip
        return describe(blueprint, tensors)

    def tokenizer(self, cache: Path) -> FolderTokenizer:
        """Return its tokenizer, with its chat template."""
        return open_tokenizer(self.path, cache)

    def tokenizer_file(self) -> str:
        """Return the tokenizer as the package `tokenizers` writes one."""
        return (self.path / "tokenizer.json").read_text(encoding="utf-8")

    def begin(self) -> tuple[int, ...]:
        """Return the tokens that every text begins with."""
        return self._begin

    @cached_property
    def _begin(self) -> tuple[int, ...]:
        has_one = (self.path / "tokenizer.json").is_file()
        return open_tokenizer(self.path).added_before() if has_one else ()


def _tokens(given: object) -> list[int]:
    numbers = given if isinstance(given, list) else [given]
    return [one for one in numbers if isinstance(one, int) and not isinstance(one, bool)]


def has_few_bits(description: Description) -> bool:
    """Say whether a decoder's products are of weights of few bits."""
    products = [one for one in description.operations if isinstance(one, Product)]
    matrices = [one.matrix for one in products[:-1]]
    matrices += [own.matrices[0] for one in description.mixtures for _, own in one.products]
    return any(one.is_block for one in matrices)


def _types(names: Iterable[str]) -> Mapping[str, tuple[float, float]]:
    known = block_types()
    found = {}
    for name in sorted(set(names)):
        if name in known:
            found[name] = (known[name].stored_bits, known[name].packed_bits)
        elif name in FLOATS:
            found[name] = (8.0 * FLOATS[name].itemsize,) * 2
    return found
