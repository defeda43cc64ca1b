"""The generation loop: tokens go in, the next one comes out, until a sequence ends.

The names and the order of things are those of onnxruntime-genai's `Generator`. In one place it
differs: where tokens are appended after generated ones, onnxruntime-genai 0.18 leaves the last
generated token out of the cache, and here it is read, as if the whole text had been the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vermilion.errors import OptionError
from vermilion.llm.decoder import Decoder
from vermilion.llm.drafts import Drafts
from vermilion.llm.guidance import Guide
from vermilion.llm.rows import Rows
from vermilion.llm.search import (
    Beams,
    SearchOptions,
    TokenChance,
    chance_of,
    choose,
    log_softmax,
    penalize,
)


@dataclass(frozen=True)
class Ends:
    """The tokens that end a text, and the one that stands after the end in a batch."""

    ends: tuple[int, ...]
    pad: int


class Generation:
    """A batch of sequences that grow together."""

    def __init__(
        self,
        decoder: Decoder,
        options: SearchOptions,
        ends: Ends,
        guides: Sequence[Guide] = (),
    ) -> None:
        self._decoder, self._ends, self._guides = decoder, ends, guides
        self._options = options.checked(decoder.vocabulary_size, decoder.context_length)
        if guides and self._options.num_beams > 1:
            raise OptionError("guidance and beams exclude each other", hint="`num_beams` 1")
        self._sequences = np.zeros((self._options.rows, self._options.max_length), np.int32)
        self._rows = Rows(
            decoder, self._options.batch_size, self._options.num_beams, self._options.max_length
        )
        self._length = 0  # of the sequences
        self._read = 0  # how much of them the decoder has read
        self._logits: NDArray[np.float32] | None = None
        self._next = np.zeros(self._options.rows, np.int32)
        self._is_made = np.zeros(self._options.max_length, bool)  # or given by the caller
        self._biased: tuple[NDArray[np.int64], NDArray[np.float32]] | None = None
        self._most_likely = -1  # how many tokens are kept of each choice; -1: nothing is
        self._chances: list[TokenChance] = []
        self._rewound = False
        self._drafts: Drafts | None = None
        self._start_again()

    @cached_property
    def _random(self) -> np.random.Generator:
        """What chances are drawn with, loaded where any are."""
        seed = self._options.random_seed
        return np.random.default_rng(None if seed < 0 else seed)

    def append_tokens(self, tokens: ArrayLike) -> None:
        """Append a prompt, or more of the text: (n,), or (batch, n) padded on the right.

        Raises: OptionError where they do not fit.
        """
        given = _numbers(tokens, "tokens").astype(np.int64).reshape(-1)
        batch = self._options.batch_size
        if given.size == 0 or given.size % batch:
            raise OptionError(f"{given.size} tokens for a batch of {batch}")
        if self._length and (batch > 1 or self._options.num_beams > 1):
            raise OptionError(
                "a batch, or beams, take tokens once", hint="`rewind_to(0)` starts again"
            )
        rows = given.reshape(batch, -1)
        self._check_tokens(rows)
        self._append(np.repeat(rows, self._options.num_beams, axis=0).astype(np.int32))
        self._start_again()
        self._rewound = False
        self._logits = self._read_new()

    def generate_next_token(self) -> None:
        """Choose the next token of every sequence.

        Raises: OptionError before any tokens, and at the greatest length.
        """
        options = self._options
        if self._length >= options.max_length:
            raise OptionError(
                f"the sequence has its greatest length, {options.max_length:,} tokens",
                hint="a larger `max_length`",
            )
        logits = self._current_logits()
        self._logits = None
        plain = logits.copy() if self._most_likely >= 0 else logits
        if self._biased is not None:
            logits[:, self._biased[0]] += self._biased[1]
        is_made = self._is_made[: self._length]
        for row, past in zip(logits, self._sequences, strict=True):
            own = past[: self._length]
            penalize(row, own, options, self._ends.ends, own[is_made])
        if options.num_beams > 1:
            self._next_of_beams(logits)
        else:
            self._next_of_rows(logits)
        if self._most_likely >= 0:
            rows = zip(plain, self._next, strict=True)
            self._chances = [chance_of(row, int(token), self._most_likely) for row, token in rows]

    def set_logit_bias(self, biases: Mapping[int, float]) -> None:
        """Add numbers to the logits of tokens before each choice, as OpenAI's API names it.

        Raises: OptionError for a token that there is not, or a number outside of -100 to 100.
        """
        vocabulary = self._decoder.vocabulary_size
        for token, bias in biases.items():
            if not 0 <= token < vocabulary:
                raise OptionError(
                    f"there is no token {token}: the model has {vocabulary:,}, from 0"
                )
            if not -100 <= bias <= 100:
                raise OptionError(f"the bias of token {token} is {bias}, not from -100 to 100")
        numbers = np.array(list(biases.values()), np.float32)
        self._biased = (np.array(list(biases), np.int64), numbers) if biases else None

    def read_ahead(self) -> Drafts | None:
        """Read what stood in the text before ahead of its choice, which changes no token.

        Return what counts it; None where it cannot be: of several sequences, and on an engine whose
        numbers depend on how many tokens it reads at once.
        """
        if self._drafts is None and self._options.rows == 1 and self._decoder.exact_rows(0) > 1:
            self._drafts = Drafts(self._decoder.exact_rows, self._options.max_length)
        return self._drafts

    def keep_chances(self, count: int) -> None:
        """Keep what the model expected at each choice: its likelihood, and the `count` likeliest.

        Raises: OptionError for a number outside of 0 to 20, OpenAI's limits, and for beams.
        """
        if not 0 <= count <= 20:
            raise OptionError(f"{count} likeliest tokens: 0 to 20 are kept")
        if self._options.num_beams > 1:
            raise OptionError("beams keep no likelihoods of tokens", hint="`num_beams` 1")
        self._most_likely = count

    def get_chances(self) -> list[TokenChance]:
        """Return what the model expected when it chose last, for each row."""
        return list(self._chances)

    def is_done(self) -> bool:
        """Say whether every sequence has ended, or has its greatest length."""
        if self._logits is not None or not self._length:
            return False
        if self._length >= self._options.max_length:
            return True
        if self._beams:
            return all(beams.done for beams in self._beams)
        return bool(self._ended.all())

    def get_next_tokens(self) -> NDArray[np.int32]:
        """Return the tokens chosen last, or appended last: (rows,)."""
        return self._next.copy()

    def get_sequence(self, index: int) -> NDArray[np.int32]:
        """Return a whole sequence, its prompt included; of beams, in order of likelihood."""
        count = self._options.batch_size * self._options.num_return_sequences
        if not 0 <= index < count:
            raise OptionError(f"there is no sequence {index}: there are {count}, from 0")
        if not self._beams:
            return self._sequences[index, : self._length].copy()
        prompt, rank = divmod(index, self._options.num_return_sequences)
        found = self._beams[prompt].best(self._rows_of(prompt)[:, : self._length])
        return found[rank].copy()

    def get_logits(self) -> NDArray[np.float32]:
        """Return the logits that the next token is chosen from: (rows, 1, vocabulary)."""
        return self._current_logits()[:, None, :].copy()

    def set_logits(self, logits: ArrayLike) -> None:
        """Choose the next token from these logits instead: as many numbers as `get_logits`."""
        given = _numbers(logits, "logits").astype(np.float32)
        shape = (self._options.rows, self._decoder.vocabulary_size)
        if given.size != shape[0] * shape[1]:
            raise OptionError(f"{given.size} logits for {shape[0]} x {shape[1]}")
        self._logits = given.reshape(shape)

    def rewind_to(self, length: int) -> None:
        """Forget the tokens after the first `length`.

        As in onnxruntime-genai, the token that stood there is taken again if one is generated
        before any are appended.
        """
        if not 0 <= length <= self._length:
            raise OptionError(f"there are {self._length} tokens: no going back to {length}")
        if length == self._length:
            return
        if self._options.num_beams > 1 or (self._options.batch_size > 1 and length):
            raise OptionError("a batch goes back to its start only, and beams not at all")
        self._next = self._sequences[:, length].copy()
        self._length, self._logits, self._rewound = length, None, True
        self._forget_drafts()
        self._rows.drop(max(0, self._read - length))
        self._read = min(self._read, length)
        for guide in self._guides:
            guide.reset()
        self._start_again()

    def token_count(self) -> int:
        """Return the length of the sequences."""
        return self._length

    def _check_tokens(self, rows: NDArray[np.int64]) -> None:
        longest, vocabulary = self._options.max_length, self._decoder.vocabulary_size
        if self._length + rows.shape[1] > longest:
            is_context = longest == self._decoder.context_length
            limit = "the model's context" if is_context else "the `max_length` that was set"
            raise OptionError(
                f"{rows.shape[1]:,} tokens after {self._length:,} are over {longest:,}, {limit}",
                hint="shorten the prompt" if is_context else "set a larger `max_length`",
            )
        foreign = rows[(rows < 0) | (rows >= vocabulary)]
        if foreign.size:
            raise OptionError(
                f"there is no token {foreign[0]}: the model has {vocabulary:,}, from 0",
                hint="use the tokenizer of the same folder",
            )

    def _append(self, columns: NDArray[np.int32], *, is_made: bool = False) -> None:
        self._is_made[self._length : self._length + columns.shape[1]] = is_made
        self._sequences[:, self._length : self._length + columns.shape[1]] = columns
        self._length += columns.shape[1]
        self._next = columns[:, -1].copy()

    def _read_new(self) -> NDArray[np.float32]:
        """Let the decoder read what it has not yet, and give the logits of the last token."""
        if self._read == 0:
            prompts = self._sequences[:: self._options.num_beams, : self._length].astype(np.int64)
            logits = self._rows.first(prompts, self._unpadded(prompts))
        elif self._drafts is not None:
            logits = self._read_with(self._drafts)
        else:
            logits = self._rows.forward(self._unread().astype(np.int64))
        self._read = self._length
        return logits

    def _unread(self) -> NDArray[np.int32]:
        """Return the tokens that the decoder has not read; of a whole text the last, once more."""
        if self._read == self._length:
            self._read -= 1
            self._forget_drafts()
            self._rows.drop(1)
        return self._sequences[:, self._read : self._length]

    def _read_with(self, drafts: Drafts) -> NDArray[np.float32]:
        """Read new tokens and what may follow them, or find that they were read before."""
        new = self._unread()[0]
        found = drafts.take(int(new[0])) if len(new) == 1 else None
        if found is not None:
            return found[None].copy()
        self._forget_drafts()
        guess = drafts.guess(self._sequences[0, : self._length], len(new))
        if not guess.size:
            return self._rows.forward(new[None].astype(np.int64))
        logits = self._rows.forward_every(np.concatenate([new, guess]).astype(np.int64))
        drafts.keep(guess.copy(), logits[len(new) :])
        last: NDArray[np.float32] = logits[len(new) - 1 : len(new)].copy()
        return last

    def _forget_drafts(self) -> None:
        if self._drafts is not None:
            self._rows.drop(self._drafts.forget())

    def _unpadded(self, rows: NDArray[np.int64]) -> list[int]:
        """Return the lengths without the padding on the right, which only a batch has."""
        if len(rows) == 1:
            return [rows.shape[1]]
        real = rows != self._ends.pad
        lengths = rows.shape[1] - real[:, ::-1].argmax(axis=1)
        return [
            int(n) if some else rows.shape[1] for n, some in zip(lengths, real.any(1), strict=True)
        ]

    def _current_logits(self) -> NDArray[np.float32]:
        if self._logits is None:
            if not self._length:
                raise OptionError(
                    "there are no tokens to go on from", hint="`append_tokens` comes first"
                )
            if self._rewound:
                self._append(self._next[:, None].copy())
                self._rewound = False
            self._logits = self._read_new()
        return self._logits

    def _next_of_rows(self, logits: NDArray[np.float32]) -> None:
        for index, row in enumerate(logits):
            if self._ended[index]:
                self._next[index] = self._ends.pad
                continue
            if self._guides:
                self._guides[index].mask(row)
            is_greedy = self._options.is_greedy
            token = int(row.argmax()) if is_greedy else choose(row, self._options, self._random)
            if self._guides:
                self._guides[index].take(token)
            self._next[index] = token
            self._ended[index] = token in self._ends.ends
        # onnxruntime-genai leaves the sequences as they are where the last of a batch has ended,
        # and the token that ended it is in `get_next_tokens` only.
        if not self._ended.all():
            self._append(self._next[:, None].copy(), is_made=True)

    def _next_of_beams(self, logits: NDArray[np.float32]) -> None:
        chances, width = log_softmax(logits), self._options.num_beams
        tokens: list[NDArray[np.int32]] = []
        sources: list[NDArray[np.int64]] = []
        for prompt, beams in enumerate(self._beams):
            own = slice(prompt * width, (prompt + 1) * width)
            token, row = beams.step(chances[own], self._rows_of(prompt)[:, : self._length])
            tokens.append(token)
            sources.append(row + prompt * width)
        order = np.concatenate(sources)
        self._sequences[:, : self._length] = self._sequences[order, : self._length]
        self._rows.reorder(order)
        self._append(np.concatenate(tokens)[:, None], is_made=True)

    def _rows_of(self, prompt: int) -> NDArray[np.int32]:
        width = self._options.num_beams
        return self._sequences[prompt * width : (prompt + 1) * width]

    def _start_again(self) -> None:
        """Let every sequence go on: tokens that the caller gave end nothing."""
        options = self._options
        self._ended = np.zeros(options.rows, bool)
        self._beams = (
            [Beams(options, self._ends.ends, self._ends.pad) for _ in range(options.batch_size)]
            if options.num_beams > 1
            else []
        )


def _numbers(given: ArrayLike, name: str) -> NDArray[Any]:
    """Return an array of numbers.

    Raises: OptionError for text, and for rows of several lengths.
    """
    try:
        array = np.asarray(given)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"{name} are numbers, in rows of one length", hint="`encode_batch` fills shorter rows"
        ) from error
    if array.dtype.kind not in "iuf":
        raise OptionError(
            f"{name} are numbers, not {type(given).__name__}",
            hint="`encode` gives the tokens of a text",
        )
    return array
