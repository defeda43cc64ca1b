"""What ahead-of-time programs for AMD GPUs consist of, and whether their numbers are right.

    python bench/gpu_bench.py [--models DIR] [--gpus gfx942,gfx1100,…] [-o RESULT.json] [CASE…]

For each case, a model in one number format, one artifact with a program for each GPU: kernels,
matrix instructions, spilled registers, scratch, code size, read from the code objects. The numbers
are those of the twin for this machine's CPU against ONNX Runtime. No time of a GPU is in here.
Finished cases stay in RESULT.json and are not compiled again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads import default_cache, model_file, workload_of

from vermilion import compile_model
from vermilion.bench.harness import save_json
from vermilion.ir.load import load_model
from vermilion.ir.passes.bind_dimensions import symbolic_names

GPUS = "gfx942,gfx1100,gfx1151,gfx1201"


@dataclass(frozen=True)
class Case:
    """A model in one number format; `least_db` is what its outputs must keep of the signal.

    Float32 rounds each of a few hundred sums at 2⁻²⁴, float16 at 2⁻¹¹: 90 and 40 dB leave room for
    their growth through fifty layers. Integer products are exact, and what is between them is
    float32, but a value on the border of two integers may fall on either side.
    """

    model: str
    precision: str
    least_db: float


CASES: Mapping[str, Case] = {
    "resnet50-fp32": Case("resnet50", "fp32", 90.0),
    "resnet50-fp16": Case("resnet50", "fp16", 40.0),
    "resnet50-int8": Case("resnet50-int8", "auto", 25.0),
    "bert-base-fp32": Case("bert-base", "fp32", 90.0),
    "bert-base-fp16": Case("bert-base", "fp16", 40.0),
    "minilm-fp16": Case("minilm", "fp16", 40.0),
    "ocr-rec-fp32": Case("ocr-rec", "fp32", 90.0),
    "ocr-rec-fp16": Case("ocr-rec", "fp16", 40.0),
}


def run_case(name: str, gpus: str, models: Path) -> dict[str, Any]:
    """Compile one case and sum up its kernels by GPU."""
    case = CASES[name]
    begin, cpu_s = time.perf_counter(), _children_cpu_s()
    file = model_file(case.model, models)
    open_names = symbolic_names(load_model(file))
    sizes = workload_of(case.model).dims
    with tempfile.TemporaryDirectory(prefix="vermilion-bench-") as folder:
        done = compile_model(
            file,
            target=gpus,
            precision=case.precision,
            dims={name: size for name, size in sizes.items() if name in open_names},
            cache_dir=folder,
        )
        report = done.report
    summary = report.summary
    return {
        "case": name,
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": _children_cpu_s() - cpu_s,
        "operators": summary.operators,
        "offloaded": summary.offloaded_operators,
        "outputs": [dict(row) for row in report.verification],
        "least_db": case.least_db,
        "gpus": {gpu: _sum_up(report.machine_code, gpu) for gpu in gpus.split(",")},
        "kernels": [dict(row) for row in report.machine_code],
        "notes": list(report.notes),
        "refused": [row["reason"] for row in report.nodes if row["device"] != "gpu"],
    }


def _sum_up(kernels: Sequence[Mapping[str, Any]], gpu: str) -> dict[str, Any]:
    mine = [kernel for kernel in kernels if kernel["gpu"] == gpu]
    worst = max(mine, key=lambda kernel: kernel["vgpr_spills"], default=None)
    return {
        "kernels": len(mine),
        "with_matrix": sum(bool(kernel["matrix_instructions"]) for kernel in mine),
        "matrix_instructions": sum(kernel["matrix_instructions"] for kernel in mine),
        "spilling": sum(kernel["vgpr_spills"] > 0 for kernel in mine),
        "spills_most": 0 if worst is None else worst["vgpr_spills"],
        "spills_in": "" if worst is None or not worst["vgpr_spills"] else worst["kernel"],
        "scratch": sum(kernel["scratch_bytes"] > 0 for kernel in mine),
        "code_kib": sum(kernel["code_bytes"] for kernel in mine) / 1024,
    }


def _children_cpu_s() -> float:
    if sys.platform == "win32":
        return 0.0
    import resource

    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def is_right(row: Mapping[str, Any]) -> bool:
    """Say whether every operator has a program, and every output is within its bound."""
    loud = [out for out in row["outputs"] if out["sqnr_db"] is not None]
    enough = all(float(out["sqnr_db"]) >= row["least_db"] for out in loud)
    return enough and row["offloaded"] == row["operators"]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a row for each case and GPU."""
    head = (
        "| model | GPU | operators | kernels | with matrix instructions | matrix instructions |"
        " kernels that spill | most | with scratch | code KiB | least SQNR, dB |"
    )
    lines = [head, "|" + "---|" * head.count(" | ") + "---|"]
    for row in rows:
        decibels = min(float(out["sqnr_db"]) for out in row["outputs"])
        for gpu, sums in row["gpus"].items():
            cells = [
                row["case"], gpu, f"{row['offloaded']} of {row['operators']}", sums["kernels"],
                sums["with_matrix"], sums["matrix_instructions"], sums["spilling"],
                sums["spills_most"], sums["scratch"], f"{sums['code_kib']:.0f}", f"{decibels:.1f}",
            ]  # fmt: skip
            lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run the cases that were asked for; exit code 1 where one is not right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--models", type=Path, default=default_cache())
    parser.add_argument("--gpus", default=GPUS)
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu_bench.json"))
    options = parser.parse_args()
    wanted = options.cases or list(CASES)
    for name in wanted:
        if name not in CASES:
            parser.error(f"no case is called {name}: there are {', '.join(CASES)}")
    done: dict[str, Any] = (
        json.loads(options.output.read_text()) if options.output.is_file() else {}
    )
    for name in wanted:
        key = f"{name} {options.gpus}"
        if key not in done:
            done[key] = run_case(name, options.gpus, options.models)
            save_json(options.output, done)
        print(f"{name}: {done[key]['seconds']:.0f} s", file=sys.stderr, flush=True)
    rows = [done[f"{name} {options.gpus}"] for name in wanted]
    print(markdown(rows))
    wrong = [row["case"] for row in rows if not is_right(row)]
    if wrong:
        print(f"not within their bounds: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
