"""How often `--max-drop` keeps what it promises on data that quantizing never saw.

    python bench/promise_bench.py [--models rec,nsfw,digits] [--max-drop 0.02] [--seeds 10]
        [--first-seed 0] [--scheme a8w8] [--samples N] [--photos DIR] [--font FILE.ttf]
        [--digits DIGITS.csv.gz]

Each seed draws other samples; the guard calibrates on some and holds out the rest. Where it says
yes, the drop on fresh samples of the same kind, which are the same for all seeds, has to be within
the promise: this is counted. Where it says no, that is the honest answer, and it is said how many
samples it asks for.

`rec` (PP-OCRv4 recognition, rendered text) is judged by the characters that it reads otherwise
than the float model, in parts of all characters (edit distance). `nsfw` (features of a trained
ResNet-50, crops of photographs) is judged by retrieval: the crops whose nearest neighbour among
the features of other crops is another one than for the float model, one yes or no for each.
`digits` (networks trained here on scikit-learn's digits, `sklearn/datasets/data/digits.csv.gz`)
is judged by accuracy against the labels. Exits 1 where fewer than 95 % of the promises that were
made were kept.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from digits_bench import exported, trained
from quantize_bench import _decoded
from quantize_cases import CASES, drawn, prepared

if TYPE_CHECKING:
    import onnx_ir as ir

Sample = Mapping[str, np.ndarray]
Outputs = Sequence[Mapping[str, np.ndarray]]
Judge = Callable[[Outputs, Sequence[int]], float]
"""Gives a figure (1 is best) for outputs of the samples with these numbers."""

FRESH_SEED, KNOWN_SEED, FIRST_SEED = 4321, 1234, 100
FRESH = {"rec": 150, "nsfw": 300}
SAMPLES = {"rec": 96, "nsfw": 260, "digits": 400}
KNOWN = 64
MOST_BROKEN = 0.05


@dataclass(frozen=True)
class Drawn:
    """Samples, and how to judge what a model gives for some of them."""

    samples: Sequence[Sample]
    judge: Judge


@dataclass(frozen=True)
class Task:
    """A model, fresh samples and what it reaches on them, and what each seed draws."""

    model: ir.Model
    fresh: Drawn
    reached: float
    draw: Callable[[int], Drawn]


def run(graph: ir.Model, samples: Sequence[Sample]) -> list[dict[str, np.ndarray]]:
    """Return the outputs for each sample."""
    from vermilion.ir.execute import open_session, run_session

    session = open_session(graph)
    return [run_session(session, sample) for sample in samples]


def edit_distance(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many symbols must be changed, added or dropped (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, one in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


def drawn_task(name: str, options: argparse.Namespace) -> Task:
    """Return `rec` or `nsfw`: samples are drawn anew, what the float model says is the truth."""
    case, count = CASES[name], options.samples or SAMPLES[name]
    model = prepared(case)
    if name == "rec":
        read, differ = _decoded, edit_distance
    else:
        known = np.stack([_only(o).reshape(-1) for o in run(model, _known(case, options))])
        known /= np.linalg.norm(known, axis=1, keepdims=True)

        def read(features: np.ndarray) -> np.ndarray:
            return np.asarray([(known @ features.reshape(-1)).argmax()])

        def differ(a: Sequence[int], b: Sequence[int]) -> int:
            return int(a != b)

    def judged(samples: Sequence[Sample]) -> Drawn:
        truth = [read(_only(outputs)).tolist() for outputs in run(model, samples)]

        def judge(outputs: Outputs, numbers: Sequence[int]) -> float:
            found = [read(_only(each)).tolist() for each in outputs]
            wrong = sum(differ(truth[n], f) for n, f in zip(numbers, found, strict=True))
            return 1.0 - wrong / max(1, sum(len(truth[n]) for n in numbers))

        return Drawn(samples, judge)

    fresh = judged(list(drawn(case, FRESH_SEED, FRESH[name], options)))
    return Task(
        model,
        fresh,
        1.0,
        lambda seed: judged(list(drawn(case, FIRST_SEED + seed, count, options))),
    )


def _only(outputs: Mapping[str, np.ndarray]) -> np.ndarray:
    return next(iter(outputs.values()))


def _known(case: Any, options: argparse.Namespace) -> Sequence[Sample]:
    return list(drawn(case, KNOWN_SEED, KNOWN, options))


def digits_task(options: argparse.Namespace) -> Task:
    """Return a network trained on the first half; the rest is drawn from, or fresh."""
    table = np.loadtxt(options.digits, delimiter=",", dtype=np.float32)
    images, classes = table[:, :-1].reshape(-1, 1, 8, 8) / 16.0, table[:, -1].astype(np.int64)
    split = len(images) // 2
    with tempfile.TemporaryDirectory() as folder:
        net = trained(images[:split], classes[:split], 0)
        model = exported(net, Path(folder) / "digits.onnx")
    rest = np.random.default_rng(FRESH_SEED).permutation(np.arange(split, len(images)))
    pool, count = rest[len(rest) // 2 :], options.samples or SAMPLES["digits"]

    def judged(chosen: np.ndarray) -> Drawn:
        labels = classes[chosen]

        def judge(outputs: Outputs, numbers: Sequence[int]) -> float:
            found = [int(_only(each).argmax()) for each in outputs]
            return float(np.mean(np.asarray(found) == labels[list(numbers)]))

        return Drawn([{"x": images[number][None]} for number in chosen], judge)

    fresh = judged(rest[: len(rest) // 2])
    reached = fresh.judge(run(model, fresh.samples), range(len(fresh.samples)))
    return Task(
        model,
        fresh,
        reached,
        lambda seed: judged(np.random.default_rng(seed).permutation(pool)[:count]),
    )


def promised(name: str, task: Task, seed: int, options: argparse.Namespace) -> tuple[bool, bool]:
    """Quantize under the promise and measure on fresh samples; say what was said and what is so."""
    from vermilion.quantize import Options, Promise, quantize_guarded

    given = task.draw(seed)

    def judged(outputs: Outputs, indices: Sequence[int]) -> float:
        return given.judge(outputs, indices)

    promise = Promise(options.max_drop, metric=judged, direction="larger", bounds=(0.0, 1.0))
    begin = time.process_time()
    done = quantize_guarded(task.model, given.samples, promise, Options(scheme=options.scheme))
    seconds = time.process_time() - begin
    fresh = task.fresh
    found = fresh.judge(run(done.quantized.model, fresh.samples), range(len(fresh.samples)))
    drop = (task.reached - found) / task.reached
    best = next(r for r in done.ladder if r.options == done.quantized.options)
    asks = "" if done.met or not best.samples_needed else f", asks for {best.samples_needed}"
    print(
        f"{name} {seed}: {'yes' if done.met else 'no '} after {len(done.ladder)}, {best.what}: "
        f"{best.drop:.2%}, at most {best.bound:.2%}, on {done.held_out} held out; {drop:.2%} on "
        f"{len(fresh.samples)} fresh; {best.eight_bit_share:.0%} in 8 bits; "
        f"{seconds:.0f} CPU s{asks}",
        flush=True,
    )
    return done.met, drop <= options.max_drop


def main() -> None:
    """Try every model with every seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="rec,nsfw,digits")
    parser.add_argument("--max-drop", type=float, default=0.02)
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--scheme", default="a8w8")
    parser.add_argument("--photos", default="")
    parser.add_argument("--font", default="")
    parser.add_argument("--digits", default="digits.csv.gz")
    options = parser.parse_args()
    made = kept = 0
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for name in options.models.split(","):
        task = digits_task(options) if name == "digits" else drawn_task(name, options)
        pairs = [promised(name, task, seed, options) for seed in seeds]
        here = [holds for said, holds in pairs if said]
        made, kept = made + len(here), kept + sum(here)
        print(f"{name}: {options.seeds} tries, {len(here)} promises, {sum(here)} kept", flush=True)
    print(f"{made} promises, {kept} kept")
    sys.exit(0 if kept >= (1.0 - MOST_BROKEN) * made else 1)


if __name__ == "__main__":
    main()
