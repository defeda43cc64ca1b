"""Whether one program for all sizes is right at every size: real networks at random sizes.

    python bench/open_sizes_right.py [--networks resnet50,minilm] [--sizes 50] [--seed N]
                                     [--json OUT.json]

Each network of the table with open dimensions is compiled once. At random sizes its outputs are
held against the model run literally: ONNX Runtime with its optimizations off. Printed are what is
native, the sizes, the least ratio of signal to error (SQNR) and the largest error relative to the
largest value. A size for which our program is not right is run by ONNX Runtime, and counted.
Exit code 1 if an output is under 80 dB or has another shape.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray
from workloads import default_cache, model_file

from vermilion.api import compile_model
from vermilion.bench.harness import save_json
from vermilion.ir.passes.bind_dimensions import bind_dimensions

Array = NDArray[Any]
FLOOR_DB = 80.0

# What is fixed, and the open dimensions: the least, the most, and what sizes are multiples of.
NETWORKS: Mapping[str, tuple[Mapping[str, int], Mapping[str, tuple[int, int, int]]]] = {
    "resnet50": ({}, {"batch": (1, 8, 1)}),
    "bert-base": ({}, {"batch": (1, 4, 1), "sequence": (1, 256, 1)}),
    "minilm": ({}, {"batch": (1, 16, 1), "sequence": (1, 512, 1)}),
    "ocr-rec": ({"height": 48}, {"batch": (1, 4, 1), "width": (16, 640, 8)}),
    "nudenet": ({"batch": 1}, {"height": (64, 640, 32), "width": (64, 640, 32)}),
}


def opened(name: str, folder: Path) -> Path:
    """Write the network with its open dimensions left open; return the file."""
    fixed, _ = NETWORKS[name]
    model = ir.load(model_file(name, default_cache()))
    path = folder / f"{name}.onnx"
    ir.save(bind_dimensions(model, dict(fixed)), path)
    return path


def inputs_of(session: ort.InferenceSession, sizes: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Return random inputs of these sizes: tokens, masks that are mostly ones, floats."""
    random = np.random.default_rng(seed)
    feeds: dict[str, Array] = {}
    for value in session.get_inputs():
        shape = [sizes.get(size, size) for size in value.shape]
        if "int" not in value.type:
            feeds[value.name] = random.standard_normal(shape).astype(np.float32)
        elif "mask" in value.name:
            ends = random.integers(1, shape[-1] + 1, (*shape[:-1], 1))
            feeds[value.name] = (np.arange(shape[-1]) < ends).astype(np.int64)
        else:
            most = 2 if "type" in value.name else 1000
            feeds[value.name] = random.integers(0, most, shape)
    return feeds


def compared(expected: list[Array], found: list[Array]) -> tuple[float, float]:
    """Return the least SQNR in dB over outputs, and the largest relative error."""
    least, worst = np.inf, 0.0
    for a, b in zip(expected, found, strict=True):
        if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return -np.inf, np.inf
        known = np.isfinite(a)
        if not np.array_equal(a[~known], b[~known], equal_nan=True):
            return -np.inf, np.inf
        a64 = a[known].astype(np.float64)
        error = b[known] - a64
        if not np.any(error):
            continue
        power = np.sum(a64**2)
        least = min(least, 10 * np.log10(power / np.sum(error**2)) if power else -np.inf)
        worst = max(worst, np.abs(error).max() / max(np.abs(a64).max(), 1e-30))
    return float(least), float(worst)


def check(name: str, folder: Path, count: int, seed: int) -> dict[str, Any]:
    """Compile a network once and run it at `count` random sizes; return the row."""
    path = opened(name, folder)
    compiled = compile_model(path, cache_dir=folder / "cache")
    session = compiled.session(threads=2)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    literal = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng([seed, len(name)])
    least, worst, refused, wrong = np.inf, 0.0, [], []
    for at in range(count):
        sizes = {
            key: int(random.integers(-(-low // step), high // step + 1)) * step
            for key, (low, high, step) in NETWORKS[name][1].items()
        }
        feeds = inputs_of(literal, sizes, seed + at)
        before = len(session.notes)
        found = session.run(None, feeds)
        if len(session.notes) > before:
            refused.append(sizes)
            session = compiled.session(threads=2)  # a session says it once
        db, relative = compared(literal.run(None, feeds), found)
        if db < FLOOR_DB:
            wrong.append({**sizes, "sqnr_db": db})
        least, worst = min(least, db), max(worst, relative)
    return {
        "network": name, "placement": compiled.placement, "sizes": count, "refused": refused,
        "wrong": wrong, "least_sqnr_db": least, "worst_relative_error": worst,
    }  # fmt: skip


def main() -> int:
    """Check and print; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--sizes", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="open-sizes-") as folder:
        for name in asked.networks.split(","):
            row = check(name, Path(folder), asked.sizes, asked.seed)
            rows.append(row)
            print(
                f"{name:<10} {row['placement']}; {asked.sizes} sizes, {len(row['wrong'])} wrong, "
                f"{len(row['refused'])} run by ONNX Runtime; least {row['least_sqnr_db']:.1f} dB, "
                f"largest relative error {row['worst_relative_error']:.1e}",
                flush=True,
            )
            for one in [*row["wrong"], *row["refused"]][:5]:
                print(f"  {one}")
    if asked.json is not None:
        save_json(asked.json, rows)
    return 1 if any(row["wrong"] for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
