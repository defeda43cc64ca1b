"""One cache for sequences of several lengths, which join and leave between two steps.

Each has a room of its own, as long as it may become. Sequences take a step together, and a row's
numbers are those that it would have alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.cache import BLOCK_TOKENS
from vermilion.codegen.emit.decoder.control import CAPACITY, PAST, ROOM, TURNS
from vermilion.errors import OptionError
from vermilion.llm.engine.decoder import FEW_ROWS, NativeDecoder, Wanted, lines_of

Logits = NDArray[np.float32]


@dataclass(eq=False)
class Room:
    """A sequence's place: blocks of the cache from `first` on, of which `length` tokens are used.

    `prompt` is how many tokens the whole prompt has: one of many is read by another program than
    one of few, to its end. `read` is kept where a longer text has other cosines.
    """

    first: int
    blocks: int
    prompt: int
    length: int = 0
    read: list[int] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """How many tokens fit."""
        return self.blocks * BLOCK_TOKENS


class Blocks:
    """Which blocks are free: runs of them, in order, no two side by side."""

    def __init__(self, count: int) -> None:
        self._free = [(0, count)] if count else []

    @property
    def free(self) -> int:
        """Blocks that nobody has."""
        return sum(count for _, count in self._free)

    def take(self, count: int) -> int | None:
        """Return the first of a run of blocks; None where no run is so long."""
        for at, (first, there) in enumerate(self._free):
            if there >= count:
                rest = [(first + count, there - count)] if there > count else []
                self._free[at : at + 1] = rest
                return first
        return None

    def give_back(self, first: int, count: int) -> None:
        """Free a run."""
        merged: list[tuple[int, int]] = []
        for start, size in sorted([*self._free, (first, count)]):
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((start, size))
        self._free = merged


class SharedCache:
    """The cache, and what sequences do in it. Not for several threads at once."""

    def __init__(self, decoder: NativeDecoder, tokens: int) -> None:
        """Make room for so many tokens in all; memory is taken as it is used."""
        self._decoder = decoder
        self._count = -(-tokens // BLOCK_TOKENS)
        self.caches = decoder.new_cache(1, self._count * BLOCK_TOKENS)
        self._blocks = Blocks(self._count)

    @property
    def capacity(self) -> int:
        """Tokens that there is room for in all."""
        return self._count * BLOCK_TOKENS

    @property
    def used(self) -> int:
        """Tokens whose room somebody has."""
        return (self._count - self._blocks.free) * BLOCK_TOKENS

    def take(self, prompt: int, new: int) -> Room | None:
        """Return a room for a prompt of so many tokens and as many new ones; None if there is none.

        Raises: OptionError where there never will be.
        """
        blocks = -(-(prompt + new) // BLOCK_TOKENS)
        if blocks > self._count:
            raise OptionError(
                f"{prompt + new:,} tokens have no room in a cache of {self.capacity:,}",
                hint="ask for fewer tokens, or serve the model with a larger cache",
            )
        first = self._blocks.take(blocks)
        return None if first is None else Room(first, blocks, prompt)

    def give_back(self, room: Room) -> None:
        """End a sequence."""
        self._blocks.give_back(room.first, room.blocks)
        room.blocks = 0

    def read(self, room: Room, tokens: Sequence[int], *, is_last: bool) -> Logits | None:
        """Read more of a prompt; return the logits of its last token, None before."""
        is_prompt = room.prompt > FEW_ROWS
        wanted: Wanted = "last" if is_last else "none"
        logits = self._forward([room], [list(tokens)], wanted, is_prompt=is_prompt)
        return logits[0] if is_last else None

    def step(self, rooms: Sequence[Room], tokens: Sequence[int]) -> Logits:
        """Read one more token of each sequence; return the logits of each."""
        found = np.empty((len(rooms), self._decoder.vocabulary_size), np.float32)
        alone = [at for at, room in enumerate(rooms) if self._turns_anew(room, 1)]
        for at in alone:
            found[at] = self._forward([rooms[at]], [[tokens[at]]], "last", is_prompt=False)[0]
        others = [at for at in range(len(rooms)) if at not in alone]
        for first in range(0, len(others), FEW_ROWS):
            some = others[first : first + FEW_ROWS]
            found[some] = self._forward(
                [rooms[at] for at in some], [[tokens[at]] for at in some], "last", is_prompt=False
            )
        return found

    def copy(self, source: Room, target: Room, tokens: int) -> int:
        """Let an empty room begin as another one does; return the tokens that it then has.

        Those are whole blocks of what was read as a prompt of many tokens, as the target's is.
        """
        alike = source.prompt > FEW_ROWS and target.prompt > FEW_ROWS
        most = min(tokens, source.length, source.prompt, target.tokens)
        blocks = most // BLOCK_TOKENS if alike and not self._decoder.short else 0
        if not blocks:
            return 0
        for pair in self.caches:
            for cache in pair:
                heads = cache.shape[1]
                flat = cache.reshape(-1, cache.shape[-1])
                views = [
                    flat[room.first * heads : (room.first + room.blocks) * heads].reshape(
                        heads, room.blocks, -1
                    )
                    for room in (source, target)
                ]
                views[1][:, :blocks] = views[0][:, :blocks]
        target.length = blocks * BLOCK_TOKENS
        return target.length

    def _turns_anew(self, room: Room, more: int) -> bool:
        """Say whether all of a text is read again: a longer one has other cosines."""
        short = self._decoder.short
        return 0 < room.length <= short < room.length + more

    def _forward(
        self, rooms: Sequence[Room], rows: list[list[int]], wanted: Wanted, *, is_prompt: bool
    ) -> Logits:
        short = self._decoder.short
        for room, row in zip(rooms, rows, strict=True):
            if room.length + len(row) > room.tokens:
                raise OptionError(
                    f"a room of {room.tokens} tokens has {room.length}, and more come"
                )
            if self._turns_anew(room, len(row)):
                assert len(rooms) == 1, "who is read again is alone"
                rows, room.length = [[*room.read, *row]], 0
            if short:
                room.read[room.length :] = row if room.length else rows[0]
        lines = lines_of(len(rooms))
        for line, room, row in zip(lines, rooms, rows, strict=True):
            is_long = 0 < short < room.length + len(row)
            line[[PAST, CAPACITY, ROOM, TURNS]] = (
                room.length, room.tokens, room.first * BLOCK_TOKENS, short if is_long else 0
            )  # fmt: skip
        tokens = np.array(rows, np.int64)
        if tokens.min() < 0 or tokens.max() >= self._decoder.tokens:
            raise OptionError(f"a token is outside 0 to {self._decoder.tokens - 1}")
        with self._decoder.turn:
            logits = self._decoder.forward(self, lines, tokens, wanted=wanted, is_prompt=is_prompt)
        for room, row in zip(rooms, rows, strict=True):
            room.length += len(row)
        return logits
