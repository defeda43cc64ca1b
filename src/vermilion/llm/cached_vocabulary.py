"""A tokenizer's vocabulary in the cache, as the library builds it fastest.

Of the time that `tokenizer.json` takes to load, half goes into parsing its tens of thousands of
tokens and pairs. They are kept as one list and an array of numbers, and given to the library as
they are, when they are needed; all the rest is the library's own file with an empty vocabulary.
What is kept was compared with what the library reads from the file: both write the same text.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.llm.lazy_vocabulary import LazyVocabulary, is_of_bytes
from vermilion.runtime.array_folder import new_array, open_arrays, touch, write_arrays
from vermilion.runtime.engine_cache import TOKENIZERS, locked, new_folder
from vermilion.store.signature import signature_of

FORMAT = "3"
_KEY_DIGITS = 32
# A smaller file loads in a few milliseconds anyway.
_SMALLEST_BYTES = 1 << 18
# What the library's constructor of a byte pair encoding takes, beside tokens and pairs.
_SETTINGS = (
    "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
    "byte_fallback", "ignore_merges",
)  # fmt: skip
_log = logging.getLogger(__name__)


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
    place = root / TOKENIZERS / state.hexdigest()[:_KEY_DIGITS]
    found = open_arrays(place)
    if found is not None and found[1].get("key") == place.name:
        touch(place)
        return LazyVocabulary(*found)
    library = tokenizers.Tokenizer.from_buffer(data)
    if signature_of(place.name):
        try:
            with locked(root, f"{TOKENIZERS}-{place.name}"):
                if not place.exists():
                    _keep(place, data, library)
        except OSError as error:
            _log.debug("`%s` cannot be kept: %s", file, error)
    return library


def _keep(place: Path, data: bytes, library: Any) -> None:
    """Keep a byte pair encoding, unless what is built of it differs from the library's own.

    Raises: OSError.
    """
    taken = _taken_apart(json.loads(data))
    if taken is None:
        return
    arrays, about = taken
    with new_folder(place) as aside:
        said = {**about, "key": place.name}
        write_arrays(aside, [new_array(*row) for row in arrays.items()], said, 1)
        if LazyVocabulary(arrays, about).whole().to_str() == library.to_str():
            aside.rename(place)


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
