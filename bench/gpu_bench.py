"""What ahead-of-time programs for AMD GPUs consist of, and whether their numbers are right.

    python bench/gpu_bench.py [--models DIR] [--gpus gfx942,gfx1100,…] [--json] [CASE…]

For each case, a model in one number format, one artifact with a program for each GPU: kernels,
matrix instructions, spilled registers, scratch, code size, read from the code objects; the share of
the operations that the programs compute; the sizes of the file, of its weights and of its programs.
The numbers are those of the twin for this machine's CPU against ONNX Runtime. No time of a GPU is
in here. Without CASE it is the ten networks; `open` names those whose batch and lengths stay open,
`all` every case.

`--alone` also compiles what IREE makes of the same file by itself, without our rewrites and with
the weights in every program, for comparison. Finished cases stay in the file of `-o` and are not
compiled again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads import default_cache, model_file, workload_of

from vermilion import compile_model
from vermilion.backends.iree.toolchain import Work, compile_for_gpu, import_part
from vermilion.bench.harness import save_json
from vermilion.errors import UnsupportedError
from vermilion.ir.load import load_model
from vermilion.ir.passes.bind_dimensions import bind_dimensions, symbolic_names
from vermilion.progress import no_progress

GPUS = "gfx90a,gfx942,gfx950,gfx1100,gfx1151,gfx1201"
_MB = 1e6


@dataclass(frozen=True)
class Case:
    """A model in one number format, of the sizes of the table or, with `is_open`, of any."""

    model: str
    precision: str
    is_open: bool = False


TEN: Mapping[str, Case] = {
    f"{name}-fp16": Case(name, "fp16")
    for name in (
        "resnet50", "mobilenetv2", "bert-base", "minilm", "ocr-det", "ocr-rec", "ocr-cls", "nsfw",
        "nudenet", "decoder-step",
    )
}  # fmt: skip
OPEN: Mapping[str, Case] = {
    f"{name}-{precision}-open": Case(name, precision, is_open=True)
    for name in ("resnet50", "bert-base", "decoder-step")
    for precision in ("fp32", "fp16")
}
CASES: Mapping[str, Case] = {
    **TEN,
    **OPEN,
    "resnet50-fp32": Case("resnet50", "fp32"),
    "resnet50-int8": Case("resnet50-int8", "auto"),
    "bert-base-fp32": Case("bert-base", "fp32"),
    "ocr-rec-fp32": Case("ocr-rec", "fp32"),
}
SETS: Mapping[str, Mapping[str, Case]] = {"ten": TEN, "open": OPEN, "all": CASES}


def run_case(name: str, gpus: str, models: Path) -> dict[str, Any]:
    """Compile one case and sum up its kernels by GPU."""
    case = CASES[name]
    begin, cpu_s = time.perf_counter(), _children_cpu_s()
    file = model_file(case.model, models)
    with tempfile.TemporaryDirectory(prefix="vermilion-bench-") as folder:
        place = Path(folder) / "model.rai"
        done = compile_model(
            file,
            target=gpus,
            precision=case.precision,
            dims=_dims(case, file),
            cache_dir=folder,
            output=place,
        )
        report, rai_bytes = done.report, place.stat().st_size
        with zipfile.ZipFile(place) as archive:
            files = {row.filename: row.file_size for row in archive.infolist()}
    programs = {
        gpu: sum(size for path, size in files.items() if path.endswith(f"{gpu}.vmfb"))
        for gpu in gpus.split(",")
    }
    summary = report.summary
    return {
        "case": name,
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": _children_cpu_s() - cpu_s,
        "operators": summary.operators,
        "offloaded": summary.offloaded_operators,
        "gops": summary.gops,
        "offloaded_gops": summary.offloaded_gops,
        "weight_bytes": _weight_bytes(file),
        "rai_bytes": rai_bytes,
        "program_bytes": programs,
        "outputs": [dict(row) for row in report.verification],
        "gpus": {gpu: _sum_up(report.machine_code, gpu) for gpu in gpus.split(",")},
        "kernels": [dict(row) for row in report.machine_code],
        "notes": list(report.notes),
        "refused": [row["reason"] for row in report.nodes if row["device"] != "gpu"],
    }


def run_alone(name: str, gpus: str, models: Path) -> dict[str, Any]:
    """Compile a case's model for each GPU as IREE takes it: float32, its weights as constants."""
    case = CASES[name]
    file = model_file(case.model, models)
    model = bind_dimensions(load_model(file), _dims(case, file))
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="vermilion-bench-") as folder:
        work = Work(Path(folder), Path(folder) / "log.txt", no_progress)
        mlir = import_part(model, work)
        for gpu in gpus.split(","):
            place = Path(folder) / f"{gpu}.vmfb"
            try:
                made = compile_for_gpu(mlir, gpu, place, work)
            except UnsupportedError as error:
                found[gpu] = {"failed": error.message}
                continue
            rows = [kernel.as_json() for kernel in made.kernels]
            found[gpu] = {**_sum_up(rows, gpu), "program_bytes": place.stat().st_size}
    return found


