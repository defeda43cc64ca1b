"""How fast a folder is: time to first token, prefill, decode, memory.

A prompt is made of random tokens, so that lengths are exact. Time to first token covers reading
the prompt and making one token; decode is the tokens after it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import OptionError
from vermilion.llm.open_model import AnyModel

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
class Sample:
    """One measurement: wall time and this process's own, to the first token and after it."""

    first_s: float
    rest_s: float
    first_cpu_s: float
    rest_cpu_s: float


@dataclass(frozen=True)
class Speed:
    """Medians for one length of prompt. `peak_rss_mb` is of the process so far."""

    prompt_tokens: int
    new_tokens: int
    ttft_ms: float
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    peak_rss_mb: float


def measure_once(opened: AnyModel, length: int, new_tokens: int, seed: int) -> Sample:
    """Read a prompt of random tokens, and make so many new ones."""
    vocabulary = opened.config.model.get("vocab_size")
    tokens = random_prompt(length, vocabulary if isinstance(vocabulary, int) else 0, seed)
    whole = length + new_tokens + 1
    generator = opened.generator({"max_length": whole, "min_length": whole, "do_sample": False})
    begin, begin_cpu = time.perf_counter(), time.process_time()
    generator.append_tokens(tokens)
    generator.generate_next_token()
    first, first_cpu = time.perf_counter(), time.process_time()
    for _ in range(new_tokens - 1):
        generator.generate_next_token()
    return Sample(
        first_s=first - begin,
        rest_s=time.perf_counter() - first,
        first_cpu_s=first_cpu - begin_cpu,
        rest_cpu_s=time.process_time() - first_cpu,
    )


def random_prompt(length: int, vocabulary: int, seed: int) -> NDArray[np.int32]:
    """Return tokens that are no special ones, the same for the same seed.

    A shorter prompt of the same seed is no beginning of a longer one: an engine that keeps what it
    has read (openvino-genai does) would not read that part again.
    """
    low, most = (_FIRST_ID, vocabulary) if vocabulary > 2 * _FIRST_ID else (0, 64)
    random = np.random.default_rng((seed, length))
    return random.integers(low, most, size=length, dtype=np.int32)


def medians(length: int, new_tokens: int, samples: Sequence[Sample], peak_mb: float) -> Speed:
    """Return the medians of several measurements of one length."""
    first_s = statistics.median(one.first_s for one in samples)
    rest_s = statistics.median(one.rest_s for one in samples)
    return Speed(
        prompt_tokens=length,
        new_tokens=new_tokens,
        ttft_ms=first_s * 1e3,
        prefill_tokens_per_s=length / first_s,
        decode_tokens_per_s=(new_tokens - 1) / rest_s,
        peak_rss_mb=peak_mb,
    )
