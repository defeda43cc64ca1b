"""One text that is being written: its tokens, how the next is chosen, what of it is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import OptionError
from vermilion.llm.generate import StopText
from vermilion.llm.guidance import Guidance, Guide
from vermilion.llm.search import SearchOptions, TokenChance, chance_of, choose, penalize
from vermilion.llm.tokenizer import TextStream

Row = NDArray[np.float32]
Event = dict[str, Any]


@dataclass(frozen=True)
class Wish:
    """How a text is to be written, as a request says it.

    `seed` None: another text each time. `logprobs` None: none are kept. `already` are the tokens
    of each text that were written before, by a process that has ended.
    """

    new: int
    count: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    ignore_end: bool = False
    guidance: tuple[str, str] | None = None
    already: tuple[tuple[int, ...], ...] = ()

    def search(self) -> SearchOptions:
        """Return the options that the library chooses tokens by. Raises: OptionError."""
        return SearchOptions().with_changes(
            {
                "do_sample": self.temperature > 0,
                "temperature": self.temperature,
                "top_k": self.top_k,
                "top_p": self.top_p,
                "min_p": self.min_p,
                "presence_penalty": self.presence_penalty,
                "frequency_penalty": self.frequency_penalty,
                "repetition_penalty": self.repetition_penalty,
            }
        )

    def form(self) -> Guidance | None:
        """Return the form that the text is to have. Raises: OptionError."""
        return None if self.guidance is None else Guidance(*self.guidance)


@dataclass(eq=False)
class Text:
    """A text of a request. `ends` end it; `made` are its tokens so far."""

    request: str
    choice: int
    prompt: list[int]
    wish: Wish
    ends: tuple[int, ...]
    stream: TextStream
    decode: Callable[[Sequence[int]], str]
    guide: Guide | None = None
    room: Any = None  # in the cache; None while it waits
    read: int = 0  # tokens of the prompt
    made: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._options = self.wish.search()
        # The first text of a seed is the library's.
        parts = self.wish.seed if self.choice == 0 else [self.wish.seed, self.choice]
        self._random = np.random.default_rng(parts)
        self._stop = StopText(self.wish.stop)
        rows = self.wish.already
        self._known = list(rows[self.choice]) if self.choice < len(rows) else []
        self.finish = ""

    @property
    def is_read(self) -> bool:
        """Whether the whole prompt is in the cache."""
        return self.read == len(self.prompt)

    def take(self, logits: Row) -> Event | None:
        """Choose the next token; return what is to be told of it, nothing where it was before."""
        token = self._next(logits)
        chance = self._chance
        self.made.append(token)
        is_end = token in self.ends and not self.wish.ignore_end
        piece = "" if is_end else self._stop.take(self.stream.decode(token))
        if self._stop.found or is_end:
            self.finish = "stop"
        elif len(self.made) >= self.wish.new:
            self.finish = "length"
        if self.finish:
            piece += self._stop.rest()
        if len(self.made) <= self._before and not self.finish:
            return None
        event: Event = {
            "request": self.request, "choice": self.choice, "token": token, "text": piece,
            "finish": self.finish or None,
        }  # fmt: skip
        if chance is not None and not is_end:
            event["chance"] = self._told(chance)
        return event

    @property
    def _before(self) -> int:
        rows = self.wish.already
        return len(rows[self.choice]) if self.choice < len(rows) else 0

    def _next(self, logits: Row) -> int:
        self._chance: TokenChance | None = None
        plain = logits.copy() if self.wish.logprobs is not None else logits
        for token, bias in self.wish.bias:
            logits[token] += np.float32(bias)
        made = np.array(self.made, np.int32)
        past = np.array([*self.prompt, *self.made], np.int32) if self._looks_back else made
        penalize(logits, past, self._options, self.ends, made)
        if self.guide is not None:
            self.guide.mask(logits)
        token = choose(logits, self._options, self._random)
        if self._known:  # as it was chosen before, after as many draws
            token = self._known.pop(0)
        if self.guide is not None:
            self.guide.take(token)
        if self.wish.logprobs is not None:
            self._chance = chance_of(plain, token, self.wish.logprobs)
        return token

    @property
    def _looks_back(self) -> bool:
        return self._options.repetition_penalty != 1

    def _told(self, chance: TokenChance) -> Event:
        pairs = [(chance.token, chance.logprob), *chance.likeliest]
        rows = [[token, self.decode([token]), logprob] for token, logprob in pairs]
        return {"token": rows[0], "likeliest": rows[1:]}


def check_bias(bias: Sequence[tuple[int, float]], vocabulary: int) -> None:
    """Raise OptionError for a token that there is not, or a number outside of -100 to 100."""
    for token, number in bias:
        if not 0 <= token < vocabulary:
            raise OptionError(f"there is no token {token}: the model has {vocabulary:,}, from 0")
        if not -100 <= number <= 100:
            raise OptionError(f"the bias of token {token} is {number}, not from -100 to 100")
