"""Decoding beside the memory it waits for: turns of a fraction of a second, in one process.

    python bench/llm_bandwidth_bench.py DIR [--models llama1b,smollm2] [--threads 1,2] [--pairs 20]
        [--prompt 128] [--new 16] [--meter-ms 100]

DIR holds OGA folders, as for `llm_bench.py`. A decoded token reads every weight and the cache, so
it can be no faster than memory is read. On a virtual machine that speed changes within seconds, by
a factor of two with two cores: it is measured right before and right after every few tokens, by the
fastest loop that we know, with as many threads, in a buffer as big as the weights and in huge
pages. A share is what these tokens read in a second over the mean of both.

Tokens are made as a user makes them, the choice of the likeliest included. One before each turn
does not count: the workers sleep while the meter runs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vermilion.llm.bandwidth import MemoryMeter
from vermilion.llm.open_decoder import EngineOptions
from vermilion.llm.open_model import open_model
from vermilion.llm.speed import random_prompt
from vermilion.llm.speed_turns import bytes_per_token

SEED = 7


@dataclass(frozen=True)
class Pair:
    """Some tokens: the time of one, what it reads, and the memory before and after them."""

    token_s: float
    token_bytes: float
    before_gb_per_s: float
    after_gb_per_s: float

    @property
    def memory_gb_per_s(self) -> float:
        """What the memory gave, while the tokens were made as far as one can tell."""
        return (self.before_gb_per_s + self.after_gb_per_s) / 2

    @property
    def share(self) -> float:
        """How much of that the tokens used."""
        return self.token_bytes / self.token_s / 1e9 / self.memory_gb_per_s


def main() -> None:
    """Measure every model on every number of threads, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default="llama1b,smollm2")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=16)
    parser.add_argument("--meter-ms", type=float, default=100.0)
    options = parser.parse_args()
    print(HEADER)
    for model in options.models.split(","):
        for threads in map(int, options.threads.split(",")):
            found = list(measure(options.folder / model, threads, options))
            print(line(f"{model}, {threads}", found), flush=True)


def measure(folder: Path, threads: int, options: argparse.Namespace) -> Iterator[Pair]:
    """Give the pairs of one model; its text grows by a few tokens from one to the next."""
    opened = open_model(folder, EngineOptions(threads=threads, engine="native"))
    vocabulary = opened.config.model["vocab_size"]
    assert isinstance(vocabulary, int), "a folder says how many tokens there are"
    each = options.new + 1
    whole = options.prompt + options.pairs * each + 1
    search = {"max_length": whole, "min_length": whole, "do_sample": False}
    generator = opened.generator(search)
    generator.append_tokens(random_prompt(options.prompt, vocabulary, SEED))
    generator.generate_next_token()

    weights = bytes_per_token(folder, 1)
    meter = MemoryMeter(threads, int(weights) // threads)
    passes = _passes(meter, options.meter_ms / 1e3)
    before = meter.gb_per_s(passes)
    for pair in range(options.pairs):
        generator.generate_next_token()
        begin = time.perf_counter()
        for _ in range(options.new):
            generator.generate_next_token()
        token_s = (time.perf_counter() - begin) / options.new
        after = meter.gb_per_s(passes)
        context = options.prompt + pair * each + each // 2
        cache = (bytes_per_token(folder, context) - weights) / 2  # counted in 32 bits
        yield Pair(token_s, weights + cache, before, after)
        before = after


def _passes(meter: MemoryMeter, seconds: float) -> int:
    """Give how often the buffers are read in about so many seconds."""
    return max(1, round(seconds * 1e9 * meter.gb_per_s() / meter.size_bytes))


HEADER = (
    f"{'model, threads':16}  {'tokens/s':>8}  {'they read, GB/s':>15}  {'memory, GB/s':>22}"
    "  share: median (quartiles)"
)


def line(name: str, pairs: Sequence[Pair]) -> str:
    """Give a line of the table."""
    tokens = statistics.median(1 / one.token_s for one in pairs)
    read = statistics.median(one.token_bytes / one.token_s / 1e9 for one in pairs)
    memory = [one.memory_gb_per_s for one in pairs]
    low, middle, high = statistics.quantiles([one.share for one in pairs], method="inclusive")
    spread = f"{statistics.median(memory):.1f} ({min(memory):.1f}–{max(memory):.1f})"
    return (
        f"{name:16}  {tokens:8.1f}  {read:15.1f}  {spread:>22}  {middle:.1%} ({low:.1%}–{high:.1%})"
    )


if __name__ == "__main__":
    main()
