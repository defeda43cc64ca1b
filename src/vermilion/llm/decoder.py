"""What every engine gives the generation loop: tokens in, logits out.

The engine owns the cache of keys and values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Decoder(Protocol):
    """An opened model. Each batch of sequences that is started on it has a cache of its own."""

    @property
    def vocabulary_size(self) -> int:
        """Width of the logits."""
        ...

    @property
    def context_length(self) -> int:
        """The most tokens that one sequence may have."""
        ...

    def start(self, batch: int, capacity: int) -> DecoderState:
        """Return an empty cache for `batch` sequences of `capacity` tokens each, allocated once."""
        ...


class DecoderState(Protocol):
    """The cache of a batch of sequences that advance together."""

    @property
    def length(self) -> int:
        """Tokens in the cache, the same for every row."""
        ...

    def forward(
        self, tokens: NDArray[np.int64], every_position: bool = False
    ) -> NDArray[np.float32]:
        """Append `tokens` and give the logits of the last one, or of every position.

        Shapes: tokens (batch, n) → (batch, vocabulary), or (batch, n, vocabulary) for all.
        """
        ...

    def rewind(self, length: int) -> None:
        """Forget the tokens after the first `length`."""
        ...

    def reorder(self, source_rows: NDArray[np.int64]) -> None:
        """Make row i a copy of what row `source_rows[i]` was: (batch,) row numbers."""
        ...
