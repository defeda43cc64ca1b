"""A tokenizer's vocabulary in the cache, as the library builds it fastest.

Of the time that `tokenizer.json` takes to load, half goes into parsing its tens of thousands of
tokens and pairs. They are kept as one list and an array of numbers, and given to the library as
they are, when they are needed; all the rest is the library's own file with an empty vocabulary.
What is kept was compared with what the library reads from the file: both write the same text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.llm.lazy_vocabulary import LazyVocabulary, is_of_bytes
from vermilion.store.arrays import arrays_of, new_array, write_arrays
from vermilion.store.entry import EntryWriter
from vermilion.store.namespaces import TOKENIZERS
from vermilion.store.store import Store

FORMAT = "3"
_KEY_DIGITS = 32
# A smaller file loads in a few milliseconds anyway.
_SMALLEST_BYTES = 1 << 18
# What the library's constructor of a byte pair encoding takes, beside tokens and pairs.
_SETTINGS = (
    "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
    "byte_fallback", "ignore_merges",
)  # fmt: skip


def load_library(file: Path, root: Path | None) -> Any:
    """Return the library's tokenizer of a file, or what `root` keeps of it, which does the same.

    Raises: Exception, for which the library has no narrower class, for a damaged file.
    """
    import tokenizers

    data = file.read_bytes()
    if root is None or len(data) < _SMALLEST_BYTES:
        return tokenizers.Tokenizer.from_buffer(data)
    state = hashlib.sha256(f"{FORMAT} {tokenizers.__version__} ".encode())
    state.update(data)
    key = state.hexdigest()[:_KEY_DIGITS]
    store = Store(root)
    found = store.find(TOKENIZERS, key)
    if found is not None:
        return LazyVocabulary(*arrays_of(found))
    library = tokenizers.Tokenizer.from_buffer(data)
    store.get_or_make(TOKENIZERS, key, lambda writer: _write(writer, data, library))
    return library


def _write(writer: EntryWriter, data: bytes, library: Any) -> Mapping[str, object] | None:
    """Write a byte pair encoding, unless what is built of it differs from the library's own.

    Raises: OSError.
    """
    taken = _taken_apart(json.loads(data))
    if taken is None:
        return None
    arrays, about = taken
    if LazyVocabulary(arrays, about).whole().to_str() != library.to_str():
        return None
    return write_arrays(writer, [new_array(*row) for row in arrays.items()], about, 1)


def _taken_apart(file: Any) -> tuple[dict[str, NDArray[Any]], dict[str, object]] | None:
    """Return the vocabulary as arrays, and the rest; None for another kind of model."""
    model = file.get("model", {})
    vocabulary, merges = model.get("vocab"), model.get("merges")
    if model.get("type") != "BPE" or not isinstance(vocabulary, dict) or not merges:
        return None
    tokens = list(vocabulary)
    places = {token: index for index, token in enumerate(tokens)}
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in merges]
    if any(len(pair) != 2 or not places.keys() >= set(pair) for pair in pairs):
        return None
    text = json.dumps(tokens, ensure_ascii=False).encode()
    arrays: dict[str, NDArray[Any]] = {
        "tokens": np.frombuffer(text, np.uint8),
        "numbers": np.array(list(vocabulary.values()), np.int32),
        "pairs": np.array([[places[a], places[b]] for a, b in pairs], np.int32),
    }
    # Tokens that were added find their numbers in the vocabulary, so theirs stay.
    added = {row["content"] for row in file.get("added_tokens", [])}
    own = {token: number for token, number in vocabulary.items() if token in added}
    rest = {**file, "model": {**model, "vocab": own, "merges": []}}
    settings = {name: model[name] for name in _SETTINGS if model.get(name) is not None}
    about = {"rest": json.dumps(rest), "settings": settings, "is_bytes": is_of_bytes(file)}
    return arrays, about
