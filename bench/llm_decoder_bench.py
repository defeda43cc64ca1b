"""Prompts and tokens a second of the native decoder, taking turns with other engines.

`python bench/llm_decoder_bench.py FOLDER [--peer PYTHON:onnxruntime_genai] [--peer
PYTHON:openvino_genai:FILE.gguf] [--threads 1] [--prompts 128,512,1024] [--rounds 3]`

Every engine is a process of its own and measures once each round. With one thread the clock is the
process's own time, which other work on the machine hardly changes; with more it is the wall's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

NEW_TOKENS = 32
_SELF = Path(__file__)
Measure = Callable[[np.ndarray, int], tuple[float, float]]


def main() -> None:
    """Measure all engines in turn and print medians."""
    options = _options()
    if options.worker:
        serve(options.worker, options.threads)
        return
    commands = {
        f"native {prefill}": [sys.executable, f"native:{prefill}:{options.folder}"]
        for prefill in options.prefill.split(",")
    }
    for peer in options.peer:
        python, package, *file = peer.split(":")
        commands[package] = [python, f"{package}:{file[0] if file else options.folder}"]
    prompts = [int(one) for one in options.prompts.split(",")]
    workers = {
        name: subprocess.Popen(
            [python, str(_SELF), "-", "--worker", what, "--threads", str(options.threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name, (python, what) in commands.items()
    }  # fmt: skip
    results: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for _ in range(options.rounds):
        for prompt in prompts:
            for name, worker in workers.items():
                results.setdefault((name, prompt), []).append(ask(worker, prompt))
    for worker in workers.values():
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait()
    for (name, prompt), found in sorted(results.items(), key=lambda item: item[0][1]):
        prefill, decode = (statistics.median(column) for column in zip(*found, strict=True))
        print(f"{prompt:5d}  {name:20s} prefill {prefill:7.0f}  decode {decode:6.0f} tokens/s")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--prefill", default="bf16,int8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompts", default="128,512,1024")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", default="")
    return parser.parse_args()


def ask(worker: subprocess.Popen[str], prompt: int) -> tuple[float, float]:
    """Have a worker measure once."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(f"{prompt}\n")
    worker.stdin.flush()
    for line in worker.stdout:
        if line.startswith("{"):  # engines print what they like
            found = json.loads(line)
            return found["prefill"], found["decode"]
    raise SystemExit(f"`{' '.join(map(str, worker.args))}` ended")


def serve(what: str, threads: int) -> None:
    """Measure as often as asked for on stdin."""
    engine, _, rest = what.partition(":")
    clock = time.process_time if threads == 1 else time.perf_counter
    measure = {
        "native": native, "onnxruntime_genai": stock, "openvino_genai": openvino,
    }[engine](rest, threads, clock)  # fmt: skip
    random = np.random.default_rng(0)
    measure(random.integers(5, 40_000, 32), 4)
    for line in sys.stdin:
        tokens = random.integers(5, 40_000, int(line))
        prefill, decode = measure(tokens, NEW_TOKENS)
        answer = {"prefill": len(tokens) / prefill, "decode": NEW_TOKENS / decode}
        print(json.dumps(answer), flush=True)


def native(rest: str, threads: int, clock: Callable[[], float]) -> Measure:
    """Give how our own decoder is measured."""
    from vermilion.llm.engine import open_native_decoder

    prefill, _, folder = rest.partition(":")
    decoder = open_native_decoder(Path(folder), threads=threads, prefill=prefill)

    def measure(tokens: np.ndarray, count: int) -> tuple[float, float]:
        state = decoder.start(1, len(tokens) + count)
        begin = clock()
        logits = state.forward(tokens[None])
        middle = clock()
        for _ in range(count):
            logits = state.forward(logits.argmax(-1)[:, None])
        return middle - begin, clock() - middle

    return measure


def stock(folder: str, threads: int, clock: Callable[[], float]) -> Measure:
    """Give how onnxruntime-genai is measured."""
    import onnxruntime_genai as og

    config = og.Config(folder)
    session = {"session_options": {"intra_op_num_threads": threads}}
    config.overlay(json.dumps({"model": {"decoder": session}}))
    model = og.Model(config)

    def measure(tokens: np.ndarray, count: int) -> tuple[float, float]:
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=len(tokens) + count + 2, do_sample=False)
        generator = og.Generator(model, params)
        begin = clock()
        generator.append_tokens(tokens.astype(np.int32))
        generator.generate_next_token()
        middle = clock()
        for _ in range(count):
            generator.generate_next_token()
        return middle - begin, clock() - middle

    return measure


def openvino(file: str, threads: int, clock: Callable[[], float]) -> Measure:
    """Give how openvino-genai is measured: by the times at which tokens come."""
    import openvino as ov
    import openvino_genai as og

    pipeline = og.LLMPipeline(file, "CPU", INFERENCE_NUM_THREADS=threads)

    def measure(tokens: np.ndarray, count: int) -> tuple[float, float]:
        config = og.GenerationConfig()
        config.ignore_eos, config.do_sample = True, False
        ids = tokens[None].astype(np.int64)
        inputs = og.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids)))

        config.max_new_tokens = count + 1
        times: list[float] = []

        def note(text: str) -> bool:
            times.append(clock())
            return False

        begin = clock()
        pipeline.generate(inputs, config, note)
        return times[0] - begin, (clock() - times[0]) * count / max(1, len(times) - 1)

    return measure


if __name__ == "__main__":
    main()
