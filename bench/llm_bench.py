"""The language engine beside its peers: prompts, tokens, memory and the way to the first token.

    pip install '.[llm]' openvino-genai llama-cpp-python
    python bench/llm_bench.py DIR [--models smollm2,llama1b] [--threads 1,2] [--rounds 5]
        [--prompts 128,512,1024] [--only bf16,int8,llama.cpp] [--new 64] [--clock wall]
        [--json FILE] [--no-alone]
    python bench/llm_bench.py DIR --json FILE --print [--markdown]

DIR holds each model as an OGA folder `NAME` and a GGUF file `NAME.gguf` of the same weights, as
`llm_models.py` and `vermilion llm build` make them. `bf16`, `bfp16` and `int8` are our engine, by
the numbers in which prompts are multiplied.

Every engine runs in a process of its own, one process at a time: it opens the model, reads one
prompt that does not count, then every prompt once, the same tokens for all. A round is one turn of
each, in an order that turns round. The memory's bandwidth is measured before and after each round,
in a buffer as big as the model's weights. What is in FILE is kept, and added to: a slice of the
whole (`--models`, `--threads`, `--prompts`, `--only`) takes a minute.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llm_report import pages, report

from vermilion.bench.harness import EngineProcess, Record, printed_record, save_json
from vermilion.errors import VermilionError
from vermilion.llm.speed import bytes_per_token
from vermilion.llm.speed_engines import OURS, SPEED_WORKER, SpeedSetting
from vermilion.rounds import turn_order

# Opening a model of a billion weights for the first time compiles it.
TIMEOUT_S = 600.0
# What a process reads before anything counts: other tokens than are measured, since
# openvino-genai does not read again what it has read.
WARM_PROMPT, WARM_NEW, WARM_SEED = 128, 8, 1_000_000
ALONE = Path(__file__).parent / "llm_alone.py"


@dataclass(frozen=True)
class Engine:
    """The engine's name for the worker, and in what ours multiplies prompts."""

    worker: str
    prefill: str = "auto"
    reads_gguf: bool = False


ENGINES = {
    "bf16": Engine(OURS, "bf16"),
    "bfp16": Engine(OURS, "bfp16"),
    "int8": Engine(OURS, "int8"),
    "onnxruntime-genai": Engine("onnxruntime-genai"),
    "llama.cpp": Engine("llama.cpp", reads_gguf=True),
    "openvino-genai": Engine("openvino-genai", reads_gguf=True),
    # By itself it multiplies prompts in 8 bits; this is bf16 against bf16.
    "openvino-genai-bf16": Engine("openvino-genai-bf16", reads_gguf=True),
}


# Loads as another does, and is not what a user gets.
VARIANTS = ("openvino-genai-bf16",)


@dataclass(frozen=True)
class Case:
    """A model on so many threads."""

    folder: Path
    threads: int

    @property
    def gguf(self) -> Path:
        """The same weights as a GGUF file."""
        return self.folder.with_name(self.folder.name + ".gguf")

    def bytes_read(self, engine: Engine, context: int) -> float:
        """Return what one decoded token reads: the weights as stored, and the cache in 16 bits."""
        weights = bytes_per_token(self.folder, 1)
        cache = (bytes_per_token(self.folder, context) - weights) / 2  # counted in 32 bits
        return (self.gguf.stat().st_size if engine.reads_gguf else weights) + cache

    def record(self, **found: Any) -> Record:
        """Return something measured of this case."""
        return {"model": self.folder.name, "threads": self.threads, **found}


