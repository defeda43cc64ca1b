"""`model_benchmark`: the vendor's measurement of a folder, section by section.

Source of the sections and of what is timed: microsoft/onnxruntime-genai, `benchmark/c/main.cpp`,
which the vendor's program is built from. A prompt's time is that of appending it, the first token's
choice is sampling, every later token is generation.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from vermilion.errors import OptionError
from vermilion.llm.decoder import EngineOptions
from vermilion.llm.genai_config import read_genai_config
from vermilion.llm.speed_engines import FIRST_ID, token_moments
from vermilion.memory import peak_rss_mb
from vermilion.rounds import in_rounds

MAX_PROMPT_BYTES = 64 << 20

Say = Callable[[str], None]


@dataclass(frozen=True)
class BenchmarkRequest:
    """What is measured. `lengths` empty: the whole prompt of the file, or 16 tokens."""

    lengths: tuple[int, ...] = ()
    prompt_file: Path | None = None
    new_tokens: int = 128
    repeat: int = 5
    warmup: int = 1

    def __post_init__(self) -> None:
        if any(length < 1 for length in self.lengths):
            raise OptionError("a prompt has at least one token", hint='`-l "128, 256"`')
        if self.new_tokens < 1 or self.repeat < 1 or self.warmup < 0:
            raise OptionError(
                "at least one new token and one repetition are measured", hint="`-g 128 -r 5 -w 1`"
            )


@dataclass(frozen=True)
class Times:
    """Durations in seconds, each of so many tokens."""

    seconds: tuple[float, ...]
    tokens: int = 1

    @property
    def average(self) -> float:
        """Mean; 0 without any."""
        return statistics.fmean(self.seconds) if self.seconds else 0.0

    @property
    def median(self) -> float:
        """Median; 0 without any."""
        return statistics.median(self.seconds) if self.seconds else 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation of the sample; 0 for one."""
        return statistics.stdev(self.seconds) if len(self.seconds) > 1 else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Tokens in a second, on average."""
        return self.tokens / self.average if self.average else 0.0


@dataclass(frozen=True)
class Measured:
    """All repetitions at one length of the prompt."""

    prompt_tokens: int
    new_tokens: int
    prompt: Times
    generation: Times
    sampling: Times
    whole: Times
    peak_rss_mb: float


@dataclass(frozen=True)
class Benchmark:
    """What one call gives."""

    engine: str
    reason: str
    load_s: float
    results: tuple[Measured, ...] = field(default=())


def run_benchmark(
    folder: Path, request: BenchmarkRequest, options: EngineOptions, say: Say
) -> Benchmark:
    """Measure a folder.

    Raises: OptionError for a prompt that cannot be read, or with what follows is over the
    context; and what opening the folder raises.
    """
    config = read_genai_config(folder)
    text = None if request.prompt_file is None else _prompt(request.prompt_file)
    for length in request.lengths:
        _check_room(folder, length, request.new_tokens, config.context_length())
    say(f"loading {folder}")
    begin = time.perf_counter()
    opened, reason = _opened(folder, options)
    load_s = time.perf_counter() - begin
    say(f"loaded in {load_s:.2f} s, run by {opened.engine}")
    given = None if text is None else opened.encode(text, as_chat=False)
    if given is not None and not given:
        raise OptionError("the prompt is empty", where=str(request.prompt_file))
    lengths = request.lengths or ((len(given),) if given else (16,))
    results = []
    for length in lengths:
        _check_room(folder, length, request.new_tokens, config.context_length())
        tokens = _tokens(given, length, config.model.get("vocab_size"))
        results.append(_measure(opened, tokens, request, say))
    return Benchmark(opened.engine, reason, load_s, tuple(results))


def _opened(folder: Path, options: EngineOptions) -> tuple[Any, str]:
    """Return the model and why it is not our generated code that runs, empty if it is."""
    if options.engine == "onnxruntime-genai":
        from vermilion.llm.stock_engine import open_folder

        return open_folder(folder, options), "asked for"
    from vermilion.llm.hybrid_config import hybrid_place, is_hybrid
    from vermilion.llm.open_model import open_own_model

    config = read_genai_config(folder)
    if not is_hybrid(folder) or options.engine == "onnxruntime":
        own = open_own_model(config, options)
        return own, own.reason
    place = hybrid_place(folder, options.cache)
    own = open_own_model(place.config, options.of_hybrid(place))
    own_code = f"its code was compiled at load: {place.reason}" if place.reason else ""
    return own, own.reason or own_code


def _check_room(folder: Path, prompt: int, new: int, context: int) -> None:
    if prompt + new > context:
        raise OptionError(
            f"a prompt of {prompt:,} tokens and {new:,} that follow are over the model's context of"
            f" {context:,}",
            where=str(folder),
            hint="ask for a shorter prompt with `-l`, or fewer tokens with `-g`",
        )


def _prompt(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_PROMPT_BYTES + 1)
        if len(data) > MAX_PROMPT_BYTES:
            raise OptionError("the prompt is too long", where=str(file), hint="64 MiB at most")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise OptionError(
            f"the prompt cannot be read: {error.strerror or error}",
            where=str(file),
            hint="`-f FILE` names a text; without it, prompts are random tokens",
        ) from error
    except UnicodeDecodeError as error:
        raise OptionError("the prompt is no UTF-8 text", where=str(file)) from error


def _tokens(given: Sequence[int] | None, length: int, vocabulary: object) -> list[int]:
    """Return a prompt of exactly `length`: the file's, cut or said again, or random tokens."""
    if given:
        times = -(-length // len(given))
        return (list(given) * times)[:length]
    high = vocabulary if isinstance(vocabulary, int) and vocabulary > 1 else 2
    low = FIRST_ID if high > 2 * FIRST_ID else 0
    return [int(t) for t in np.random.default_rng(0).integers(low, high, size=length)]


def _measure(opened: Any, tokens: Sequence[int], request: BenchmarkRequest, say: Say) -> Measured:
    def turn(_: object, number: int) -> tuple[float, float, tuple[float, ...]]:
        name = "warm-up" if number < request.warmup else f"run {number - request.warmup + 1}"
        say(f"prompt of {len(tokens)} tokens: {name}")
        return _turn(opened, tokens, request.new_tokens)

    (kept,) = in_rounds([opened], turn, request.repeat, warm_up=request.warmup)
    return Measured(
        prompt_tokens=len(tokens),
        new_tokens=request.new_tokens,
        prompt=Times(tuple(one[0] for one in kept), len(tokens)),
        sampling=Times(tuple(one[1] for one in kept)),
        generation=Times(tuple(seconds for one in kept for seconds in one[2])),
        whole=Times(tuple(one[0] + one[1] + sum(one[2]) for one in kept)),
        peak_rss_mb=peak_rss_mb(),
    )


def _turn(
    opened: Any, tokens: Sequence[int], new_tokens: int
) -> tuple[float, float, tuple[float, ...]]:
    """Return the seconds of the prompt, of the first token's choice, and of each later token."""
    whole = len(tokens) + new_tokens
    # As many tokens as asked for, whatever the model would like to end.
    search = {"max_length": whole, "min_length": whole, "do_sample": False}
    generator = opened.generator(search)
    moments = token_moments(generator, np.array(tokens, np.int32), new_tokens)
    steps = [after - before for (before, _), (after, _) in pairwise(moments)]
    return steps[0], steps[1], tuple(steps[2:])
