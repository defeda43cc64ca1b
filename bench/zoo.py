"""Networks that nobody tuned for, beside ONNX Runtime and OpenVINO: how the ratios are spread.

    pip install '.[test]'
    python bench/zoo.py --out zoo --sample 12            # so many cells, drawn by --seed
    python bench/zoo.py --out zoo                        # all of them: days
    python bench/zoo.py --out zoo --only resnext50,vocoder --formats fp32 --batch 1 --threads 2
    python bench/zoo.py --out zoo --print                # measure nothing, write the page again

A cell is a network (`zoo_networks.py`), a number format, a batch and a number of threads. Cells are
measured in an order drawn by --seed, so that whatever is there is a fair sample. Every cell is
written to OUT/zoo.json as soon as it is measured, and not measured again as long as the code is the
same: the same command goes on where it was. OUT/zoo.html is the page. `int8` is quantized by
`vermilion quantize --scheme a8w8`, `int8-ort` by ONNX Runtime; peers read the same file.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import zoo_page
from workloads import CALIBRATION_SAMPLES, default_cache
from zoo_networks import NETWORKS

from vermilion.bench.harness import save_json
from vermilion.bench.machine import this_machine
from vermilion.bench.measure import Plan, bench_models
from vermilion.bench.profile import profile_models
from vermilion.bench.report import as_json, concerns
from vermilion.errors import VermilionError
from vermilion.export.model import export_model
from vermilion.ir.load import load_model
from vermilion.ir.samples import sample_inputs
from vermilion.quantization import quantize_file
from vermilion.version import code_digest

FORMATS = ("fp32", "bf16", "int8", "int8-ort")
Stored = dict[str, Any]
Key = tuple[str, str, int, int]

# Operators that ONNX Runtime's quantizer takes; products of two activations stay in floats.
_QUANTIZED = ("Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Mul", "MaxPool", "Concat")
_HERE = Path(__file__).parent
_TOP_STEPS = 5


@dataclass(frozen=True)
class Cell:
    """One measurement of the page."""

    network: str
    format: str
    batch: int
    threads: int

    @property
    def key(self) -> Key:
        """What tells it from the others."""
        return (self.network, self.format, self.batch, self.threads)


def cells(options: argparse.Namespace) -> list[Cell]:
    """Return the cells that were asked for, in the order of the seed."""
    names = options.only or list(NETWORKS)
    every = product(names, options.formats, options.batch, options.threads)
    found = [Cell(*parts) for parts in every]
    random.Random(options.seed).shuffle(found)
    return found[: options.sample] if options.sample else found


def model_file(cell: Cell, cache: Path) -> Path:
    """Return the exported or quantized file of a cell, made once for its code."""
    folder = cache / f"zoo-{_digest()}"
    folder.mkdir(parents=True, exist_ok=True)
    floats = folder / f"{cell.network}-b{cell.batch}.onnx"
    if not floats.is_file():
        spec = f"{_HERE / 'zoo_networks.py'}:{cell.network}"
        export_model(spec, NETWORKS[cell.network].inputs_of(cell.batch), floats)
    if not cell.format.startswith("int8"):
        return floats
    quantized = folder / f"{cell.network}-b{cell.batch}-{cell.format}.onnx"
    if not quantized.is_file():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            aside = Path(scratch) / quantized.name
            (_by_ort if cell.format == "int8-ort" else _by_us)(floats, aside)
            aside.replace(quantized)
    return quantized


def _digest() -> str:
    files = sorted(_HERE.glob("zoo_*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def _by_us(floats: Path, output: Path) -> None:
    graph = load_model(floats)
    samples = [sample_inputs(graph, seed) for seed in range(CALIBRATION_SAMPLES)]
    quantize_file(floats, output, scheme="a8w8", calib=samples, samples=len(samples))


def _by_ort(floats: Path, output: Path) -> None:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared = output.with_suffix(".float.onnx")
    quant_pre_process(str(floats), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        prepared, output, _Samples(floats), quant_format=QuantFormat.QDQ, per_channel=True,
        op_types_to_quantize=list(_QUANTIZED), activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        extra_options={"WeightSymmetric": True, "MatMulConstBOnly": True},
    )  # fmt: skip


class _Samples:
    """Calibration data as ONNX Runtime's quantizer reads it."""

    def __init__(self, model: Path) -> None:
        graph = load_model(model)
        self._left = [sample_inputs(graph, seed) for seed in range(CALIBRATION_SAMPLES)]

    def get_next(self) -> Any:
        """Return the next sample, None after the last."""
        return self._left.pop() if self._left else None


