"""Cases of attention over the cache, and numbers laid out as its kernels have them in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels import Memory
from vermilion.codegen.emit.decoder.cache import BLOCK_TOKENS, CacheForm
from vermilion.codegen.emit.decoder.control import (
    CAPACITY,
    CONTROL_WORDS,
    LENGTH,
    LINE_WORDS,
    PAST,
    ROOM,
    ROWS,
    SEQUENCES,
)
from vermilion.codegen.tensor import View

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """Sequences with positions before, and as many that ask."""

    past: int
    length: int
    sequences: int = 1
    head_size: int = 64
    key_heads: int = 2
    group: int = 3
    positions: int = 1  # of a unit
    window: int = 0
    bound: float = 0.0
    sink: float = 0.0  # of the first query head, where they have one

    @property
    def rows(self) -> int:
        return self.sequences * self.length

    @property
    def total(self) -> int:
        return self.past + self.length

    @property
    def capacity(self) -> int:
        return -(-self.total // BLOCK_TOKENS) * BLOCK_TOKENS


def packed(cache: Array, form: CacheForm, capacity: int, *, are_keys: bool, rest: float) -> Array:
    """Lay (sequence, head, position, number) out as the cache is; unused places hold `rest`."""
    sequences, heads, total, size = cache.shape
    whole = np.full((sequences, heads, capacity, size), rest)
    whole[:, :, :total] = cache
    blocks = whole.reshape(sequences, heads, -1, BLOCK_TOKENS, size)
    pair = form.group
    if are_keys:  # (word of the head, key, number in its word)
        words = blocks.reshape(*blocks.shape[:3], BLOCK_TOKENS, size // pair, pair)
        return np.moveaxis(words, 3, 4).ravel()
    words = blocks.reshape(*blocks.shape[:3], BLOCK_TOKENS // pair, pair, size)
    return np.moveaxis(words, 4, 5).ravel()  # (word of keys, number, key in its word)


def control(memory: Memory, case: Case) -> View:
    words = np.zeros(CONTROL_WORDS, np.int64)
    words[[ROWS, LENGTH]] = case.rows, case.length
    lines = words[SEQUENCES:].reshape(-1, LINE_WORDS)[: case.sequences]
    lines[:, [PAST, CAPACITY]] = case.past, case.capacity
    lines[:, ROOM] = np.arange(case.sequences) * case.capacity
    return memory.tensor("control", words, "i64")


def written_queries(case: Case, queries: Array, max_rows: int) -> Array:
    """Lay queries out as (key head, row, head in its group, number)."""
    wide = (case.sequences, case.key_heads, case.group, case.length, case.head_size)
    rows = queries.reshape(wide).transpose(1, 0, 3, 2, 4)
    result = np.zeros((case.key_heads, max_rows, case.group, case.head_size))
    result[:, : case.rows] = rows.reshape(case.key_heads, case.rows, case.group, case.head_size)
    return result
