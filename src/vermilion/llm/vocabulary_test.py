"""Vocabularies that are kept: the library's own tokens, from half the work."""

from __future__ import annotations

import functools
import json
import random
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vermilion.llm.vocabulary import LazyVocabulary, is_of_bytes, load_library
from vermilion.store.arrays import DATA_FILE
from vermilion.store.digest import fingerprint_of
from vermilion.store.namespaces import TOKENIZERS

pytestmark = pytest.mark.needs("tokenizers")

TEXTS = (
    "The quick brown fox, and the lazy dog.",
    "<|im_start|>user\nhello there<|im_end|>\n",
    "wörter und ein 👩‍🚀 in 2026",
    "    def f(x):\n\treturn x  ",
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


@functools.cache
def pairs() -> tuple[tuple[str, str], ...]:
    """Draw twelve thousand pairs, of which many are words; once, for that takes seconds."""
    draw = random.Random(0)
    known, found = [*string.ascii_lowercase, "Ġ"], {}
    while len(found) < 12_000:
        left, right = draw.choices(known, k=2)
        if left + right not in found and len(left + right) <= 9:
            found[left + right] = (left, right)
            known.append(left + right)
    return tuple(found.values())


def write_file(file: Path, *, as_text: bool = False, kind: str = "BPE") -> Path:
    """Write a byte pair encoding of twelve thousand pairs."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merged = [left + right for left, right in pairs()]
    tokens = {token: number for number, token in enumerate([*SPECIAL, *letters, *merged])}
    merges = [f"{left} {right}" if as_text else [left, right] for left, right in pairs()]
    added = [
        {
            "id": number, "content": token, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": True,
        }
        for number, token in enumerate(SPECIAL)
    ]  # fmt: skip
    levels = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    model = {"type": kind, "vocab": tokens, "merges": merges, "byte_fallback": False}
    whole = {
        "version": "1.0", "added_tokens": added, "pre_tokenizer": levels, "decoder": levels,
        "normalizer": None, "post_processor": None, "truncation": None, "padding": None,
        "model": model,
    }  # fmt: skip
    file.write_text(json.dumps(whole, indent=1), encoding="utf-8")
    return file


def kept(root: Path) -> list[Path]:
    return list((root / TOKENIZERS.name).glob("*"))


def check_same(found: Any, file: Path) -> None:
    from tokenizers import Tokenizer

    own = Tokenizer.from_file(str(file))
    for text in TEXTS:
        ids = found.encode(text, add_special_tokens=False).ids
        assert ids == own.encode(text, add_special_tokens=False).ids
        assert found.decode(ids, skip_special_tokens=False) == text
    if isinstance(found, LazyVocabulary):
        assert found.whole().to_str() == own.to_str()


def test_what_is_kept_cuts_no_text(tmp_path: Path) -> None:
    file = write_file(tmp_path / "tokenizer.json")
    about = json.loads(file.read_text())
    about["truncation"] = {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    file.write_text(json.dumps(about, indent=1), encoding="utf-8")
    for _ in range(2):
        found = load_library(file.read_bytes(), tmp_path)
        ids = found.encode(TEXTS[0], add_special_tokens=False).ids
        assert found.decode(ids, skip_special_tokens=False) == TEXTS[0]
    assert len(kept(tmp_path)) == 1


@pytest.mark.parametrize("as_text", [False, True])
def test_what_is_kept_gives_the_same_tokens(as_text: bool, tmp_path: Path) -> None:
    file = write_file(tmp_path / "tokenizer.json", as_text=as_text)
    check_same(load_library(file.read_bytes(), tmp_path), file)
    (place,) = kept(tmp_path)
    before = fingerprint_of((place / DATA_FILE).stat())
    check_same(load_library(file.read_bytes(), tmp_path), file)
    assert fingerprint_of((place / DATA_FILE).stat()) == before


def test_the_second_time_the_file_is_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_file(tmp_path / "tokenizer.json")
    load_library(file.read_bytes(), tmp_path)
    monkeypatch.setattr("tokenizers.Tokenizer.from_buffer", None)  # whoever calls it fails
    check_same(load_library(file.read_bytes(), tmp_path), file)


def test_any_first_text_has_the_tokens_that_it_has_later(tmp_path: Path) -> None:
    """Whatever stands in it: words of many pairs, bytes, special tokens in the middle of words."""
    from tokenizers import Tokenizer

    file = write_file(tmp_path / "tokenizer.json")
    load_library(file.read_bytes(), tmp_path)
    own = Tokenizer.from_file(str(file))
    drawing = np.random.default_rng(1)
    letters = [*string.ascii_lowercase, *string.ascii_lowercase, *" \n\té世1<|>", *SPECIAL]
    known = sorted(own.get_vocab())
    for number in range(40):
        source = letters if number % 2 else known
        drawn = drawing.integers(0, len(source), int(drawing.integers(1, 60)))
        text = "".join(source[int(index)].replace("Ġ", " ") for index in drawn)
        first = load_library(file.read_bytes(), tmp_path)
        ids = first.encode(text, add_special_tokens=False).ids
        assert first._whole is None  # that was done without
        assert ids == own.encode(text, add_special_tokens=False).ids
        assert first.decode(ids, skip_special_tokens=False) == own.decode(
            ids, skip_special_tokens=False
        )
        assert first._whole is None
        assert first.encode(text, add_special_tokens=False).ids == ids
        assert first._whole is not None


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}},
        {"pre_tokenizer": {"type": "Metaspace"}},
        {"pre_tokenizer": None},
        {"model": {"byte_fallback": True}},
        {"model": {"dropout": 0.1}},
    ],
)
def test_what_is_no_encoding_of_plain_bytes_is_built_whole(change: dict[str, Any]) -> None:
    level = {"type": "ByteLevel", "add_prefix_space": False}
    assert is_of_bytes({"pre_tokenizer": level})
    digits = {"type": "Digits", "individual_digits": True}
    assert is_of_bytes({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, level]}})
    removed = {"type": "Split", "behavior": "Removed"}
    several = {"type": "Sequence", "pretokenizers": [removed, level]}
    assert not is_of_bytes({"pre_tokenizer": several})
    assert not is_of_bytes({"pre_tokenizer": level, **change})


def test_a_long_text_is_encoded_by_the_whole(tmp_path: Path) -> None:
    file = write_file(tmp_path / "tokenizer.json")
    load_library(file.read_bytes(), tmp_path)
    found = load_library(file.read_bytes(), tmp_path)
    found.encode("word " * 2000, add_special_tokens=False)
    assert found._whole is not None


def test_another_file_is_another_entry(tmp_path: Path) -> None:
    file = write_file(tmp_path / "tokenizer.json")
    load_library(file.read_bytes(), tmp_path)
    data = json.loads(file.read_text())
    data["added_tokens"][1]["content"] = "<|start|>"
    data["model"]["vocab"]["<|start|>"] = data["model"]["vocab"].pop("<|im_start|>")
    file.write_text(json.dumps(data))
    found = load_library(file.read_bytes(), tmp_path)
    assert found.token_to_id("<|start|>") == 1
    assert len(kept(tmp_path)) == 2
    again = load_library(file.read_bytes(), tmp_path)
    assert again.encode("<|start|>", add_special_tokens=False).ids == [1]


def test_what_was_changed_is_not_taken(tmp_path: Path) -> None:
    file = write_file(tmp_path / "tokenizer.json")
    load_library(file.read_bytes(), tmp_path)
    (place,) = kept(tmp_path)
    data = bytearray((place / DATA_FILE).read_bytes())
    data[1000] ^= 1
    (place / DATA_FILE).write_bytes(data)
    check_same(load_library(file.read_bytes(), tmp_path), file)


def test_other_kinds_and_small_files_are_read_as_they_are(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    words = {f"word{number}": number for number in range(20_000)}
    file = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel(words, "word0")).save(str(file))
    assert load_library(file.read_bytes(), tmp_path).encode("word7").ids == [7]
    Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")])).save(str(file))
    assert load_library(file.read_bytes(), tmp_path).encode("ab").ids == [2]
    assert kept(tmp_path) == []
