"""The namespaces: what is kept, and what each kind of entry is called.

A row is all that a new cache needs; `vermilion cache` lists, checks and removes its entries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from vermilion.errors import ArtifactError
from vermilion.store.entry import INDEX_FILE, entry_problem

Facts = Mapping[str, str | int]

# A key is a digest, or its first 128 bits: what carries one is ours, also without an index.
_KEY = re.compile(r"[0-9a-f]{32}|[0-9a-f]{64}")


def _is_entry(path: Path) -> bool:
    return _KEY.fullmatch(path.name) is not None or (path / INDEX_FILE).is_file()


def _no_facts(path: Path) -> Facts:
    if not (path / INDEX_FILE).is_file():
        raise ArtifactError(f"it has no `{INDEX_FILE}`: it is damaged, or of another version")
    return {}


@dataclass(frozen=True)
class Namespace:
    """A kind of entries.

    `name` is their folder below the cache, `title` what they are for people, `index_file` the file
    whose time says when an entry was used. `is_entry` says whether a folder is one, `problem`
    reads every byte of it, `facts` returns what `cache ls` shows beside its size.
    Entries that only refer to those of another namespace are not listed, and go with them.

    Raises: ArtifactError from `facts`, for a damaged entry.
    """

    name: str
    title: str
    index_file: str = INDEX_FILE
    is_entry: Callable[[Path], bool] = _is_entry
    problem: Callable[[Path], str] = entry_problem
    facts: Callable[[Path], Facts] = _no_facts
    refers_to: str = ""

    def key_of(self, path: Path) -> str:
        """Return the key of an entry as `cache ls` shows it."""
        return f"{self.name}/{path.name}" if self.name else path.name

    def lock_name(self, key: str) -> str:
        """Return the name of an entry's lock, and of the folder in which it is written."""
        return f"{self.name}-{key}" if self.name else key


PROGRAMS = Namespace("decoder", "language engine: machine code")
IMAGES = Namespace("decoder-images", "language engine: packed weights")
# Which image belongs to a folder of a model, by what the folder's files look like.
NOTES = Namespace("decoder-notes", "language engine: known folders", refers_to=IMAGES.name)
# Which bundle belongs to a model, by what its file looks like. Bundles lie in the root itself.
MODEL_NOTES = Namespace("model-notes", "known model files", refers_to=".")
TOKENIZERS = Namespace("tokenizers", "tokenizer")
CALIBRATION = Namespace("calibration", "calibration: machine code")
# Which compiled model belongs to a graph of `torch.compile`.
TORCH_GRAPHS = Namespace("torch-graphs", "PyTorch: known graphs")

SIGNED = (PROGRAMS, IMAGES, NOTES, MODEL_NOTES, TOKENIZERS, CALIBRATION, TORCH_GRAPHS)
"""Those whose entries are as `entry` writes them; compiled models have a format of their own."""
