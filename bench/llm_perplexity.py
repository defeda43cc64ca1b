"""How far the language engine's numbers are from the float model: perplexity on 200 prompts.

    python bench/llm_perplexity.py FLOAT_DIR INT4_DIR [--gguf FILE] [--prompts 200] [--tokens 128]
        [--text FILE] [--json FILE]

FLOAT_DIR is the same model as an OGA folder of fp32 weights, run by onnxruntime-genai: the source
that all are held against. The text is the prose of Python's own language reference, which every
Python carries (`pydoc_data.topics`), cut into prompts that lie evenly in it.

"bf16, seven products" computes every product with seven multiplications of quarters, which the
engine does by itself only for large ones (`llm/engine/lower_products.py`).

For each engine: the perplexity; how much more a token costs than with onnxruntime-genai on the same
INT4_DIR, in nats, with its standard error over the prompts; the mean Kullback-Leibler divergence
from the source; the share of positions at which both expect the same token.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vermilion.llm.decoder import EngineOptions
from vermilion.llm.engine import lower_products
from vermilion.llm.open_model import AnyModel, open_model
from vermilion.llm.perplexity import position_logits
from vermilion.llm.search import log_softmax

SOURCE, STOCK, SEVEN = "source, fp32", "onnxruntime-genai", "bf16, seven products"
OURS = ("bf16", "bfp16", "int8")
# What is prose in a reference: paragraphs of many words that are mostly letters.
FEWEST_WORDS, LETTERS = 30, 0.75

# Tokens → what is expected after each.
Expect = Callable[[list[int]], NDArray[np.float32]]


@dataclass
class Scores:
    """Per prompt: the mean loss, the divergence from the source, the share of the same token."""

    losses: list[float] = field(default_factory=list)
    divergences: list[float] = field(default_factory=list)
    same: list[float] = field(default_factory=list)


def main() -> None:
    """Score every engine on every prompt."""
    options = _options()
    engines, encode = _engines(options)
    text = options.text.read_text("utf-8") if options.text else reference_prose()
    prompts = cut(encode(text), options.prompts, options.tokens)
    scores = {name: Scores() for name in engines}
    for index, prompt in enumerate(prompts):
        print(f"\r{index + 1} of {len(prompts)}", end="", file=sys.stderr, flush=True)
        source = engines[SOURCE](prompt)
        for name, expect in engines.items():
            add(scores[name], prompt, source if name == SOURCE else expect(prompt), source)
    print(f"\n{len(prompts)} prompts of {options.tokens} tokens")
    print(
        f"{'engine':20} {'perplexity':>10}  {'over ' + STOCK:>26}  {'divergence':>10}  same token"
    )
    for name, found in scores.items():
        print(line(name, found, scores[STOCK]))
    if options.json:
        found = {name: asdict(one) for name, one in scores.items()}
        options.json.write_text(json.dumps(found), "utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path, help="the same model for llama.cpp")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def reference_prose() -> str:
    """Return the prose of Python's language reference as this Python carries it."""
    topics = importlib.import_module("pydoc_data.topics").topics
    kept = []
    for name in sorted(topics):
        for paragraph in topics[name].split("\n\n"):
            words = paragraph.split()
            letters = sum(one.isalpha() or one == " " for one in paragraph)
            if len(words) >= FEWEST_WORDS and letters >= LETTERS * len(paragraph):
                kept.append(" ".join(words))
    # A paragraph may stand under several topics.
    return "\n\n".join(dict.fromkeys(kept))


def cut(tokens: list[int], prompts: int, length: int) -> list[list[int]]:
    """Return prompts of one length that lie evenly in a text and do not overlap.

    Raises: SystemExit where the text is too short.
    """
    if len(tokens) < prompts * length:
        raise SystemExit(f"the text has {len(tokens)} tokens, {prompts} × {length} are asked for")
    starts = np.linspace(0, len(tokens) - length, prompts).astype(int)
    return [tokens[start : start + length] for start in starts]


def add(
    scores: Scores, prompt: list[int], found: NDArray[np.float32], source: NDArray[np.float32]
) -> None:
    """Hold what was expected against the prompt, and against the source."""
    places = np.arange(len(prompt) - 1)
    scores.losses.append(float(-found[places, prompt[1:]].mean(dtype=np.float64)))
    apart = (np.exp(source) * (source - found)).sum(axis=1, dtype=np.float64)
    scores.divergences.append(float(apart.mean()))
    scores.same.append(float((found.argmax(axis=1) == source.argmax(axis=1)).mean()))


def line(name: str, found: Scores, stock: Scores) -> str:
    """Return one row."""
    over = np.array(found.losses) - np.array(stock.losses)
    error = over.std(ddof=1) / math.sqrt(len(over)) if len(over) > 1 else math.nan
    return (
        f"{name:20} {math.exp(np.mean(found.losses)):10.3f}"
        f"  {over.mean():+13.4f} ± {error:.4f} nats"
        f"  {np.mean(found.divergences):10.4f}  {np.mean(found.same):.1%}"
    )


def _engines(options: argparse.Namespace) -> tuple[dict[str, Expect], Callable[[str], list[int]]]:
    """Open all engines, on one thread each; and give what makes tokens."""
    stock = EngineOptions(1, engine="onnxruntime-genai")
    opened = {
        SOURCE: open_model(options.source, stock),
        STOCK: open_model(options.folder, stock),
    }
    for prefill in OURS:
        ours = EngineOptions(1, engine="native", prefill=prefill)
        opened[prefill] = open_model(options.folder, ours)
    opened[SEVEN] = _seven_everywhere(options.folder)
    engines: dict[str, Expect] = {
        name: lambda tokens, model=model: log_softmax(position_logits(model, tokens)[:-1])
        for name, model in opened.items()
    }
    if options.gguf:
        engines["llama.cpp"] = _llama_cpp(options.gguf, options.tokens)
    return engines, lambda text: opened[SOURCE].encode(text, as_chat=False)


def _seven_everywhere(folder: Path) -> AnyModel:
    """Open our engine with seven multiplications for all products, in a cache of its own."""
    before = lower_products.LEAST_ROWS, lower_products.LEAST_DEPTH, lower_products.LEAST_COLUMNS
    lower_products.LEAST_ROWS = lower_products.LEAST_DEPTH = lower_products.LEAST_COLUMNS = 1
    try:
        with tempfile.TemporaryDirectory() as cache:
            ours = EngineOptions(1, engine="native", prefill="bf16", cache=Path(cache))
            return open_model(folder, ours)
    finally:
        lower_products.LEAST_ROWS, lower_products.LEAST_DEPTH, lower_products.LEAST_COLUMNS = before


def _llama_cpp(file: Path, longest: int) -> Expect:
    import llama_cpp

    model = llama_cpp.Llama(
        str(file), n_ctx=longest, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False
    )

    def expect(tokens: list[int]) -> NDArray[np.float32]:
        model.reset()
        model.eval(tokens)
        return log_softmax(np.asarray(model.scores[: len(tokens) - 1], np.float32))

    return expect


if __name__ == "__main__":
    main()
