"""Text from a prompt or in a conversation, token by token, and how fast it came."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from vermilion.errors import OptionError
from vermilion.llm.decoder import EngineOptions
from vermilion.llm.drafts import Drafts
from vermilion.llm.generation import Generation
from vermilion.llm.guidance import Guidance
from vermilion.llm.open_model import AnyModel, OwnModel, check_room, open_model
from vermilion.llm.search import TokenChance
from vermilion.memory import peak_rss_mb


class StopText:
    """Lets a text through up to the first of the given ones, which itself is left out."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.found = False

    def take(self, piece: str) -> str:
        """Return what of the text so far is sure to belong to it."""
        if self.found:
            return ""
        text = self._held + piece
        places = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if places:
            self.found, self._held = True, ""
            return text[: min(places)]
        kept = max((_beginning(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def rest(self) -> str:
        """Return what was held back, once nothing follows."""
        held, self._held = self._held, ""
        return "" if self.found else held


def _beginning(text: str, stop: str) -> int:
    """Return the length of the longest beginning of `stop` that ends `text`."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)


OnText = Callable[[str], None]


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. `temperature` 0: always the likeliest."""

    new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 50
    top_p: float = 1.0
    seed: int = 0
    repetition_penalty: float = 1.0
    beams: int = 1
    stop: tuple[str, ...] = ()
    guidance: Guidance | None = None
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None  # keep each token's likelihood, and the so many likeliest ones
    lookup: bool = True  # read what stood in the text before ahead of its choice

    def __post_init__(self) -> None:
        if self.new_tokens < 1:
            raise OptionError("at least one token is generated", hint="`-g 64`")
        if not 0 <= self.temperature < math.inf or not 0 < self.top_p <= 1 or self.top_k < 1:
            raise OptionError("the temperature is 0 or more, top-p over 0 up to 1, top-k 1 or more")
        if not 0 <= self.min_p <= 1:
            raise OptionError(f"min-p is {self.min_p:g}, not from 0 to 1")
        if self.beams < 1 or (self.beams > 1 and self.temperature > 0):
            raise OptionError("at least one beam; beams take no `--temperature`")

    def search(self, longest: int) -> dict[str, object]:
        """Return the search options of onnxruntime-genai for sequences of at most this length."""
        options: dict[str, object] = {
            "max_length": longest,
            "do_sample": self.temperature > 0,
            "num_beams": self.beams,
            "num_return_sequences": 1,
            "repetition_penalty": self.repetition_penalty,
        }
        if self.presence_penalty or self.frequency_penalty:
            options |= {
                "presence_penalty": self.presence_penalty,
                "frequency_penalty": self.frequency_penalty,
            }
        if self.temperature > 0:
            options |= {
                "temperature": self.temperature,
                "top_k": self.top_k,
                "top_p": self.top_p,
                "random_seed": self.seed,
            }
            if self.min_p:
                options["min_p"] = self.min_p
        return options

    def prepare(self, generator: Any) -> Drafts | None:
        """Tell a generator what is no search option; return what counts what is read ahead.

        Raises: OptionError where another engine than ours was chosen.
        """
        is_ours = isinstance(generator, Generation)
        drafts = generator.read_ahead() if self.lookup and is_ours else None
        if not self.logit_bias and self.logprobs is None:
            return drafts
        if not isinstance(generator, Generation):
            raise OptionError(
                "onnxruntime-genai has no logit bias, and keeps no likelihoods of tokens",
                hint="another `--engine`",
            )
        generator.set_logit_bias(dict(self.logit_bias))
        if self.logprobs is not None:
            generator.keep_chances(self.logprobs)
        return drafts


# What ended a text: the model, a text to stop at, the most tokens, or who waits for it.
Stopped = Literal["end", "stop", "length", "interrupted"]


@dataclass(frozen=True)
class Generated:
    """A text and its speed. `decode_tokens_per_s` is 0 where only one token came."""

    text: str
    engine: str
    engine_reason: str
    prompt_tokens: int  # read for this text; a conversation's earlier ones are in the cache
    new_tokens: int
    stopped: Stopped
    load_s: float
    ttft_ms: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    peak_rss_mb: float
    logprobs: tuple[TokenChance, ...] = ()
    weights: tuple[str, ...] = ()  # of a published model: each type, and how it is read
    read_ahead: int = 0  # tokens that were read before they were chosen
    read_ahead_taken: int = 0  # of those, tokens that were chosen


def generate(
    folder: Path,
    prompt: str,
    sampling: Sampling,
    options: EngineOptions,
    *,
    as_chat: bool = True,
    on_text: OnText | None = None,
) -> Generated:
    """Continue a prompt; `on_text` is given each piece as it comes.

    Raises: OptionError for a prompt over the model's context, and what `open_model` raises.
    """
    if not prompt:
        raise OptionError("the prompt is empty", hint="`-p 'What is the capital of France?'`")
    begin = time.perf_counter()
    opened = open_model(folder, options)
    load_s = time.perf_counter() - begin
    tokens = opened.encode(prompt, as_chat=as_chat)
    if not tokens:
        raise OptionError("the prompt has no tokens")
    check_room(opened.config, len(tokens), sampling.new_tokens)
    longest = len(tokens) + sampling.new_tokens
    generator = opened.generator(sampling.search(longest), sampling.guidance)
    return continued(opened, generator, tokens, sampling, load_s=load_s, on_text=on_text)


def continued(
    opened: AnyModel,
    generator: Any,
    tokens: Sequence[int],
    sampling: Sampling,
    *,
    load_s: float = 0.0,
    on_text: OnText | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Generated:
    """Append tokens to what a generator has, and let it go on, up to where `should_stop`."""
    show = on_text or (lambda _: None)
    drafts = sampling.prepare(generator)
    earlier = (drafts.read_ahead, drafts.taken) if drafts is not None else (0, 0)
    chances: list[TokenChance] = []
    is_interrupted = False
    stop, stream = StopText(sampling.stop), opened.tokenizer.create_stream()
    pieces: list[str] = []
    moments = [time.perf_counter()]
    before = generator.token_count()
    generator.append_tokens(list(tokens))
    while len(moments) <= sampling.new_tokens and not stop.found and not generator.is_done():
        is_interrupted = should_stop()
        if is_interrupted:
            break
        generator.generate_next_token()
        moments.append(time.perf_counter())
        if sampling.logprobs is not None:
            chances += generator.get_chances()
        if sampling.beams == 1:
            piece = _plain(stop.take(stream.decode(int(generator.get_next_tokens()[0]))))
            pieces.append(piece)
            show(piece)
    if sampling.beams > 1:
        best = generator.get_sequence(0)[before + len(tokens) :]
        pieces.append(_plain(stop.take(opened.tokenizer.decode(best))))
        show(pieces[-1])
    pieces.append(_plain(stop.rest()))
    show(pieces[-1])
    stopped: Stopped = "length"
    if is_interrupted:
        stopped = "interrupted"
    elif stop.found:
        stopped = "stop"
    elif _has_ended(generator, before + len(tokens), len(moments) - 1, sampling):
        stopped = "end"
    made = _measured(opened, "".join(pieces), len(tokens), moments, stopped, load_s)
    ahead, taken = (drafts.read_ahead, drafts.taken) if drafts is not None else (0, 0)
    return replace(
        made, logprobs=tuple(chances), weights=_weights(opened),
        read_ahead=ahead - earlier[0], read_ahead_taken=taken - earlier[1],
    )  # fmt: skip


def _weights(opened: AnyModel) -> tuple[str, ...]:
    source = opened.config.source
    types = source.types() if source is not None else {}
    return tuple(
        f"{name}: {stored:g} bits a weight, read as "
        + ("stored" if read <= stored else f"{read:g}")
        for name, (stored, read) in types.items()
    )


def _has_ended(generator: Any, prompt: int, made: int, sampling: Sampling) -> bool:
    """Say whether the model ended the text: the token that does so is not in the sequence."""
    return made < sampling.new_tokens or int(generator.token_count()) < prompt + made


def _measured(
    opened: AnyModel,
    text: str,
    prompt: int,
    moments: Sequence[float],
    stopped: Stopped,
    load_s: float,
) -> Generated:
    made = len(moments) - 1
    first_s = (moments[1] if made else time.perf_counter()) - moments[0]
    rest_s = moments[-1] - moments[1] if made else 0.0
    return Generated(
        text=text,
        engine=opened.engine,
        engine_reason=opened.reason,
        prompt_tokens=prompt,
        new_tokens=made,
        stopped=stopped,
        load_s=load_s,
        ttft_ms=first_s * 1e3,
        prefill_tokens_per_s=prompt / first_s,
        decode_tokens_per_s=(made - 1) / rest_s if made > 1 else 0.0,
        peak_rss_mb=peak_rss_mb(),
    )


def _plain(text: str) -> str:
    """Leave out control characters: a model may write escape codes for terminals."""
    return "".join(c for c in text if c.isprintable() or c in "\n\t")


# A context may be of 128 Ki tokens, whose cache is larger than the model; few talks come near.
_FIRST_ROOM = 2048


class Conversation:
    """Messages so far, and the generator whose cache holds them."""

    def __init__(self, opened: AnyModel, sampling: Sampling, system: str = "") -> None:
        if sampling.beams > 1:
            raise OptionError("a conversation has one beam", hint="leave out `--beams`")
        self._opened, self._sampling = opened, sampling
        self._start = [{"role": "system", "content": system}] if system else []
        self._messages = list(self._start)
        self._generator: Any = None
        self._room = 0  # tokens that the generator's cache is for

    def answer(
        self,
        text: str,
        on_text: OnText | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Generated:
        """Return the model's answer to the next message, up to where `should_stop`.

        Raises: OptionError where the conversation no longer fits the context; it stays as it was.
        """
        messages = [*self._messages, {"role": "user", "content": text}]
        whole = self._opened.encode(self._opened.apply_chat_template(messages), as_chat=False)
        check_room(self._opened.config, len(whole), self._sampling.new_tokens)
        new = self._continue_from(whole)
        made = continued(
            self._opened, self._generator, new, self._sampling, on_text=on_text,
            should_stop=should_stop,
        )  # fmt: skip
        self._messages = [*messages, {"role": "assistant", "content": made.text}]
        return made

    def start_again(self) -> None:
        """Forget everything but the system's message."""
        self._messages, self._generator, self._room = list(self._start), None, 0

    def _continue_from(self, whole: list[int]) -> list[int]:
        """Keep as much of the cache as the new text begins with; give the tokens after that."""
        needed = len(whole) + self._sampling.new_tokens
        # onnxruntime-genai leaves the last generated token out of its cache when more is appended.
        if not isinstance(self._opened, OwnModel) or needed > self._room:
            context = self._opened.config.context_length()
            self._room = min(context, max(_FIRST_ROOM, 2 * needed))
            search = self._sampling.search(self._room)
            self._generator = self._opened.generator(search, self._sampling.guidance)
            return whole
        held = self._generator.get_sequence(0).tolist()
        pairs = zip(held, whole[:-1], strict=False)
        longest = min(len(held), len(whole) - 1)
        same = next((at for at, (a, b) in enumerate(pairs) if a != b), longest)
        self._generator.rewind_to(same)
        return whole[same:]
