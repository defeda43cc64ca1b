"""Decoding beside the memory it waits for: turns of a fraction of a second, in one process.

    python bench/llm_bandwidth_bench.py DIR [--models llama1b,smollm2] [--threads 1,2] [--pairs 20]
        [--prompt 128] [--new 16] [--meter-ms 100]

DIR holds OGA folders, as for `llm_bench.py`. A decoded token reads every weight and the cache, so
it can be no faster than memory is read. On a virtual machine that speed changes within seconds, by
a factor of two with two cores: it is measured right before and right after every few tokens, by the
fastest loop that we know, with as many threads, in a buffer as big as the weights and in huge
pages. A share is what these tokens read in a second over the mean of both: `share` by the bytes
that our engine reads, weights as it packs them and the cache; `as stored` by those of the folder,
whose scales have 32 bits where ours have 16.

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

from vermilion.bench.bandwidth import MemoryMeter
from vermilion.bench.figures import ratio, spread
from vermilion.llm.decoder import EngineOptions
from vermilion.llm.engine.decoder import NativeDecoder
from vermilion.llm.genai_config import read_genai_config
from vermilion.llm.open_model import open_own_model
from vermilion.llm.speed import bytes_per_token
from vermilion.llm.speed_engines import random_prompt

SEED = 7


@dataclass(frozen=True)
class Pair:
    """Some tokens: the time and the bytes of one, and the memory before and after them."""

    token_s: float
    read_bytes: float
    stored_bytes: float
    before_gb_per_s: float
    after_gb_per_s: float

    @property
    def memory_gb_per_s(self) -> float:
        """What the memory gave, while the tokens were made as far as one can tell."""
        return (self.before_gb_per_s + self.after_gb_per_s) / 2

    @property
    def read_gb_per_s(self) -> float:
        """What the tokens read in a second."""
        return self.read_bytes / self.token_s / 1e9

    @property
    def share(self) -> float:
        """How much of that the tokens used."""
        return self.read_gb_per_s / self.memory_gb_per_s

    @property
    def stored_share(self) -> float:
        """How much they would use if they read the weights as the folder stores them."""
        return self.share * self.stored_bytes / self.read_bytes


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
    """Yield the pairs of one model; its text grows by a few tokens from one to the next."""
    config = read_genai_config(folder)
    opened = open_own_model(config, EngineOptions(threads=threads, engine="native"))
    decoder = opened.decoder
    assert isinstance(decoder, NativeDecoder), "asked for"
    each = options.new + 1
    whole = options.prompt + options.pairs * each + 1
    search = {"max_length": whole, "min_length": whole, "do_sample": False}
    generator = opened.generator(search)
    generator.append_tokens(random_prompt(options.prompt, decoder.vocabulary_size, SEED))
    generator.generate_next_token()

    packed, stored = decoder.weights_bytes, bytes_per_token(folder, 1)
    meter = MemoryMeter(threads, packed // threads)
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
        cache = (bytes_per_token(folder, context) - stored) / 2  # counted in 32 bits
        yield Pair(token_s, packed + cache, stored + cache, before, after)
        before = after


def _passes(meter: MemoryMeter, seconds: float) -> int:
    """Return how often the buffers are read in about so many seconds."""
    return max(1, round(seconds * 1e9 * meter.gb_per_s() / meter.size_bytes))


HEADER = (
    f"{'model, threads':16}  {'tokens/s':>8}  {'they read, GB/s':>15}  {'memory, GB/s':>22}"
    f"  {'share: median (quartiles)':25}  as stored"
)


def line(name: str, pairs: Sequence[Pair]) -> str:
    """Return a line of the table."""
    tokens = statistics.median(1 / one.token_s for one in pairs)
    read = statistics.median(one.read_gb_per_s for one in pairs)
    stored = statistics.median(one.stored_share for one in pairs)
    memory = [one.memory_gb_per_s for one in pairs]
    share = ratio([one.share for one in pairs])
    shares = f"{share.median:.1%} ({share.q1:.1%}–{share.q3:.1%})"
    rates = f"{name:16}  {tokens:8.1f}  {read:15.1f}  {spread(memory):>22}"
    return f"{rates}  {shares:25}  {stored:.1%}"


if __name__ == "__main__":
    main()
