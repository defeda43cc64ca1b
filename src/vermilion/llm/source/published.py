"""What is asked of a published model, whatever form it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from vermilion.llm.engine.description import Description
from vermilion.llm.source.blueprint import Blueprint
from vermilion.llm.tokenizer import FolderTokenizer


class Source(Protocol):
    """A published model."""

    @property
    def path(self) -> Path:
        """The file or the folder."""
        ...

    def config(self) -> dict[str, object]:
        """Return what a folder of onnxruntime-genai would have in its configuration."""
        ...

    def files(self) -> Sequence[Path]:
        """Return the files that hold the weights and what is said of them."""
        ...

    def blueprint(self) -> Blueprint:
        """Return what it is like, without its weights; see `describe`."""
        ...

    def types(self) -> Mapping[str, tuple[float, float]]:
        """Return the types of its matrices: bits of a weight as stored, and as it is read."""
        ...

    def describe(self) -> Description:
        """Return what it computes, over its weights.

        Raises: ModelError for a damaged one; UnsupportedError for what is not computed here.
        """
        ...

    def tokenizer(self, cache: Path) -> FolderTokenizer:
        """Return its tokenizer, with its chat template."""
        ...

    def tokenizer_file(self) -> str:
        """Return the tokenizer as the package `tokenizers` writes one."""
        ...

    def begin(self) -> tuple[int, ...]:
        """Return the tokens that every text begins with."""
        ...
