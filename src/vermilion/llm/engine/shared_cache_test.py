"""Sequences of several lengths in one cache: the same bits as each of them alone."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from small_decoders import CONTEXT, VOCABULARY, Options, decoder_folder
from vermilion.errors import OptionError
from vermilion.llm.engine.decoder import NativeDecoder
from vermilion.llm.engine.open_native import open_native_decoder
from vermilion.llm.engine.shared_cache import Blocks, Room, SharedCache

# Of few and of many tokens, below and over a block of keys; together more than a step's rows.
LENGTHS = (3, 70, 16, 17, 130, 5, 64, 65, 9, 33, 1, 100, 2, 40, 12, 128, 20, 7)


@pytest.fixture(scope="module", params=["int8", "fp32"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("decoder")
    bits, window = (4, -1) if request.param == "int8" else (32, 40)
    options = Options(bits=bits, window=window)  # type: ignore[arg-type]
    opened = open_native_decoder(
        decoder_folder(folder, options), threads=2, prefill=request.param, cache=folder / "code"
    )
    yield opened
    opened.close()


def drawn(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCABULARY, length).tolist()


def alone(decoder: NativeDecoder, prompt: list[int], new: list[int]) -> NDArray[np.float32]:
    state = decoder.start(1, len(prompt) + len(new))
    rows = [state.forward(np.array([prompt]))]
    rows += [state.forward(np.array([[token]])) for token in new]
    return np.concatenate(rows)


def test_a_step_of_all_has_the_bits_of_each(decoder: NativeDecoder) -> None:
    prompts = [drawn(length, at) for at, length in enumerate(LENGTHS)]
    new = [drawn(4, 100 + at) for at in range(len(prompts))]
    cache = SharedCache(decoder, 64 * 40)
    rooms: list[Room] = []
    rows: list[list[NDArray[np.float32]]] = []
    for prompt in prompts:  # in chunks, while those before them go on
        room = cache.take(len(prompt), 4)
        assert room is not None
        rooms.append(room)
        chunks = [prompt[at : at + 48] for at in range(0, len(prompt), 48)]
        for chunk in chunks[:-1]:
            assert cache.read(room, chunk, is_last=False) is None
        logits = cache.read(room, chunks[-1], is_last=True)
        assert logits is not None
        rows.append([logits])
        running = [at for at in range(len(rooms)) if len(rows[at]) <= 4]
        found = cache.step(
            [rooms[at] for at in running], [new[at][len(rows[at]) - 1] for at in running]
        )
        for at, row in zip(running, found, strict=True):
            rows[at].append(row)
    while running := [at for at in range(len(rooms)) if len(rows[at]) <= 4]:
        found = cache.step(
            [rooms[at] for at in running], [new[at][len(rows[at]) - 1] for at in running]
        )
        for at, row in zip(running, found, strict=True):
            rows[at].append(row)
    for prompt, more, own in zip(prompts, new, rows, strict=True):
        assert np.array_equal(np.stack(own), alone(decoder, prompt, more)), len(prompt)


def test_more_sequences_than_a_step_has_rows(decoder: NativeDecoder) -> None:
    cache = SharedCache(decoder, 64 * 20)
    prompts = [drawn(2 + at % 5, at) for at in range(20)]
    rooms = [cache.take(len(prompt), 1) for prompt in prompts]
    for room, prompt in zip(rooms, prompts, strict=True):
        cache.read(room, prompt, is_last=True)  # type: ignore[arg-type]
    assert cache.take(1, 1) is None
    found = cache.step(rooms, range(20))  # type: ignore[arg-type]
    for at in (0, 15, 16, 19):
        assert np.array_equal(found[at], alone(decoder, prompts[at], [at])[-1])


def test_a_room_is_given_to_another(decoder: NativeDecoder) -> None:
    cache = SharedCache(decoder, 192)
    first = cache.take(100, 20)
    assert first is not None
    assert cache.take(65, 1) is None
    cache.read(first, drawn(100, 1), is_last=True)
    cache.give_back(first)
    second = cache.take(120, 1)
    assert second is not None
    assert cache.used == 128
    logits = cache.read(second, drawn(120, 2), is_last=True)
    assert np.array_equal(logits, alone(decoder, drawn(120, 2), [])[0])  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="no room in a cache of 192"):
        cache.take(CONTEXT, 1)


def test_a_beginning_is_copied(decoder: NativeDecoder) -> None:
    cache = SharedCache(decoder, 1024)
    prompt = drawn(150, 1)
    first, second, short = cache.take(150, 10), cache.take(170, 1), cache.take(9, 1)
    assert first is not None
    assert second is not None
    assert short is not None
    cache.read(first, prompt, is_last=True)
    other = [*prompt[:140], *drawn(30, 3)]
    assert cache.copy(first, second, 140) == 128
    logits = cache.read(second, other[128:], is_last=True)
    assert np.array_equal(logits, alone(decoder, other, [])[0])  # type: ignore[arg-type]
    assert cache.copy(first, short, 9) == 0  # few tokens are read otherwise


def test_runs_of_blocks() -> None:
    blocks = Blocks(10)
    assert [blocks.take(3), blocks.take(4), blocks.take(3), blocks.take(1)] == [0, 3, 7, None]
    blocks.give_back(0, 3)
    blocks.give_back(7, 3)
    assert blocks.free == 6
    assert blocks.take(4) is None
    blocks.give_back(3, 4)
    assert blocks.take(10) == 0
    assert Blocks(0).take(1) is None
