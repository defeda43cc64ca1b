"""Beam search: several continuations of one prompt, of which the likeliest are kept.

The scores and the rule that ends it are onnxruntime-genai's, so that the same sequences come out.
Source: `src/beam_search_scorer.cpp` and `BeamSearch_Cpu` of microsoft/onnxruntime-genai.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vermilion.llm.search_options import SearchOptions

Tokens = NDArray[np.int32]

# Only the first beam counts at the start: all hold the same prompt and would go the same way.
_NOT_YET = np.float32(-1e9)


@dataclass
class Beams:
    """The beams of one prompt. Rows are numbered within it."""

    options: SearchOptions
    ends: Sequence[int]
    pad: int
    scores: NDArray[np.float32] = field(init=False)
    finished: list[tuple[float, Tokens]] = field(default_factory=list, init=False)
    done: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.scores = np.full(self.options.num_beams, _NOT_YET, np.float32)
        self.scores[0] = 0

    def step(
        self, log_chances: NDArray[np.float32], sequences: NDArray[np.int32]
    ) -> tuple[Tokens, NDArray[np.int64]]:
        """Return each beam's next token and the row that it goes on from.

        Shapes: log_chances (beams, vocabulary), sequences (beams, length) → (beams,), (beams,).
        """
        beams = self.options.num_beams
        if self.done:
            self.scores = np.zeros(beams, np.float32)
            return np.full(beams, self.pad, np.int32), np.zeros(beams, np.int64)
        candidates = (log_chances + self.scores[:, None]).reshape(-1)
        best = np.argpartition(candidates, -2 * beams)[-2 * beams :]
        best = best[np.lexsort((best, -candidates[best]))]
        rows, tokens = np.divmod(best, log_chances.shape[1])
        kept: list[int] = []
        for place in range(2 * beams):
            if tokens[place] not in self.ends:
                kept.append(place)
            elif place < beams:
                self._add(float(candidates[best[place]]), sequences[rows[place]])
            if len(kept) == beams:
                break
        self.scores = candidates[best[kept]]
        self._end(float(candidates[best[0]]), sequences.shape[1])
        return tokens[kept].astype(np.int32), rows[kept].astype(np.int64)

    def best(self, sequences: NDArray[np.int32]) -> list[Tokens]:
        """Return the sequences to return, the likeliest first.

        Those that still run are taken in.
        """
        if not self.done:
            for score, sequence in zip(self.scores, sequences, strict=True):
                self._add(float(score), sequence)
            self.done = True
        return [sequence for _, sequence in self.finished[: self.options.num_return_sequences]]

    def _add(self, sum_of_logs: float, sequence: Tokens) -> None:
        score = sum_of_logs / len(sequence) ** self.options.length_penalty
        self.finished.append((score, sequence.copy()))
        self.finished.sort(key=lambda one: -one[0])
        del self.finished[self.options.num_beams :]

    def _end(self, best_sum: float, length: int) -> None:
        if len(self.finished) < self.options.num_beams:
            return
        if not self.options.early_stopping:
            reachable = best_sum / length**self.options.length_penalty
            if self.finished[-1][0] < reachable:
                return
        self.done = True
