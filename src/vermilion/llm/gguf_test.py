from __future__ import annotations

import random
import struct
from pathlib import Path

import pytest

import llm_folders
from vermilion.errors import ModelError, OptionError, UnsupportedError, VermilionError
from vermilion.llm.gguf import GgufArray, is_gguf, read_gguf


def written(folder: Path, data: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path


def test_a_header_is_read_and_long_lists_are_only_counted(tmp_path: Path) -> None:
    path = written(tmp_path, llm_folders.gguf_bytes())
    header = read_gguf(path)
    assert is_gguf(path)
    assert header.version == 3
    assert header.metadata["llama.embedding_length"] == 64
    assert header.metadata["tokenizer.ggml.tokens"] == GgufArray(2000)
    assert [(t.name, t.shape, t.type) for t in header.tensors] == [
        ("token_embd.weight", (64, 320), "F32")
    ]


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.3, 0.9, 0.999])
def test_a_file_that_is_cut_short_is_named(tmp_path: Path, share: float) -> None:
    whole = llm_folders.gguf_bytes()
    path = written(tmp_path, whole[: max(5, int(len(whole) * share))])
    with pytest.raises(ModelError, match="cut short"):
        read_gguf(path)


HOSTILE = {
    "too many keys": (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 60), "keys"),
    "too many tensors": (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors"),
    "a name of exabytes": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 60), "bytes in one text"),
    "an endless list": (
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 0, 1 << 50),
        "items in one list",
    ),
    "lists of lists": (
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 1),
        "list of lists",
    ),
    "an unknown type": (
        b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77),
        "unknown type 77",
    ),
    "a key twice": (
        b"GGUF"
        + struct.pack("<IQQ", 3, 0, 2)
        + 2 * (struct.pack("<Q", 1) + b"k" + struct.pack("<II", 4, 5)),
        "twice",
    ),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_headers_are_refused_at_once(tmp_path: Path, fault: str) -> None:
    data, words = HOSTILE[fault]
    with pytest.raises(ModelError, match=words):
        read_gguf(written(tmp_path, data))


def test_versions_and_byte_orders_that_are_not_read(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="version 1"):
        read_gguf(written(tmp_path, llm_folders.gguf_bytes(version=1)))
    big = b"GGUF" + struct.pack(">IQQ", 3, 0, 0)
    with pytest.raises(UnsupportedError, match="big-endian"):
        read_gguf(written(tmp_path, big))


def test_another_file_and_none(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="not a GGUF"):
        read_gguf(written(tmp_path, b"PK\x03\x04 something else"))
    with pytest.raises(OptionError, match="cannot be read"):
        read_gguf(tmp_path / "none.gguf")


def test_flipped_bytes_give_a_header_or_one_clear_error(tmp_path: Path) -> None:
    whole = llm_folders.gguf_bytes(
        {**llm_folders.GGUF_LLAMA, "tokenizer.ggml.tokens": ["a", "b"]}, (("t", (4, 4)),)
    )
    chance = random.Random(0)
    refused = 0
    for _ in range(400):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(4, len(data))] = chance.randrange(256)
        try:
            read_gguf(written(tmp_path, bytes(data)))
        except VermilionError:
            refused += 1
    assert 50 < refused < 400
