"""How fast a folder is: time to first token, prefill, decode, memory.

A prompt is made of random tokens, so that lengths are exact. Time to first token covers reading
the prompt and making one token; decode is the tokens after it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vermilion.errors import OptionError
from vermilion.llm.stock_engine import EngineOptions, OpenModel, open_folder
from vermilion.memory import peak_rss_mb
from vermilion.progress import Progress, no_progress

# Ids below are often special tokens.
_FIRST_ID = 100


@dataclass(frozen=True)
class SpeedRequest:
    """What is measured: prompts of these lengths, so many new tokens, the median of `repeat`."""

    prompts: tuple[int, ...] = (128, 512)
    new_tokens: int = 64
    repeat: int = 5
    warmup: int = 1

    def __post_init__(self) -> None:
        if not self.prompts or min(self.prompts) < 1:
            raise OptionError("a prompt has at least one token", hint="`-l 128,512`")
        if self.new_tokens < 2 or self.repeat < 1 or self.warmup < 0:
            raise OptionError(
                "at least two new tokens and one repetition are measured", hint="`-g 64 -r 5`"
            )


@dataclass(frozen=True)
class Speed:
    """Medians for one length of prompt. `peak_rss_mb` is of the process so far."""

    prompt_tokens: int
    new_tokens: int
    ttft_ms: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    peak_rss_mb: float


@dataclass(frozen=True)
class Speeds:
    """All that one measurement gives, shortest prompt first."""

    engine: str
    load_s: float
    results: tuple[Speed, ...]


def measure_speed(
    folder: Path, request: SpeedRequest, options: EngineOptions, progress: Progress = no_progress
) -> Speeds:
    """Measure a folder.

    Raises: OptionError for prompts over the model's context, and what `open_folder` raises.
    """
    begin = time.perf_counter()
    opened = open_folder(folder, options)
    load_s = time.perf_counter() - begin
    lengths = sorted(set(request.prompts))
    opened.check_room(lengths[-1], request.new_tokens + 1)
    rounds = request.warmup + request.repeat
    results: list[Speed] = []
    for index, length in enumerate(lengths):
        samples: list[tuple[float, float]] = []
        for turn in range(rounds):
            progress("measuring", index * rounds + turn, len(lengths) * rounds)
            samples.append(_once(opened, length, request.new_tokens, seed=turn))
        results.append(_medians(length, request.new_tokens, samples[request.warmup :]))
    return Speeds(opened.engine, load_s, tuple(results))


def _once(opened: OpenModel, length: int, new_tokens: int, seed: int) -> tuple[float, float]:
    """Give the seconds to the first token, and of those after it."""
    import numpy as np

    vocabulary = opened.config.model.get("vocab_size")
    most = vocabulary if isinstance(vocabulary, int) and vocabulary > 2 * _FIRST_ID else 0
    low = _FIRST_ID if most else 0
    tokens = np.random.default_rng(seed).integers(low, most or 64, size=length, dtype=np.int32)
    whole = length + new_tokens + 1
    generator = opened.generator({"max_length": whole, "min_length": whole, "do_sample": False})
    begin = time.perf_counter()
    generator.append_tokens(tokens)
    generator.generate_next_token()
    first = time.perf_counter()
    for _ in range(new_tokens - 1):
        generator.generate_next_token()
    return first - begin, time.perf_counter() - first


def _medians(length: int, new_tokens: int, samples: Sequence[tuple[float, float]]) -> Speed:
    first_s = statistics.median(first for first, _ in samples)
    rest_s = statistics.median(rest for _, rest in samples)
    return Speed(
        prompt_tokens=length,
        new_tokens=new_tokens,
        ttft_ms=first_s * 1e3,
        prefill_tokens_per_s=length / first_s,
        decode_tokens_per_s=(new_tokens - 1) / rest_s,
        peak_rss_mb=peak_rss_mb(),
    )