def _dims(case: Case, file: Path) -> dict[str, int]:
    if case.is_open:
        return {}
    names = symbolic_names(load_model(file))
    sizes = workload_of(case.model).dims
    return {name: int(size) for name, size in sizes.items() if name in names}  # type: ignore[arg-type]


def _weight_bytes(file: Path) -> int:
    values = load_model(file).graph.initializers.values()
    return sum(value.const_value.nbytes for value in values if value.const_value is not None)


def _sum_up(kernels: Sequence[Mapping[str, Any]], gpu: str) -> dict[str, Any]:
    mine = [kernel for kernel in kernels if kernel["gpu"] == gpu]
    worst = max(mine, key=lambda kernel: kernel["vgpr_spills"], default=None)
    return {
        "kernels": len(mine),
        "with_matrix": sum(bool(kernel["matrix_instructions"]) for kernel in mine),
        "matrix_instructions": sum(kernel["matrix_instructions"] for kernel in mine),
        "instructions": sum(kernel["instructions"] for kernel in mine),
        "shared_memory_instructions": sum(k["shared_memory_instructions"] for k in mine),
        "memory_instructions": sum(kernel["memory_instructions"] for kernel in mine),
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
    """Say whether every output is proven, and 99 % of the operations have a program."""
    return all(out["status"] == "proven" for out in row["outputs"]) and _share(row) >= 0.99


def _share(row: Mapping[str, Any]) -> float:
    return float(row["offloaded_gops"] / row["gops"]) if row["gops"] else 0.0


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def files_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a row for each case: what is offloaded, how right it is, how large the file is."""
    head = (
        "model", "operators", "GOPs offloaded", "least SQNR, dB", "weights MB", ".rai MB",
        "programs MB", "IREE alone MB",
    )  # fmt: skip
    found = []
    for row in rows:
        decibels = [float(out["sqnr_db"]) for out in row["outputs"] if out["sqnr_db"] is not None]
        alone = [one.get("program_bytes", 0) for one in row.get("alone", {}).values()]
        found.append([
            row["case"], f"{row['offloaded']} of {row['operators']}", f"{_share(row):.2%}",
            f"{min(decibels):.1f}" if decibels else "",
            f"{row['weight_bytes'] / _MB:.1f}", f"{row['rai_bytes'] / _MB:.1f}",
            f"{sum(row['program_bytes'].values()) / _MB:.1f}",
            f"{sum(alone) / _MB:.1f}" if alone else "",
        ])  # fmt: skip
    return _table(head, found)


def kernels_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a row for each case and GPU; in brackets what IREE alone makes of the file."""
    keys = (
        "kernels", "with_matrix", "matrix_instructions", "instructions", "memory_instructions",
        "shared_memory_instructions", "spilling", "spills_most", "scratch", "code_kib",
    )  # fmt: skip
    found = []
    for row in rows:
        for gpu, sums in row["gpus"].items():
            other = row.get("alone", {}).get(gpu, {})
            cells = [
                f"{sums[key]:.0f}" + (f" ({other[key]:.0f})" if key in other else "")
                for key in keys
            ]
            found.append([row["case"], gpu, *cells])
    return _table(
        ("model", "GPU", "kernels", "with matrix instructions", "matrix instructions",
         "instructions", "on memory", "on shared memory", "kernels that spill", "most",
         "with scratch", "code KiB"),
        found,
    )  # fmt: skip


def main() -> int:
    """Run the cases that were asked for; exit code 1 where one is not right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE")
    parser.add_argument("--models", type=Path, default=default_cache())
    parser.add_argument("--gpus", default=GPUS)
    parser.add_argument("--alone", action="store_true", help="also what IREE makes by itself")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("-o", "--output", type=Path, default=Path("gpu_bench.json"))
    options = parser.parse_args()
    wanted = [case for name in options.cases or ["ten"] for case in SETS.get(name, {name: None})]
    for name in wanted:
        if name not in CASES:
            known = ", ".join((*SETS, *CASES))
            parser.error(f"no case is called {name}: there are {known}")
    done: dict[str, Any] = (
        json.loads(options.output.read_text()) if options.output.is_file() else {}
    )
    for name in wanted:
        key = f"{name} {options.gpus}"
        if key not in done:
            done[key] = run_case(name, options.gpus, options.models)
            save_json(options.output, done)
        if options.alone and "alone" not in done[key]:
            done[key]["alone"] = run_alone(name, options.gpus, options.models)
            save_json(options.output, done)
        print(f"{name}: {done[key]['seconds']:.0f} s", file=sys.stderr, flush=True)
    rows = [done[f"{name} {options.gpus}"] for name in wanted]
    print(json.dumps(rows) if options.json else f"{files_table(rows)}\n\n{kernels_table(rows)}")
    wrong = [row["case"] for row in rows if not is_right(row)]
    if wrong:
        print(f"not within their bounds: {', '.join(wrong)}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