def measure(cell: Cell, options: argparse.Namespace) -> Stored:
    """Measure one cell; a failure is kept as its words."""
    stored: Stored = {
        "network": cell.network, "format": cell.format, "batch": cell.batch,
        "threads": cell.threads, "kind": NETWORKS[cell.network].kind, "code": code_digest(),
        "machine": this_machine().as_json(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }  # fmt: skip
    against = list(options.against)
    if cell.format == "bf16" and "ort" in against:
        against[against.index("ort")] = "ort@fp32"  # ONNX Runtime has no bf16 on the CPU
    plan = Plan(
        precision="int8" if cell.format.startswith("int8") else cell.format,  # type: ignore[arg-type]
        threads=(cell.threads,), against=tuple(against), pairs=options.pairs,
        timeout_s=options.timeout,
    )  # fmt: skip
    try:
        path = model_file(cell, options.cache)
        found = list(bench_models([path], plan))
    except VermilionError as error:
        return {**stored, "error": str(error)}
    report = as_json(found)
    if zoo_page.ratio_of({"report": report}) and zoo_page.is_slower({"report": report}):
        stored["steps"] = _slowest_steps(path, plan)
    return {**stored, "report": report, "warnings": list(concerns(found))}


def _slowest_steps(path: Path, plan: Plan) -> list[dict[str, Any]]:
    """Return what most of our own time goes to, where a peer is faster."""
    only_ours = Plan(precision=plan.precision, threads=plan.threads, against=(), pairs=5)
    profile = next(iter(profile_models([path], only_ours))).profiles[0]
    return [
        {"kind": line.kind, "ms": line.ms, "share": line.share, "gops_per_s": line.gops_per_s}
        for line in profile.by_kind[:_TOP_STEPS]
    ]


def load(path: Path) -> list[Stored]:
    """Return what was measured before, nothing where there is no such file."""
    return json.loads(path.read_text(encoding="utf-8"))["cells"] if path.is_file() else []


def key_of(stored: Stored) -> Key:
    """Return the key of a cell that was measured."""
    return (stored["network"], stored["format"], stored["batch"], stored["threads"])


def missing(wanted: Sequence[Cell], stored: Sequence[Stored], *, keep: bool) -> Iterator[Cell]:
    """Yield the cells that no measurement of this code answers."""
    done = {key_of(one) for one in stored if keep or one["code"] == code_digest()}
    yield from (cell for cell in wanted if cell.key not in done)


def parse_options(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""

    def names(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    def numbers(text: str) -> list[int]:
        return [int(word) for word in names(text)]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--sample", type=int, default=0, metavar="N", help="cells; all if none")
    parser.add_argument("--seed", type=int, default=0, help="of the order")
    parser.add_argument("--only", type=names, default=[], metavar="NAME,…")
    parser.add_argument("--formats", type=names, default=list(FORMATS))
    parser.add_argument("--batch", type=numbers, default=[1, 8])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--against", type=names, default=["ort", "openvino"])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--keep", action="store_true", help="keep cells of other code, too")
    parser.add_argument("--print", action="store_true", help="measure nothing")
    options = parser.parse_args(words)
    for name, known in ((options.only, NETWORKS), (options.formats, FORMATS)):
        for word in name:
            if word not in known:
                parser.error(f"`{word}` is not one of {', '.join(known)}")
    return options


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is missing, and write the page."""
    options = parse_options(words)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "zoo.json"
    stored = load(file)
    wanted = cells(options)
    for cell in () if options.print else missing(wanted, stored, keep=options.keep):
        new = measure(cell, options)
        sys.stderr.write(f"{' '.join(map(str, cell.key))}: {zoo_page.in_words(new)}\n")
        sys.stderr.flush()
        stored = [one for one in stored if key_of(one) != cell.key]
        stored.append(new)
        save_json(file, {"schema_version": 1, "cells": stored})
    keys = {cell.key for cell in wanted}
    shown = [one for one in stored if key_of(one) in keys]
    (options.out / "zoo.html").write_text(zoo_page.page(shown), encoding="utf-8")
    sys.stdout.write(zoo_page.summary(shown) + "\n")
    return 1 if any("error" in one for one in shown) else 0


if __name__ == "__main__":
    sys.exit(main())
