"""Sequences that join and leave between steps, on any of our engines.

Our own code computes a step of all of them together (`engine/shared_cache`); another engine one
after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import OptionError
from vermilion.llm.decoder import Decoder, DecoderState

Logits = NDArray[np.float32]


class Pool(Protocol):
    """A cache with room for so many tokens. What `take` returns stands for a sequence."""

    @property
    def capacity(self) -> int:
        """Tokens that there is room for in all."""
        ...

    @property
    def used(self) -> int:
        """Tokens whose room somebody has."""
        ...

    def take(self, prompt: int, new: int) -> Any:
        """Return a room for a prompt of so many tokens and as many new ones; None if there is none.

        Raises: OptionError where there never will be.
        """
        ...

    def give_back(self, room: Any) -> None:
        """End a sequence."""
        ...

    def read(self, room: Any, tokens: Sequence[int], *, is_last: bool) -> Logits | None:
        """Read more of a prompt; return the logits of its last token, None before."""
        ...

    def step(self, rooms: Sequence[Any], tokens: Sequence[int]) -> Logits:
        """Read one more token of each sequence; return the logits of each."""
        ...

    def copy(self, source: Any, target: Any, tokens: int) -> int:
        """Let an empty room begin as another one does, up to `tokens`; return how many it has."""
        ...


def open_pool(decoder: Decoder, tokens: int) -> Pool:
    """Return a pool for an open model."""
    from vermilion.llm.engine.decoder import NativeDecoder

    if isinstance(decoder, NativeDecoder):
        from vermilion.llm.engine.shared_cache import SharedCache

        return SharedCache(decoder, tokens)
    return ApartPool(decoder, tokens)


def token_bytes(decoder: Decoder) -> int:
    """Return the bytes of a token in the cache; 0 where the engine does not say."""
    return int(getattr(decoder, "token_bytes", 0))


@dataclass(eq=False)
class _Room:
    state: DecoderState
    tokens: int


class ApartPool:
    """A state of its own for each sequence."""

    def __init__(self, decoder: Decoder, tokens: int) -> None:
        self._decoder, self.capacity, self.used = decoder, tokens, 0

    def take(self, prompt: int, new: int) -> _Room | None:
        """Start a sequence. Raises: OptionError where it is longer than the whole pool."""
        tokens = prompt + new
        if tokens > self.capacity:
            raise OptionError(
                f"{tokens:,} tokens have no room in a cache of {self.capacity:,}",
                hint="ask for fewer tokens, or serve the model with a larger cache",
            )
        if self.used + tokens > self.capacity:
            return None
        self.used += tokens
        return _Room(self._decoder.start(1, tokens), tokens)

    def give_back(self, room: _Room) -> None:
        """End a sequence."""
        self.used -= room.tokens
        room.tokens = 0

    def read(self, room: _Room, tokens: Sequence[int], *, is_last: bool) -> Logits | None:
        """Read more of a prompt."""
        logits = room.state.forward(np.array([tokens], np.int64))
        return logits[0] if is_last else None

    def step(self, rooms: Sequence[_Room], tokens: Sequence[int]) -> Logits:
        """Read one more token of each, one sequence after the other."""
        pairs = zip(rooms, tokens, strict=True)
        rows = [room.state.forward(np.array([[token]], np.int64)) for room, token in pairs]
        return np.concatenate(rows)

    def copy(self, source: _Room, target: _Room, tokens: int) -> int:
        """Copy nothing: the engine's states stand alone."""
        del source, target, tokens
        return 0
