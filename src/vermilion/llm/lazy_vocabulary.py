"""A byte pair encoding that is built as far as it is used.

The library builds a tokenizer whole: tens of thousands of tokens and as many pairs. Text is read
from tokens without any of the pairs; and of a text's bytes, only pairs whose joined token stands in
the text can ever be joined, so that a first short text has its tokens by a few hundred of them.
What comes after it is encoded by the whole, as the library would have built it at once.
"""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.forks import renew_after_fork
from vermilion.store.arrays import Arrays

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
                with _no_collection():
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


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from looking for cycles among tens of thousands of new pairs: 15 ms."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
