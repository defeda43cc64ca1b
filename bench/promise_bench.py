"""Whether `--max-drop` keeps what it promises on data that quantizing never saw.

    python bench/promise_bench.py [--models rec,nsfw] [--max-drop 0.02] [--samples 64]
        [--scheme a8w8] [--photos DIR] [--font FILE.ttf]

`rec` (PP-OCRv4 recognition, rendered text) is judged by the characters that it reads otherwise
than the float model, in parts of all characters (edit distance). `nsfw` (features of a trained
ResNet-50, crops of photographs) is judged by retrieval: the crops whose nearest neighbour among
the features of the calibration crops is another one than for the float model. The guard sees the
samples that it holds out; the last figure is measured on fresh samples of the same kind, from
another seed. Exits 1 where the guard said yes and the last figure is above the
promise, or where it gave up.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from quantize_bench import CALIBRATION_SEED, CASES, _decoded, drawn, prepared

Outputs = Sequence[Mapping[str, np.ndarray]]
Judge = Callable[[Outputs, Outputs], float]

FRESH = 96
FRESH_SEED = 4321


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Give how many symbols must be changed, added or dropped (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, one in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


def read_otherwise(exact: Outputs, found: Outputs) -> float:
    """Give the part of all characters that is read otherwise."""
    pairs = [
        tuple(_decoded(next(iter(outputs.values()))).tolist() for outputs in pair)
        for pair in zip(exact, found, strict=True)
    ]
    return sum(edit_distance(*pair) for pair in pairs) / max(1, sum(len(a) for a, _ in pairs))


def retrieval(known: np.ndarray) -> Judge:
    """Give the judge that looks for the nearest of `known`, rows of features."""

    def nearest(outputs: Outputs) -> np.ndarray:
        rows = np.stack([next(iter(o.values())).reshape(-1) for o in outputs])
        rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        index: np.ndarray = (rows @ known.T).argmax(axis=1)
        return index

    return lambda exact, found: float(np.mean(nearest(exact) != nearest(found)))


def promised(name: str, options: argparse.Namespace) -> bool:
    """Quantize under the promise, measure on fresh samples, print; say whether it holds."""
    from vermilion.ir.execute import open_session, run_session
    from vermilion.quantize import Options, Promise, quantize_guarded
    from vermilion.quantize.guard import held_out_of

    case = CASES[name]
    model = prepared(case)

    def run(graph: Any, samples: Sequence[Any]) -> list[dict[str, np.ndarray]]:
        session = open_session(graph)
        return [run_session(session, sample) for sample in samples]

    samples = list(drawn(case, CALIBRATION_SEED, options.samples, options))
    held_out, calibrated = held_out_of(samples)
    judge: Judge = read_otherwise
    if name == "nsfw":
        rows = np.stack([next(iter(o.values())).reshape(-1) for o in run(model, calibrated)])
        judge = retrieval(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    exact = run(model, held_out)
    promise = Promise(max_drop=options.max_drop, metric=lambda outputs: 1.0 - judge(exact, outputs))
    done = quantize_guarded(model, samples, promise, Options(scheme=options.scheme))
    for rung in done.ladder:
        print(f"  {rung.what:45} {rung.sqnr_db:6.1f} dB   drop {rung.drop:.2%}")
    fresh = list(drawn(case, FRESH_SEED, FRESH, options))
    drop = judge(run(model, fresh), run(done.quantized.model, fresh))
    best = next(r for r in done.ladder if r.options == done.quantized.options)
    print(
        f"{name}: promised {options.max_drop:.1%}, guard says {'yes' if done.met else 'no'} "
        f"({best.drop:.2%} on {len(held_out)} held out), {drop:.2%} on {FRESH} fresh samples, "
        f"{best.eight_bit_share:.1%} of the operations on 8 bits",
        flush=True,
    )
    return done.met and drop <= options.max_drop


def main() -> None:
    """Try every model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="rec,nsfw")
    parser.add_argument("--max-drop", type=float, default=0.02)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--scheme", default="a8w8")
    parser.add_argument("--photos", default="")
    parser.add_argument("--font", default="")
    options = parser.parse_args()
    kept = [promised(name, options) for name in options.models.split(",")]
    sys.exit(0 if all(kept) else 1)


if __name__ == "__main__":
    main()
