"""How the next token is chosen: options, one sequence, several beams.

Names, defaults, limits, the order of the steps, the scores and the rule that ends a search are
those of onnxruntime-genai 0.18, so that the same sequences come out. Source:
microsoft/onnxruntime-genai, `struct Search` in `src/config.h`, the constructor of `Generator` in
`src/generators.cpp`, `src/search.cpp`, `src/sampling_distribution.h`, `src/beam_search_scorer.cpp`
and `BeamSearch_Cpu`.

The order of the steps: least length, repetition, repeated n-grams, then the k likeliest, and of
their probability the first p. Beam search keeps the likeliest of several continuations.

`min_p`, `presence_penalty` and `frequency_penalty` are not there. The first is as in transformers
(`MinPLogitsWarper`), after the others; the penalties are those of OpenAI's API reference, of the
tokens that were generated, before the steps above.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import OptionError

_MOST_ROWS = 32  # of a batch, and of beams: onnxruntime-genai's own limits


@dataclass(frozen=True)
class SearchOptions:
    """Lengths count the prompt. `top_k` 1 or `temperature` 0 choose the likeliest token."""

    batch_size: int = 1
    chunk_size: int = 0  # taken and not used: the engine cuts prompts itself
    diversity_penalty: float = 0.0  # taken and not used, as there
    do_sample: bool = False
    early_stopping: bool = True
    frequency_penalty: float = 0.0
    length_penalty: float = 1.0
    max_length: int = 0  # 0: the model's context, where nothing else is set
    min_length: int = 0
    min_p: float = 0.0
    no_repeat_ngram_size: int = 0
    num_beams: int = 1
    num_return_sequences: int = 1
    past_present_share_buffer: bool = True  # the cache is never copied, whatever this says
    presence_penalty: float = 0.0
    random_seed: int = -1  # -1: another text each time
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_k: int = 50
    top_p: float = 0.0

    @property
    def rows(self) -> int:
        """Sequences that advance together."""
        return self.batch_size * self.num_beams

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return not self.do_sample or self.top_k == 1 or self.temperature == 0

    def with_changes(self, changes: Mapping[str, object]) -> SearchOptions:
        """Return the options with some changed.

        Raises: OptionError for a name or a type that there is not.
        """
        types = {field.name: field.type for field in dataclasses.fields(self)}
        checked = {name: _as_type(name, value, types) for name, value in changes.items()}
        for name, value in checked.items():
            _check_range(name, value)
        return dataclasses.replace(self, **checked)  # type: ignore[arg-type]

    def checked(self, vocabulary: int, context: int) -> SearchOptions:
        """Return the options with `max_length` set, once they fit the model and each other.

        Raises: OptionError.
        """
        longest = self.max_length or context
        if longest > context:
            raise OptionError(
                f"`max_length` is {longest:,}, and the model's context {context:,}",
                hint=f"ask for {context} or less",
            )
        _check_rows(self)
        if not self.is_greedy:
            _check_sampling(self, vocabulary)
        if self.repetition_penalty <= 0:
            raise OptionError("`repetition_penalty` is over 0", hint="1 leaves the text as it is")
        return dataclasses.replace(self, max_length=longest)


def _as_type(name: str, value: object, types: Mapping[str, object]) -> object:
    if name not in types:
        import difflib  # for the mistake alone

        near = difflib.get_close_matches(name, types, n=1, cutoff=0.6)
        hint = f"did you mean `{near[0]}`?" if near else f"there are {', '.join(types)}"
        raise OptionError(f"`{name}` is no search option", hint=hint)
    if types[name] == "bool":
        if isinstance(value, bool):
            return value
        raise OptionError(f"`{name}` is true or false, not {value!r}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise OptionError(f"`{name}` is a number, not {value!r}")
    if value != value or abs(value) >= 1 << 31:
        raise OptionError(f"`{name}` is {value!r}")
    if types[name] == "float":
        return float(value)
    if value != int(value):
        raise OptionError(f"`{name}` is a whole number, not {value!r}")
    return int(value)


# The least and the most that a number may be. Penalties: OpenAI's API reference.
_RANGES: Mapping[str, tuple[float, float]] = {
    "chunk_size": (0, math.inf),
    "frequency_penalty": (-2, 2),
    "max_length": (1, math.inf),
    "min_length": (0, math.inf),
    "min_p": (0, 1),
    "no_repeat_ngram_size": (0, math.inf),
    "presence_penalty": (-2, 2),
    "random_seed": (-1, math.inf),
    "temperature": (0, math.inf),
    "top_k": (0, math.inf),
    "top_p": (0, 1),
}


def _check_range(name: str, value: object) -> None:
    least, most = _RANGES.get(name, (-math.inf, math.inf))
    if isinstance(value, int | float) and not least <= value <= most:
        within = f"{least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"
        raise OptionError(f"`{name}` is {value:g}: it is {within}")


def _check_rows(options: SearchOptions) -> None:
    limits = {
        "batch_size": (options.batch_size, _MOST_ROWS),
        "num_beams": (options.num_beams, _MOST_ROWS),
        "num_return_sequences": (options.num_return_sequences, options.num_beams),
    }
    for name, (value, most) in limits.items():
        if not 1 <= value <= most:
            raise OptionError(f"`{name}` is {value}, not from 1 to {most}")
    if options.num_beams > 1 and not options.is_greedy:
        raise OptionError(
            "beams and sampling exclude each other", hint="`num_beams` 1, or `do_sample` false"
        )


def _check_sampling(options: SearchOptions, vocabulary: int) -> None:
    if not 0 <= options.top_k <= vocabulary:
        raise OptionError(
            f"`top_k` is {options.top_k}, not from 0 to the {vocabulary:,} tokens that there are"
        )


Row = NDArray[np.float32]
Tokens = NDArray[np.int32]

NEVER = np.finfo(np.float32).min
"""The logit of a token that must not come."""


def penalize(
    row: Row, past: Tokens, options: SearchOptions, ends: Sequence[int], made: Tokens
) -> None:
    """Change the logits in place by what the sequence so far forbids or makes less likely.

    `made` are those of its tokens that were generated.
    """
    if options.presence_penalty or options.frequency_penalty:
        tokens, counts = np.unique(_inside(made, row), return_counts=True)
        row[tokens] -= np.float32(options.presence_penalty)
        row[tokens] -= np.float32(options.frequency_penalty) * counts.astype(np.float32)
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
    if options.min_p > 0:
        count = int((chances >= options.min_p * chances[0]).sum())  # the likeliest comes first
        tokens, chances = tokens[:count], chances[:count]
        chances = chances / chances.sum()
    return tokens, chances


@dataclass(frozen=True)
class TokenChance:
    """A token that was chosen: the logarithm of its probability, and the likeliest tokens'."""

    token: int
    logprob: float
    likeliest: tuple[tuple[int, float], ...]


def chance_of(row: Row, token: int, count: int) -> TokenChance:
    """Return what the model expected of a token, and the `count` likeliest, the first first."""
    logs = log_softmax(row.astype(np.float64))
    best = np.argsort(-logs, kind="stable")[:count]
    return TokenChance(token, float(logs[token]), tuple((int(at), float(logs[at])) for at in best))


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
