"""From nothing to the first token of a folder, and the memory that it takes, against other engines.

`python bench/llm_load_bench.py FOLDER [--peer PYTHON:onnxruntime_genai] [--peer
PYTHON:openvino_genai:FILE.gguf] [--rounds 7] [--clock cpu]`

Every opening is a process of its own: Python starts, imports the engine, opens the folder and its
tokenizer, writes the prompt's tokens and computes the first new one. Engines take turns; our first
opening packs and compiles into a cache of its own, and is stated apart. `--clock cpu` counts the
time of all threads of the process, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from vermilion.bench.figures import pair_ratios, ratio
from vermilion.bench.harness import printed_record
from vermilion.rounds import in_rounds

PROMPT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
# What each phase is, in the order of a row; `opened` is all after the imports, numpy's among them.
PHASES = ("whole", "opened", "model", "tokenizer", "first token")

_OPEN_OGA = """
model = engine.Model(folder)
mark("model")
tokenizer = engine.Tokenizer(model)
mark("tokenizer")
tokens = tokenizer.encode(prompt)
parameters = engine.GeneratorParams(model)
parameters.set_search_options(max_length=len(tokens) + 32, do_sample=False)
generator = engine.Generator(model, parameters)
generator.append_tokens(tokens)
generator.generate_next_token()
text = tokenizer.decode([int(generator.get_next_tokens()[0])])
"""
_OPEN_OPENVINO = """
pipeline = engine.LLMPipeline(folder, "CPU")
mark("model")
mark("tokenizer")
text = str(pipeline.generate(prompt, max_new_tokens=1, do_sample=False))
"""
# The child. Its process time begins with Python's own start; the wall's is the parent's to know.
_CHILD = """
import importlib, json, sys, time
package, folder, prompt, clock = sys.argv[1:5]
now = {{"wall": time.time, "cpu": time.process_time}}[clock]
import numpy
engine = importlib.import_module(package)
times = [("import", now())]
mark = lambda name: times.append((name, now()))
{open_it}
mark("first token")
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
peak = int(status["VmHWM"].split()[0]) * 1024 / 1e6
print(json.dumps({{"times": times, "peak_rss_mb": peak, "text": text}}))
"""


@dataclass(frozen=True)
class Engine:
    """A package, the interpreter that has it, and what it opens."""

    python: str
    package: str
    folder: str

    def open_once(self, clock: str, cache: Path) -> dict[str, float]:
        """Open in a new process; give seconds by phase, and the peak memory in 10^6 bytes."""
        body = _OPEN_OPENVINO if self.package == "openvino_genai" else _OPEN_OGA
        code = _CHILD.format(open_it=body)
        environment = {**os.environ, "VERMILION_CACHE": str(cache)}
        begin = time.time() if clock == "wall" else 0.0
        command = [self.python, "-c", code, self.package, self.folder, PROMPT, clock]
        found = printed_record(command, environment)
        times = dict(found["times"])
        return {
            "whole": times["first token"] - begin,
            "opened": times["first token"] - times["import"],
            "model": times["model"] - times["import"],
            "tokenizer": times["tokenizer"] - times["model"],
            "first token": times["first token"] - times["tokenizer"],
            "peak_rss_mb": found["peak_rss_mb"],
        }


def main() -> None:
    """Open with all engines in turn; print medians, their spread, and ratios to each peer."""
    options = _options()
    engines = [Engine(sys.executable, "vermilion.genai", options.folder)]
    for peer in options.peer:
        python, package, *file = peer.split(":")
        engines.append(Engine(python, package, file[0] if file else options.folder))
    with tempfile.TemporaryDirectory(prefix="vermilion.load.") as name:
        cache = Path(name)
        first = engines[0].open_once(options.clock, cache)
        print(f"first opening of ours, which packs and compiles: {_row(first)}")
        # The round that is left out: whatever else the first opening of a process's files costs.
        found = in_rounds(
            engines, lambda engine, _: engine.open_once(options.clock, cache), options.rounds,
            warm_up=1,
        )  # fmt: skip
    for engine, rows in zip(engines, found, strict=True):
        middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        print(f"{engine.package:20s} {_row(middle)}")
    for engine, rows in zip(engines[1:], found[1:], strict=True):
        ratios = ", ".join(_ratio(found[0], rows, key) for key in rows[0])
        print(f"times as fast as {engine.package}: {ratios}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    return parser.parse_args()


def _row(row: dict[str, float]) -> str:
    times = ", ".join(f"{name} {row[name] * 1e3:.0f} ms" for name in PHASES)
    return f"{times}, peak {row['peak_rss_mb']:.0f} MB"


def _ratio(ours: list[dict[str, float]], theirs: list[dict[str, float]], key: str) -> str:
    """Return the median and the quartiles of the ratios of neighbouring turns."""
    if not all(row[key] for row in theirs):
        return f"{key} -"
    found = ratio(pair_ratios([row[key] for row in theirs], [row[key] for row in ours]))
    return f"{key} {found.median:.2f} ({found.q1:.2f}-{found.q3:.2f})"


if __name__ == "__main__":
    main()
