"""One engine as a script of its own would use it: seconds to the first token, and peak memory.

    python bench/llm_alone.py ENGINE MODEL THREADS PROMPT NEW

Prints one JSON object. The clock starts before the engine is imported. MODEL is a folder, or a GGUF
file for the engines that read one. Nothing of Vermilion is imported for another engine. First a
prompt of few tokens is read, then one of PROMPT tokens, and NEW more are made.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FIRST_PROMPT = 16
# Ids under this are often special tokens.
FIRST_ID = 100

# Reads a prompt, then makes so many tokens; says when the first one came.
Generate = Callable[[list[int], int], float]
# Model, threads, and the most tokens of a text (llama.cpp takes the memory for them at once).
Open = Callable[[str, int, int], Generate]


def main() -> None:
    """Open, generate, and say what it took."""
    engine, model, threads, prompt, new = sys.argv[1:]
    begin, begin_cpu = time.perf_counter(), time.process_time()
    room = FIRST_PROMPT + int(prompt) + int(new) + 1
    generate = OPEN[engine](model, int(threads), room)
    first = generate(_tokens(FIRST_PROMPT), 1)
    first_cpu = time.process_time()
    if int(prompt):
        generate(_tokens(int(prompt)), int(new))
    found = {
        "load_to_first_s": first - begin,
        "load_to_first_cpu_s": first_cpu - begin_cpu,
        "alone_peak_rss_mb": _peak_rss_mb(),
    }
    sys.stdout.write(json.dumps(found) + "\n")


def _tokens(count: int) -> list[int]:
    return [FIRST_ID + 7 * at % 1000 for at in range(count)]


def _peak_rss_mb() -> float:
    """Return the largest resident size so far (`VmHWM`, Linux)."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise SystemExit("this system does not say how much memory was used")


def _ours(prefill: str) -> Open:
    def open_it(folder: str, threads: int, room: int) -> Generate:
        import vermilion.genai as og

        config = og.Config(folder)
        config.overlay(_threads(threads))
        model = og.Model(config, engine="native", prefill=prefill)
        return _generate_oga(og, model)

    return open_it


def _stock(folder: str, threads: int, room: int) -> Generate:
    import onnxruntime_genai as og

    config = og.Config(folder)
    config.overlay(_threads(threads))
    return _generate_oga(og, og.Model(config))


def _threads(count: int) -> str:
    session = {"session_options": {"intra_op_num_threads": count}}
    return json.dumps({"model": {"decoder": session}})


def _generate_oga(og: Any, model: Any) -> Generate:
    def generate(tokens: list[int], new: int) -> float:
        whole = len(tokens) + new
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=whole + 1, min_length=whole + 1, do_sample=False)
        generator = og.Generator(model, params)
        generator.append_tokens(tokens)
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(new - 1):
            generator.generate_next_token()
        return first

    return generate


def _llama_cpp(file: str, threads: int, room: int) -> Generate:
    import llama_cpp

    model = llama_cpp.Llama(
        model_path=file,
        n_ctx=room,
        n_threads=threads,
        n_threads_batch=threads,
        flash_attn=True,
        verbose=False,
    )

    def generate(tokens: list[int], new: int) -> float:
        model.reset()
        model.eval(tokens)
        token = model.sample(temp=0.0)
        first = time.perf_counter()
        for _ in range(new - 1):
            model.eval([token])
            token = model.sample(temp=0.0)
        return first

    return generate


def _openvino(file: str, threads: int, room: int) -> Generate:
    import numpy as np
    import openvino
    import openvino_genai as genai

    pipeline = genai.LLMPipeline(file, "CPU", INFERENCE_NUM_THREADS=threads)

    def generate(tokens: list[int], new: int) -> float:
        ids = np.array([tokens], np.int64)
        inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        config = genai.GenerationConfig(max_new_tokens=new, ignore_eos=True, do_sample=False)
        begin = time.perf_counter()
        made = pipeline.generate(inputs, config)
        return begin + float(made.perf_metrics.get_ttft().mean) / 1e3

    return generate


OPEN: dict[str, Open] = {
    "bf16": _ours("bf16"),
    "bfp16": _ours("bfp16"),
    "int8": _ours("int8"),
    "onnxruntime-genai": _stock,
    "llama.cpp": _llama_cpp,
    "openvino-genai": _openvino,
}


if __name__ == "__main__":
    main()
