"""The decoder: packed weights, a program for few rows and one for many, caches of sequences."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.cache import BLOCK_TOKENS
from vermilion.codegen.emit.decoder.control import (
    CAPACITY,
    CONTROL_WORDS,
    LENGTH,
    LINE_WORDS,
    MOST_SEQUENCES,
    PAST,
    ROOM,
    ROWS,
    SEQUENCES,
    TURNS,
)
from vermilion.codegen.emit.decoder.weights import PANEL
from vermilion.codegen.isa import Isa
from vermilion.codegen.load import LoadedProgram
from vermilion.codegen.tensor import SLACK_BYTES
from vermilion.codegen.workers import aligned_bytes
from vermilion.errors import OptionError
from vermilion.forks import renew_after_fork
from vermilion.llm.engine.image import (
    CONTROL,
    FEW,
    FIRST,
    HEAD,
    HEAD_INPUT,
    HIDDEN,
    LOGITS,
    MANY,
    REST,
    WEIGHTS,
    Image,
)

FEW_ROWS, MANY_ROWS = 16, MOST_SEQUENCES
# A token is bound by memory, which a few cores exhaust: more would only wait for each other at each
# of its three hundred steps.
_MOST_TOKEN_THREADS = 8

# Keys and values of a layer.
Caches = list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]
# Of which positions logits are wanted.
Wanted = Literal["none", "last", "every"]


class HasCaches(Protocol):
    """Whose keys and values the programs read and write."""

    caches: Caches


def lines_of(count: int) -> NDArray[np.int64]:
    """Return lines of the control block for so many sequences, zeros."""
    return np.zeros((count, LINE_WORDS), np.int64)


class NativeDecoder:
    """A decoder whose work is machine code. States of several threads take turns."""

    def __init__(self, image: Image, context_length: int, isa: Isa, threads: int) -> None:
        facts = image.facts
        self.vocabulary_size = facts.vocabulary
        self.tokens = min(facts.vocabulary, image.embedding.tokens)
        # A position beyond the cosines that are stored cannot be turned.
        self.context_length = min(context_length, facts.positions or context_length)
        self.short = facts.short  # up to which length a sequence is turned by other cosines
        self.turn = threading.Lock()
        self._facts, self._embedding = facts, image.embedding
        self._bound, self._factor = facts.logits_bound, facts.logits_factor
        self._arrays = image.arrays  # what the programs read: held, for it may be mapped
        self._control = np.zeros(CONTROL_WORDS, np.int64)
        self._lines = self._control[SEQUENCES:].reshape(-1, LINE_WORDS)
        self._few = _matrix(FEW_ROWS, facts.embedding_width)
        self._many = _matrix(MANY_ROWS, facts.embedding_width)
        self._hidden = _matrix(MANY_ROWS, facts.hidden_width)
        self._head_input = _matrix(FEW_ROWS, facts.hidden_width)
        self._logits = _matrix(FEW_ROWS, -(-facts.vocabulary // PANEL) * PANEL)
        self._crossing = {
            name: self._many if name == FIRST else _matrix(MANY_ROWS, width)
            for name, width in facts.crossing
        }
        few_threads = min(threads, _MOST_TOKEN_THREADS)
        self._programs = {
            name: LoadedProgram(
                table, isa, threads if name in (MANY, REST) else few_threads, keep=image.arrays
            )
            for name, table in image.programs.items()
        }
        self._connect(image)
        self._owner: weakref.ref[HasCaches] | None = None
        renew_after_fork(self)

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights, as they are packed, that a token reads."""
        own = [one.nbytes for name, one in self._arrays.items() if name.startswith(f"{WEIGHTS} ")]
        return sum(own) + self._facts.expert_bytes

    def exact_rows(self, length: int) -> int:
        """Return how many tokens are computed row by row; over a length that turns anew, one."""
        is_far = not self.short or length > self.short
        return FEW_ROWS if is_far else max(1, min(FEW_ROWS, self.short - length))

    def start(self, batch: int, capacity: int) -> NativeState:
        """Return an empty cache for `batch` sequences of at most `capacity` tokens."""
        if not 1 <= batch <= MANY_ROWS:
            raise OptionError(f"a batch of {batch}: 1 to {MANY_ROWS} sequences are possible")
        if not 1 <= capacity <= self.context_length:
            raise OptionError(
                f"a cache of {capacity} tokens for a context of {self.context_length}",
                hint=f"ask for 1 to {self.context_length}",
            )
        return NativeState(self, batch, capacity)

    def close(self) -> None:
        """End the workers."""
        for program in self._programs.values():
            program.close()

    def after_fork(self) -> None:
        """Renew the lock in a forked process: whoever had a turn is not there."""
        self.turn = threading.Lock()

    def new_cache(self, batch: int, capacity: int) -> Caches:
        """Return keys and values of every layer.

        (batch, heads, blocks, bytes of a block), zeros.
        """
        blocks = -(-capacity // BLOCK_TOKENS)
        caches = []
        for heads, size in self._facts.layers:
            shape = (batch, heads, blocks, BLOCK_TOKENS * size * self._facts.cache_item_bytes)
            pair = [aligned_bytes(int(np.prod(shape)) + SLACK_BYTES) for _ in range(2)]
            keys, values = (one[: int(np.prod(shape))].reshape(shape) for one in pair)
            caches.append((keys, values))
        return caches

    @property
    def token_bytes(self) -> int:
        """Bytes of a token's keys and values in all layers."""
        item = self._facts.cache_item_bytes
        return sum(2 * heads * size * item for heads, size in self._facts.layers)

    def forward(
        self,
        owner: HasCaches,
        lines: NDArray[np.int64],
        tokens: NDArray[np.int64],
        *,
        wanted: Wanted,
        is_prompt: bool = False,
    ) -> NDArray[np.float32]:
        """Append a row of tokens to each sequence; the caller has its turn.

        `lines` say where the sequences are in the owner's cache. `is_prompt` reads few tokens with
        the program for many, as those before them were.
        """
        self._point(owner)
        batch, count = tokens.shape
        if batch * count <= FEW_ROWS and not is_prompt:
            self._run(FEW, lines, tokens, 0)
            logits = self._logits[: batch * count, : self.vocabulary_size]
            shaped = logits.reshape(batch, count, -1)
            return self._bounded(shaped if wanted == "every" else shaped[:, -1])
        step = MANY_ROWS // batch
        pieces = []
        for first in range(0, count, step):
            piece = tokens[:, first : first + step]
            self._run(MANY, lines, piece, first)
            if wanted == "every":
                self._programs[REST].run()
                logits = self._head(self._hidden[: piece.size])
                pieces.append(logits.reshape(batch, piece.shape[1], -1))
            elif wanted == "last" and first + step >= count:
                self._go_on_with_last(batch, piece.shape[1])
                return self._bounded(self._head(self._hidden[:batch]))
        if wanted == "none":
            return np.empty((batch, 0), np.float32)
        return self._bounded(np.concatenate(pieces, axis=1))

    def _go_on_with_last(self, batch: int, length: int) -> None:
        """Compute the last attention and what follows for each sequence's last position alone."""
        last = np.arange(1, batch + 1) * length - 1
        for rows in self._crossing.values():
            rows[:batch] = rows[last]
        self._control[[ROWS, LENGTH]] = batch, 1
        self._lines[:batch, PAST] += length - 1
        self._programs[REST].run()

    def _bounded(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        if self._factor != 1.0:
            logits = logits * np.float32(self._factor)
        if not self._bound:
            return logits.copy()
        bound = np.float32(self._bound)
        return cast("NDArray[np.float32]", np.tanh(logits / bound) * bound)

    def _run(
        self, name: str, lines: NDArray[np.int64], tokens: NDArray[np.int64], first: int
    ) -> None:
        rows = self._few if name == FEW else self._many
        self._embedding.write(tokens.reshape(-1), rows[: tokens.size])
        self._control[[ROWS, LENGTH]] = tokens.shape[0] * tokens.shape[1], tokens.shape[1]
        self._lines[: len(lines)] = lines
        self._lines[: len(lines), PAST] += first
        self._programs[name].run()

    def _head(self, rows: NDArray[np.float32]) -> NDArray[np.float32]:
        out = np.empty((len(rows), self.vocabulary_size), np.float32)
        for first in range(0, len(rows), FEW_ROWS):
            piece = rows[first : first + FEW_ROWS]
            self._head_input[: len(piece)] = piece
            self._control[ROWS] = len(piece)
            self._programs[HEAD].run()
            out[first : first + FEW_ROWS] = self._logits[: len(piece), : self.vocabulary_size]
        return out

    def _point(self, owner: HasCaches) -> None:
        if self._owner is not None and self._owner() is owner:
            return
        self._owner = None  # an exception may come when some programs are pointed there
        for program in self._programs.values():
            for layer, (keys, values) in enumerate(owner.caches):
                program.point(f"keys {layer}", keys.ctypes.data)
                program.point(f"values {layer}", values.ctypes.data)
        self._owner = weakref.ref(owner)

    def _connect(self, image: Image) -> None:
        """Tell the programs where everything is but the caches, which each state has."""
        buffers: dict[str, NDArray[Any]] = {
            CONTROL: self._control, HIDDEN: self._hidden, HEAD_INPUT: self._head_input,
            LOGITS: self._logits, **self._crossing,
        }  # fmt: skip
        addresses = {name: array.ctypes.data for name, array in buffers.items()}
        for name, program in self._programs.items():
            addresses[FIRST] = (self._few if name == FEW else self._many).ctypes.data
            for buffer in image.programs[name].buffers:
                if buffer in addresses:
                    program.point(buffer, addresses[buffer])
                elif buffer in image.arrays:
                    program.point(buffer, image.arrays[buffer].ctypes.data)


def _matrix(rows: int, columns: int) -> NDArray[np.float32]:
    # Four rows more: products of many rows are made four at a time.
    return (
        aligned_bytes((rows + 4) * columns * 4 + SLACK_BYTES)[: (rows + 4) * columns * 4]
        .view(np.float32)
        .reshape(rows + 4, columns)
    )


class NativeState:
    """The caches of a batch of sequences that go on together."""

    def __init__(self, decoder: NativeDecoder, batch: int, capacity: int) -> None:
        self._decoder = decoder
        self._batch = batch
        self._capacity = capacity
        self.blocks = -(-capacity // BLOCK_TOKENS)
        self.caches = decoder.new_cache(batch, capacity)
        self.length = 0
        self._is_whole = True
        # What was read, where keys must be turned anew once a sequence is longer than some length.
        self._read = np.zeros((batch, capacity if decoder.short else 0), np.int64)
        self._is_long = False

    def forward(
        self, tokens: NDArray[np.int64], every_position: bool = False
    ) -> NDArray[np.float32]:
        """Append tokens and give the logits of the last one, or of every position."""
        if not self._is_whole:
            raise OptionError(
                "work on this state was interrupted: its rows are not those of any text",
                hint="start a new one and give it the tokens again",
            )
        tokens = np.asarray(tokens, np.int64)
        if tokens.ndim != 2 or len(tokens) != self._batch or not tokens.size:
            raise OptionError(f"tokens of shape {list(tokens.shape)} for a batch of {self._batch}")
        if self.length + tokens.shape[1] > self._capacity:
            raise OptionError(
                f"{tokens.shape[1]} more tokens after {self.length} in a cache of {self._capacity}",
                hint="start with room for more",
            )
        if tokens.min() < 0 or tokens.max() >= self._decoder.tokens:
            raise OptionError(f"a token is outside 0 to {self._decoder.tokens - 1}")
        count = tokens.shape[1]
        tokens = self._with_what_turns(tokens)
        with self._decoder.turn:
            wanted: Wanted = "every" if every_position else "last"
            logits = self._decoder.forward(
                self, self._lines(tokens.shape[1]), tokens, wanted=wanted
            )
        self.length += tokens.shape[1]
        self._is_whole = True
        return logits[:, -count:] if every_position else logits

    def _lines(self, more: int) -> NDArray[np.int64]:
        lines, room = lines_of(self._batch), self.blocks * BLOCK_TOKENS
        lines[:, [PAST, CAPACITY]] = self.length, room
        lines[:, ROOM] = np.arange(self._batch) * room
        short = self._decoder.short
        lines[:, TURNS] = short if 0 < short < self.length + more else 0
        return lines

    def _with_what_turns(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the tokens to be read: all of them where those before are turned anew with them.

        Sequences up to some length have other cosines than longer ones, for all of their positions;
        so the text has the same logits however it is cut.
        """
        short, end = self._decoder.short, self.length + tokens.shape[1]
        if not short:
            return tokens
        self._read[:, self.length : end] = tokens
        if self._is_long != (end > short) and self.length:
            self._is_whole = False  # until it is read again
            tokens, self.length = self._read[:, :end], 0
        self._is_long = end > short
        return tokens

    def rewind(self, length: int) -> None:
        """Forget the tokens after the first `length`."""
        if not 0 <= length <= self.length:
            raise OptionError(f"{length} of {self.length} tokens cannot be kept")
        self.length = length

    def reorder(self, source_rows: NDArray[np.int64]) -> None:
        """Make row i a copy of what row `source_rows[i]` was."""
        rows = np.asarray(source_rows, np.int64)
        if rows.shape != (self._batch,) or rows.min() < 0 or rows.max() >= self._batch:
            raise OptionError(f"rows {rows.tolist()} of a batch of {self._batch}")
        if np.array_equal(rows, np.arange(self._batch)):
            return
        used = -(-self.length // BLOCK_TOKENS)
        with self._decoder.turn:
            self._is_whole = False
            self._read = self._read[rows]
            for pair in self.caches:
                for cache in pair:
                    cache[:, :, :used] = cache[rows, :, :used]
            self._is_whole = True
