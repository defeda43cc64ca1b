"""A tokenizer's vocabulary: kept in the cache, and built as far as it is used.

Of the time that `tokenizer.json` takes to load, half goes into parsing its tens of thousands of
tokens and pairs. They are kept as one list and an array of numbers, and given to the library as
they are, when they are needed; all the rest is the library's own file with an empty vocabulary.
What is kept was compared with what the library reads from the file: both write the same text.

The library builds a tokenizer whole: tens of thousands of tokens and as many pairs. Text is read
from tokens without any of the pairs; and of a text's bytes, only pairs whose joined token stands in
the text can ever be joined, so that a first short text has its tokens by a few hundred of them.
What comes after it is encoded by the whole, as the library would have built it at once.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.forks import renew_after_fork
from vermilion.memory import no_collection
from vermilion.store.arrays import Arrays, arrays_of, new_array, write_arrays
from vermilion.store.entry import EntryWriter
from vermilion.store.namespaces import TOKENIZERS
from vermilion.store.store import Store

# Of a longer text more pairs occur, and looking for them takes as long as having them all.
_MOST_CHARACTERS = 4096
# Steps before the pairs that split a text and leave its characters as they are.
_SPLITS = ("Digits", "Split")


class LazyVocabulary:
    """What `FolderTokenizer` needs of the library's tokenizer. Threads may share it."""

    def __init__(self, arrays: Arrays, about: Mapping[str, Any]) -> None:
        self._tokens: list[str] = json.loads(arrays["tokens"].tobytes())
        self._vocabulary = dict(zip(self._tokens, arrays["numbers"].tolist(), strict=True))
        self._pairs, self._rest, self._settings = arrays["pairs"], about["rest"], about["settings"]
        self._may_begin = bool(about["is_bytes"])
        self._turn = threading.Lock()
        self._whole: Any = None
        self._without_pairs: Any = None
        renew_after_fork(self)

    def after_fork(self) -> None:
        """Renew the lock in a forked process: whoever held it is not there."""
        self._turn = threading.Lock()

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        """Return the library's encoding of a text."""
        with self._turn:
            begins, self._may_begin = self._may_begin, False
        library = self._for_text(text) if begins and len(text) <= _MOST_CHARACTERS else self.whole()
        return library.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of tokens, which needs no pairs."""
        with self._turn:
            if self._whole is None and self._without_pairs is None:
                self._without_pairs = self._built(self._vocabulary, [])
            library = self._whole or self._without_pairs
        return str(library.decode(tokens, skip_special_tokens=skip_special_tokens))

    def token_to_id(self, token: str) -> int | None:
        """Return the number of a token, None where there is none."""
        found: int | None = self._vocabulary.get(token)
        return self.whole().token_to_id(token) if found is None else found

    def whole(self) -> Any:
        """Return the library's tokenizer with all tokens and pairs."""
        with self._turn:
            if self._whole is None:
                with no_collection():  # among tens of thousands of new pairs: 15 ms
                    pairs = list(self._named(slice(None)))
                    self._whole = self._built(self._vocabulary, pairs)
                    del pairs
                self._without_pairs = None
            return self._whole

    def _for_text(self, text: str) -> Any:
        """Build what gives this text its tokens."""
        from tokenizers.pre_tokenizers import ByteLevel

        pieces = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
        written = "".join(piece for piece, _ in pieces)
        own = {token: at for at, token in enumerate(self._tokens) if token in written}
        stands = np.zeros(len(self._tokens), bool)
        stands[list(own.values())] = True
        # Both sides of a pair stand in the text where its joined token does.
        near = np.flatnonzero(stands[self._pairs].all(axis=1))
        pairs = [pair for pair in self._named(near) if "".join(pair) in own]
        return self._built({token: self._vocabulary[token] for token in own}, pairs)

    def _named(self, rows: NDArray[np.int64] | slice) -> Iterator[tuple[str, str]]:
        left, right = (map(self._tokens.__getitem__, side.tolist()) for side in self._pairs[rows].T)
        return zip(left, right, strict=True)

    def _built(self, vocabulary: dict[str, int], pairs: list[tuple[str, str]]) -> Any:
        from tokenizers import Tokenizer, models

        library = Tokenizer.from_str(self._rest)
        added = {
            token: number
            for token, number in library.get_vocab(with_added_tokens=True).items()
            if token in self._vocabulary
        }
        library.model = models.BPE({**added, **vocabulary}, pairs, **self._settings)
        return library


def is_of_bytes(file: Mapping[str, Any]) -> bool:
    """Say whether a tokenizer's file cuts a text into pieces and writes each byte as one letter.

    Then a piece's letters stand in the text's letters one behind the other, wherever it is cut.
    """
    model, before = file.get("model", {}), file.get("pre_tokenizer") or {}
    steps = before.get("pretokenizers", []) if before.get("type") == "Sequence" else [before]
    levels = [step for step in steps if step.get("type") == "ByteLevel"]
    others = [step for step in steps if step.get("type") != "ByteLevel"]
    return (
        file.get("normalizer") is None
        and len(levels) == 1
        and not levels[0].get("add_prefix_space", True)
        and all(one.get("type") in _SPLITS and one.get("behavior") != "Removed" for one in others)
        and not any(
            model.get(name)
            for name in (
                "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                "byte_fallback",
            )
        )
    )  # fmt: skip


FORMAT = "4"
_KEY_DIGITS = 32
# A smaller file loads in a few milliseconds anyway.
_SMALLEST_BYTES = 1 << 18
# What the library's constructor of a byte pair encoding takes, beside tokens and pairs.
_SETTINGS = (
    "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
    "byte_fallback", "ignore_merges",
)  # fmt: skip


def load_library(data: bytes, root: Path | None) -> Any:
    """Return the library's tokenizer of a file, or what `root` keeps of it, which does the same.

    Raises: Exception, for which the library has no narrower class, for a damaged file.
    """
    import tokenizers

    if root is None or len(data) < _SMALLEST_BYTES:
        return _whole_texts(tokenizers.Tokenizer.from_buffer(data))
    state = hashlib.sha256(f"{FORMAT} {tokenizers.__version__} ".encode())
    state.update(data)
    key = state.hexdigest()[:_KEY_DIGITS]
    store = Store(root)
    found = store.find(TOKENIZERS, key)
    if found is not None:
        return LazyVocabulary(*arrays_of(found))
    library = _whole_texts(tokenizers.Tokenizer.from_buffer(data))
    store.get_or_make(TOKENIZERS, key, lambda writer: _write(writer, data, library))
    return library


def _whole_texts(library: Any) -> Any:
    """Let a tokenizer neither cut texts nor fill them: a file may say how its training did."""
    library.no_truncation()
    library.no_padding()
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
    rest |= {"truncation": None, "padding": None}
    settings = {name: model[name] for name in _SETTINGS if model.get(name) is not None}
    about = {"rest": json.dumps(rest), "settings": settings, "is_bytes": is_of_bytes(file)}
    return arrays, about
