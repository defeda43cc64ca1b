"""What the header of a GGUF file says, kept: a vocabulary takes long to read, and to make again.

An entry is named by the path of the file and by what it looks like, so that to open a file again
nothing of its header is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from vermilion.files import resolved
from vermilion.store.digest import code_fingerprint, fingerprint_of
from vermilion.store.entry import EntryWriter
from vermilion.store.namespaces import TOKENIZERS
from vermilion.store.store import Store

_FILE = "tokenizer.json"


@dataclass(frozen=True, eq=False)
class KnownHeader:
    """What is asked of a file whose image is there already."""

    config: dict[str, object]
    begin: int | None  # the token that every text begins with
    template: str
    named: Mapping[str, str]  # what a chat template may name
    types: Mapping[str, tuple[float, float]]
    tokenizer: bytes  # as the package `tokenizers` reads it


def known_header(path: Path, root: Path, read: Callable[[], KnownHeader]) -> KnownHeader:
    """Return what the header of a file says, read by `read` where it is not known yet."""
    made: list[KnownHeader] = []

    def make(writer: EntryWriter) -> Mapping[str, object]:
        made.append(read())
        writer.write(_FILE, made[0].tokenizer)
        about = {name: getattr(made[0], name) for name in _NAMES}
        return {**about, "types": {name: list(bits) for name, bits in made[0].types.items()}}

    found = Store(root).get_or_make(TOKENIZERS, _key(path), make)
    if made or found is None:
        return made[0] if made else read()
    about: Mapping[str, Any] = found.about
    types = {name: (bits[0], bits[1]) for name, bits in about["types"].items()}
    own = {name: about[name] for name in _NAMES}
    return KnownHeader(**own, types=types, tokenizer=bytes(found.files[_FILE]))


_NAMES = ("config", "begin", "template", "named")


def _key(path: Path) -> str:
    parts = ["gguf header", str(resolved(path)), fingerprint_of(path.stat()), code_fingerprint()]
    return sha256(json.dumps(parts).encode()).hexdigest()