def main() -> None:
    """Measure what is asked for, keep it, and print everything that FILE has."""
    options = _options()
    records: list[Record] = []
    if options.json and options.json.is_file():
        before = json.loads(options.json.read_text("utf-8"))
        if "records" not in before:
            raise SystemExit(f"{options.json} is no file of this benchmark: give another to write")
        records = before["records"]
    if not options.print:
        first = 1 + max((one["turn"] for one in records), default=-1)
        for record in measure(options, first):
            records.append(record)
            if options.json:
                save_json(options.json, {"records": records})
    write = pages if options.markdown else report
    for line in write(records, options.clock):
        print(line)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default="smollm2,llama1b")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--prompts", default="128,512,1024")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(ENGINES))
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--no-alone", action="store_true", help="no load, no peak memory")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", action="store_true", help="tables for a page")
    parser.add_argument("--print", action="store_true", help="print FILE, measure nothing")
    options = parser.parse_args()
    options.models = options.models.split(",")
    options.threads = [int(word) for word in options.threads.split(",")]
    options.prompts = sorted(int(word) for word in options.prompts.split(","))
    options.only = options.only.split(",")
    unknown = [name for name in options.only if name not in ENGINES]
    if unknown:
        parser.error(f"no engine {', '.join(unknown)}: there are {', '.join(ENGINES)}")
    return options


def measure(options: argparse.Namespace, first: int) -> Iterator[Record]:
    """Yield every figure as it is found; the turns are counted from `first` on."""
    for turn in range(first, first + options.rounds):
        order = [options.only[at] for at in turn_order(len(options.only), turn)]
        for model in options.models:
            for threads in options.threads:
                yield from _round(Case(options.folder / model, threads), order, turn, options)


def _round(
    case: Case, order: list[str], turn: int, options: argparse.Namespace
) -> Iterator[Record]:
    weights = int(bytes_per_token(case.folder, 1))
    yield _bandwidth(case, turn, weights)
    for name in order:
        print(f"{case.folder.name}, {case.threads} threads, {name}", file=sys.stderr)
        try:
            yield from _turn(case, name, turn, options)
            if name not in VARIANTS and not options.no_alone:
                yield _alone(case, name, turn, options)
        except VermilionError as error:
            yield case.record(engine=name, turn=turn, failed=error.message)
    yield _bandwidth(case, turn, weights)


def _bandwidth(case: Case, turn: int, weights: int) -> Record:
    with _process("bandwidth") as process:
        size = max(weights // case.threads, 1)
        found = process.ask("bandwidth", threads=case.threads, buffer_bytes=size)
    return case.record(turn=turn, **found)


def _turn(case: Case, name: str, turn: int, options: argparse.Namespace) -> Iterator[Record]:
    """Open one engine and have it read every prompt."""
    engine = ENGINES[name]
    setting = SpeedSetting(case.folder, case.gguf, case.threads, "native", engine.prefill)
    with _process(name) as process:
        opened = process.ask("open", name=engine.worker, setting=setting.as_message())
        process.ask("once", prompt=WARM_PROMPT, new=WARM_NEW, seed=WARM_SEED)
        for prompt in options.prompts:
            # The first of the tokens that are made belongs to the prompt.
            new = options.new + 1
            found = process.ask("once", prompt=prompt, new=new, seed=turn)
            read = case.bytes_read(engine, prompt + options.new // 2)
            yield case.record(
                engine=name, turn=turn, prompt=prompt, new=options.new, is_a=opened["engine"],
                bytes_per_token=read, **found,
            )  # fmt: skip


def _alone(case: Case, name: str, turn: int, options: argparse.Namespace) -> Record:
    model = case.gguf if ENGINES[name].reads_gguf else case.folder
    words = (name, str(model), str(case.threads), str(options.prompts[-1]), str(options.new))
    found = printed_record([sys.executable, str(ALONE), *words])
    return case.record(engine=name, turn=turn, alone_prompt=options.prompts[-1], **found)


@contextmanager
def _process(label: str) -> Iterator[EngineProcess]:
    """Start a worker, and end it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        EngineProcess(label, Path(folder), timeout_s=TIMEOUT_S, worker=SPEED_WORKER) as process,
    ):
        yield process


if __name__ == "__main__":
    main()
