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
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

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
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        if done.returncode:
            raise SystemExit(f"`{self.package}` failed:\n{done.stderr[-2000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
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
        for engine in engines:  # whatever else the first opening of a process's files costs
            engine.open_once(options.clock, cache)
        rows: dict[str, list[dict[str, float]]] = {engine.package: [] for engine in engines}
        for _ in range(options.rounds):
            for engine in engines:
                rows[engine.package].append(engine.open_once(options.clock, cache))
    for package, found in rows.items():
        print(f"{package:20s} {_row({key: _median(found, key) for key in found[0]})}")
    ours = rows["vermilion.genai"]
    for package, found in rows.items():
        if found is not ours:
            print(f"ours ÷ {package}: " + ", ".join(_ratio(ours, found, key) for key in found[0]))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    return parser.parse_args()


def _median(rows: list[dict[str, float]], key: str) -> float:
    return statistics.median(row[key] for row in rows)


def _row(row: dict[str, float]) -> str:
    times = ", ".join(f"{name} {row[name] * 1e3:.0f} ms" for name in PHASES)
    return f"{times}, peak {row['peak_rss_mb']:.0f} MB"


def _ratio(ours: list[dict[str, float]], theirs: list[dict[str, float]], key: str) -> str:
    """Return the ratio of medians, and the quartiles of the ratios of neighbouring turns."""
    pairs = [a[key] / b[key] for a, b in zip(ours, theirs, strict=True) if b[key]]
    if len(pairs) < 2:
        return f"{key} -"
    low, _, high = statistics.quantiles(pairs, n=4)
    return f"{key} {_median(ours, key) / _median(theirs, key):.2f} ({low:.2f}-{high:.2f})"


if __name__ == "__main__":
    main()
