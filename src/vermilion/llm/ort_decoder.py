"""A decoder on ONNX Runtime's CPU provider: what our own engine does not claim runs here.

Keys and values lie in buffers that are allocated once, for as many tokens as asked for:
GroupQueryAttention is given the same buffer as its past and its present, and appends in place.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from vermilion.errors import OptionError, UnsupportedError

# A longer prompt is read in pieces of so many tokens, which bounds the memory that it takes.
CHUNK_TOKENS = 1024


FIRST_POSITION = "vermilion.first_position"
"""What `keep_last_logits` adds: -1 for the last position, 0 for all. Shape (1,), int64."""


@dataclass(frozen=True)
class Stage:
    """One session: a plain folder has one, a `decoder-pipeline` one for prompts, one for tokens."""

    session: ort.InferenceSession = field(repr=False)
    types: Mapping[str, np.dtype[Any]]
    on_prompt: bool = True
    on_token: bool = True


@dataclass(frozen=True)
class CacheShape:
    """The caches of keys and values."""

    names: tuple[tuple[str, str], ...]  # a pair for each: what goes in, what comes out
    heads: int
    head_size: int
    dtype: np.dtype[Any]
    # ONNX Runtime takes no buffer shorter than the window of a layer that has one.
    least_capacity: int = 1


@dataclass(frozen=True)
class Names:
    """What the graph calls its inputs and outputs."""

    tokens: str
    mask: str
    positions: str
    logits: str


@dataclass(frozen=True)
class OrtDecoder:
    """Implements `Decoder`."""

    stages: tuple[Stage, ...]
    names: Names
    caches: CacheShape
    vocabulary_size: int
    context_length: int
    opened_in: int = field(default_factory=os.getpid)

    def exact_rows(self, length: int) -> int:
        """Return 1: ONNX Runtime's kernels round otherwise for more rows."""
        return 1

    def start(self, batch: int, capacity: int) -> OrtState:
        """Return an empty cache for `batch` sequences of at most `capacity` tokens."""
        if batch < 1 or not 0 < capacity <= self.context_length:
            raise OptionError(
                f"a cache for {batch} sequences of {capacity:,} tokens; the model's context is"
                f" {self.context_length:,}",
                hint="at least one of each, and no more than the context",
            )
        return OrtState(self, batch, capacity)


