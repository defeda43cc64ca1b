"""From the logits of one sequence to its next token.

The order of the steps is onnxruntime-genai's: least length, repetition, repeated n-grams, then
the k likeliest, and of their probability the first p. Source: `src/search.cpp` and
`src/sampling_distribution.h` of microsoft/onnxruntime-genai.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vermilion.llm.search_options import SearchOptions

Row = NDArray[np.float32]
Tokens = NDArray[np.int32]

NEVER = np.finfo(np.float32).min
"""The logit of a token that must not come."""


def penalize(row: Row, past: Tokens, options: SearchOptions, ends: Sequence[int]) -> None:
    """Change the logits in place by what the sequence so far forbids or makes less likely."""
    if len(past) < options.min_length:
        row[list(ends)] = NEVER
    if options.repetition_penalty != 1:
        seen = _inside(np.unique(past), row)
        values = row[seen]
        penalty = np.float32(options.repetition_penalty)
        row[seen] = np.where(values < 0, values * penalty, values / penalty)
    if options.no_repeat_ngram_size > 0:
        row[_inside(_after_same(past, options.no_repeat_ngram_size), row)] = NEVER


def choose(row: Row, options: SearchOptions, random: np.random.Generator) -> int:
    """Return the next token: the likeliest, or one drawn."""
    if options.is_greedy:
        return int(row.argmax())
    tokens, chances = distribution(row, options)
    return int(random.choice(tokens, p=chances))


def distribution(row: Row, options: SearchOptions) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the tokens that may be drawn, the likeliest first, and their probabilities."""
    if options.top_k > 1:
        kept = min(options.top_k, len(row))
        tokens = np.argpartition(row, -kept)[-kept:] if kept < len(row) else np.arange(len(row))
    else:
        tokens = np.arange(len(row))
    tokens = tokens[np.argsort(-row[tokens], kind="stable")]
    scaled = row[tokens].astype(np.float64)
    scaled = (scaled - scaled[0]) / options.temperature
    chances = np.exp(scaled)
    chances /= chances.sum()
    if 0 < options.top_p < 1 or options.top_k <= 1:
        # The first whose sum reaches p is kept too; p of 0 keeps one.
        count = int(np.searchsorted(np.cumsum(chances), options.top_p)) + 1
        tokens, chances = tokens[:count], chances[:count]
        chances = chances / chances.sum()
    return tokens, chances


def log_softmax(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the logarithms of the probabilities, along the last axis."""
    shifted = rows - rows.max(axis=-1, keepdims=True)
    found: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return found


def _inside(tokens: Tokens, row: Row) -> Tokens:
    return tokens[(tokens >= 0) & (tokens < len(row))]


def _after_same(past: Tokens, size: int) -> Tokens:
    """Return the tokens that would make an n-gram of this size come a second time."""
    if len(past) < size:
        return past[:0]
    windows = np.lib.stride_tricks.sliding_window_view(past, size)
    same = (windows[:, :-1] == past[len(past) - size + 1 :]).all(axis=1)
    found: Tokens = windows[same, -1]
    return found
