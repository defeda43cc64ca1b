"""The rows of a batch on a decoder: prompts of one length together, others one by one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vermilion.llm.decoder import Decoder, DecoderState


class Rows:
    """The rows of a batch, each prompt's beams next to each other."""

    def __init__(self, decoder: Decoder, prompts: int, beams: int, capacity: int) -> None:
        self._decoder = decoder
        self._prompts, self._beams, self._capacity = prompts, beams, capacity
        self._states: list[DecoderState] = []

    def first(self, tokens: NDArray[np.int64], lengths: Sequence[int]) -> NDArray[np.float32]:
        """Read prompts of these lengths, padded to the longest; give the logits of each last one.

        Shapes: tokens (prompts, longest) → (prompts * beams, vocabulary).
        """
        rows = np.repeat(tokens, self._beams, axis=0)
        if len(set(lengths)) == 1:
            self._states = [self._decoder.start(len(rows), self._capacity)]
            return self._states[0].forward(rows[:, : lengths[0]])
        self._states = [self._decoder.start(self._beams, self._capacity) for _ in lengths]
        pieces = [
            state.forward(rows[at * self._beams : (at + 1) * self._beams, :length])
            for at, (state, length) in enumerate(zip(self._states, lengths, strict=True))
        ]
        return np.concatenate(pieces)

    def forward(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Append as many tokens to each row: (rows, n) → (rows, vocabulary)."""
        if len(self._states) == 1:
            return self._states[0].forward(tokens)
        parts = np.split(tokens, len(self._states))
        pieces = [state.forward(part) for state, part in zip(self._states, parts, strict=True)]
        return np.concatenate(pieces)

    def forward_every(self, tokens: NDArray[np.int64]) -> NDArray[np.float32]:
        """Append tokens to the only row; give the logits of each: (n,) → (n, vocabulary)."""
        logits: NDArray[np.float32] = self._states[0].forward(tokens[None], every_position=True)[0]
        return logits

    def drop(self, count: int) -> None:
        """Forget the last `count` tokens of each row."""
        for state in self._states:
            state.rewind(state.length - count)

    def reorder(self, source_rows: NDArray[np.int64]) -> None:
        """Make each row a copy of another of the same prompt."""
        share = self._prompts * self._beams // len(self._states)
        for at, state in enumerate(self._states):
            state.reorder(source_rows[at * share : (at + 1) * share] - at * share)