class OrtState:
    """Implements `DecoderState`: the caches, bound to every session once."""

    def __init__(self, decoder: OrtDecoder, batch: int, capacity: int) -> None:
        self._decoder = decoder
        self._batch = batch
        self._capacity = capacity
        self._length = 0
        caches = decoder.caches
        rows = max(capacity, caches.least_capacity)
        shape, dtype = (batch, caches.heads, rows, caches.head_size), caches.dtype
        # Never touched beyond the tokens that are there, so the system gives no memory for them.
        self._buffers = [np.zeros(shape, dtype) for _ in caches.names]
        self._bindings = [self._bind(stage) for stage in decoder.stages]

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return self._length

    def forward(
        self, tokens: NDArray[np.int64], every_position: bool = False
    ) -> NDArray[np.float32]:
        """Append `tokens` and give the logits of the last one, or of every position."""
        if os.getpid() != self._decoder.opened_in:
            raise UnsupportedError(
                "this process was forked after ONNX Runtime opened the model: its threads are not"
                " in it",
                hint="open the model in the process that runs it",
            )
        tokens = np.ascontiguousarray(tokens, dtype=np.int64)
        self._check(tokens)
        # ONNX Runtime's attention takes several tokens after a past for one sequence only.
        step = 1 if self._batch > 1 and self._length else CHUNK_TOKENS
        if self._batch > 1 and not self._length:
            step = tokens.shape[1]
        pieces = [
            self._run(tokens[:, at : at + step], every_position)
            for at in range(0, tokens.shape[1], step)
        ]
        if every_position:
            every = np.concatenate(pieces, axis=1)
            if every.shape[1] != tokens.shape[1]:
                raise UnsupportedError(
                    f"the model gives the logits of {every.shape[1]} of {tokens.shape[1]} tokens:"
                    " its head was built for the last one alone",
                    hint="use the model it was built from (a hybrid's is in `decode`), or the"
                    " native engine",
                )
            return every
        return pieces[-1][:, -1]

    def rewind(self, length: int) -> None:
        """Forget the tokens after the first `length`."""
        if not 0 <= length <= self._length:
            raise OptionError(f"the cache has {self._length} tokens: it cannot go back to {length}")
        self._length = length

    def reorder(self, source_rows: NDArray[np.int64]) -> None:
        """Make row i a copy of what row `source_rows[i]` was."""
        if np.array_equal(source_rows, np.arange(self._batch)):
            return
        for buffer in self._buffers:
            used = buffer[:, :, : self._length]
            used[...] = used[source_rows]

    def _check(self, tokens: NDArray[np.int64]) -> None:
        if tokens.ndim != 2 or tokens.shape[0] != self._batch or tokens.shape[1] < 1:
            raise OptionError(f"tokens of shape {tokens.shape}, for {self._batch} sequences")
        if self._length + tokens.shape[1] > self._capacity:
            raise OptionError(
                f"{tokens.shape[1]:,} tokens after {self._length:,} do not fit into a cache for"
                f" {self._capacity:,}",
                hint="start with a larger capacity",
            )

    def _run(self, tokens: NDArray[np.int64], every_position: bool) -> NDArray[np.float32]:
        at = self._stage_of(tokens.shape[1])
        stage, binding, names = self._decoder.stages[at], self._bindings[at], self._decoder.names
        total = self._length + tokens.shape[1]
        self._feed(stage, binding, names.tokens, tokens)
        if names.mask in stage.types:
            mask = np.ones((self._batch, total), np.int64)
            self._feed(stage, binding, names.mask, mask)
        if names.positions in stage.types:
            row = np.arange(self._length, total)
            self._feed(stage, binding, names.positions, np.tile(row, (self._batch, 1)))
        if FIRST_POSITION in stage.types:
            first = np.array([0 if every_position else -1])
            self._feed(stage, binding, FIRST_POSITION, first)
        # Bound anew each time: what a run allocated would be the buffer of the next, of any size.
        binding.bind_output(names.logits)
        try:
            stage.session.run_with_iobinding(binding)
        except Exception as error:  # ONNX Runtime's exceptions share no base but Exception
            words = str(error).strip().splitlines()[0]
            raise UnsupportedError(
                f"ONNX Runtime could not run the decoder: {words}",
                hint="`--engine onnxruntime-genai` runs what it can, too",
            ) from error
        self._length = total
        logits: NDArray[Any] = binding.get_outputs()[-1].numpy()
        return logits.astype(np.float32, copy=False)

    def _stage_of(self, count: int) -> int:
        """Choose by length, as onnxruntime-genai does: several tokens are a prompt."""
        for index, stage in enumerate(self._decoder.stages):
            if stage.on_prompt if count > 1 else stage.on_token:
                return index
        return 0

    def _bind(self, stage: Stage) -> ort.IOBinding:
        binding, dtype = stage.session.io_binding(), self._decoder.caches.dtype
        for (past, present), buffer in zip(self._decoder.caches.names, self._buffers, strict=True):
            place, shape = buffer.ctypes.data, list(buffer.shape)
            binding.bind_input(past, "cpu", 0, dtype, shape, place)
            binding.bind_output(present, "cpu", 0, dtype, shape, place)
        return binding

    @staticmethod
    def _feed(stage: Stage, binding: ort.IOBinding, name: str, values: NDArray[Any]) -> None:
        binding.bind_cpu_input(name, np.ascontiguousarray(values, dtype=stage.types[name]))
