"""The benchmark table of the README: every model of the set beside ONNX Runtime and OpenVINO.

    pip install '.[test]'
    python bench/table.py --out table.json [--pairs 30] [--runs 3] [--only resnet50,bert-base]
        [--precisions fp32,bf16,int8] [--threads 2] [--batch 1] [--against ort,openvino]
    python bench/table.py --out table.json --print

Each row is measured `--runs` times, all rows once before any row twice, so that the runs of a row
lie far apart. What is in OUT is not measured again as long as the code is the same; Ctrl-C loses at
most one row. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from workloads import FORMATS, Workload, default_cache, model_file, workload_of

from vermilion.bench.harness import save_json
from vermilion.bench.machine import this_machine
from vermilion.bench.measure import Plan, bench_models
from vermilion.bench.report import as_json, concerns
from vermilion.busy import DISTURBED_SHARE
from vermilion.cli.output import to_json
from vermilion.errors import VermilionError
from vermilion.version import VERSION, code_digest

Stored = dict[str, Any]
Key = tuple[str, str, int, int]

# Ours ÷ the best peer at equal precision, at most: two threads, batch 1. None: no floor is set.
FLOORS: Mapping[str, Mapping[str, float | None]] = {
    "resnet50": {"fp32": 0.82, "bf16": 1.00, "int8": 0.97, "s8s8": None, "dynamic": None},
    "resnet18": {"fp32": 0.62, "bf16": 1.00, "int8": 0.97},
    "mobilenetv2": {"fp32": 0.90, "bf16": 0.90, "int8": 0.90},
    "bert-base": {"fp32": 0.87, "bf16": 0.88, "int8": 0.90, "dynamic": None},
    "ocr-det": {"fp32": 0.85, "bf16": 0.85, "int8": 0.85},
    "ocr-rec": {"fp32": 0.85, "bf16": 0.85, "int8": 0.85},
    "minilm": {"fp32": 0.85, "bf16": 0.85},
    "silero-vad": {"fp32": 0.80},
    "silero-vad-fixed": {"fp32": None},
    "ocr-cls": {"fp32": None, "bf16": None},
    "nsfw": {"fp32": None, "bf16": None},
    "nudenet": {"fp32": None, "bf16": None},
}

TITLES = {
    "resnet50": "ResNet-50 v1.5, 224",
    "resnet18": "ResNet-18, 224",
    "mobilenetv2": "MobileNetV2, 224",
    "bert-base": "BERT-base, sequence 128",
    "ocr-det": "PP-OCRv4 detection, 640",
    "ocr-rec": "PP-OCRv4 recognition, 48×320",
    "ocr-cls": "PP-OCR direction, 48×192",
    "minilm": "MiniLM-L6, sequence 128",
    "silero-vad": "Silero VAD, a chunk",
    "silero-vad-fixed": "Silero VAD, a chunk, fixed shapes",
    "nsfw": "OpenNSFW (ResNet-50, thin), 224",
    "nudenet": "NudeNet (YOLOv8n), 320",
}


@dataclass(frozen=True)
class Row:
    """One line of the table. `kind` is a precision, or a way to quantize (`workloads.FORMATS`)."""

    model: str
    kind: str
    batch: int
    threads: int

    @property
    def key(self) -> Key:
        """What tells it from the others."""
        return (self.model, self.kind, self.batch, self.threads)

    @property
    def file_name(self) -> str:
        """The name of the model's file."""
        return f"{self.model}-{self.kind}" if self.kind in FORMATS else self.model

    @property
    def workload(self) -> Workload:
        """What is run and at which size."""
        return workload_of(self.file_name)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows that were asked for."""
    for model, kinds in FLOORS.items():
        if options.only and model not in options.only:
            continue
        for kind in kinds:
            if options.precisions and kind not in options.precisions:
                continue
            for batch in options.batch:
                if batch != 1 and workload_of(model).is_fixed:
                    continue
                yield from (Row(model, kind, batch, count) for count in options.threads)


def measure(row: Row, options: argparse.Namespace) -> Stored:
    """Measure one row once."""
    against = list(options.against)
    quantized = row.kind in FORMATS
    if row.kind == "bf16" and "ort" in against:
        # ONNX Runtime has no bf16 on the CPU; what its users run instead is its float32.
        against[against.index("ort")] = "ort@fp32"
    plan = Plan(
        precision="int8" if quantized else row.kind,  # type: ignore[arg-type]
        batches=(None if row.workload.is_fixed else row.batch,),
        threads=(row.threads,),
        against=tuple(against),
        # Static quantization fixed all but the batch.
        dims={} if quantized and row.kind != "dynamic" else row.workload.size_names,
        inputs=row.workload.inputs,
        pairs=options.pairs,
        timeout_s=options.timeout,
    )
    found = list(bench_models([model_file(row.file_name, options.cache)], plan))
    return {**as_json(found), "warnings": list(concerns(found))}


def measured_row(row: Row, run: int, options: argparse.Namespace) -> Stored:
    """Measure, and say where, when and with what; a failure is kept as its words."""
    stored: Stored = {
        "model": row.model,
        "kind": row.kind,
        "batch": row.batch,
        "threads": row.threads,
        "run": run,
        "code": code_digest(),
        "versions": versions(),
        "machine": this_machine().as_json(),
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
    try:
        report = measure(row, options)
    except VermilionError as error:
        return {**stored, "error": str(error)}
    return {**stored, "report": to_json(report)}


def versions() -> dict[str, str]:
    """Return the versions of what computes; OpenVINO's stands in its own results."""
    return {
        "vermilion": VERSION,
        "onnxruntime": onnxruntime.__version__,
        "onnx": onnx.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
    }


def load(path: Path) -> list[Stored]:
    """Return what was measured before, nothing where there is no such file."""
    return json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []


def key_of(stored: Stored) -> Key:
    """Return the key of the row that was measured."""
    return (stored["model"], stored["kind"], stored["batch"], stored["threads"])


def is_finished(stored: Stored, row: Row, run: int, keep: bool) -> bool:
    """Say whether this is a good measurement of the row, by the code as it is now."""
    same_code = keep or stored["code"] == code_digest()
    return key_of(stored) == row.key and stored["run"] == run and same_code and "report" in stored


def markdown(stored: Sequence[Stored]) -> str:
    """Return the table, with the runs of a row brought together."""
    lines = [
        "| model | precision | batch | threads | ours ms | ONNX Runtime ms (ours × as fast) | "
        "OpenVINO ms (ours × as fast) | "
        "× as fast as the best peer (runs; quartiles of pairs) | floor | of peak | "
        "peak MB ours, peers |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    by_key: dict[Key, list[Stored]] = {}
    for one in stored:
        by_key.setdefault(key_of(one), []).append(one)
    for key, runs in by_key.items():
        good = [one["report"] for one in runs if "report" in one]
        lines.append(_line(key, good) if good else _failed(key, runs[-1]["error"]))
    return "\n".join([*lines, "", _colophon(stored)])


def _failed(key: Key, words: str) -> str:
    model, kind, batch, threads = key
    first = words.splitlines()[0].replace("|", "/")
    return f"| {TITLES[model]} | {kind} | {batch} | {threads} | failed: {first} | | | | | | |"


def _line(key: Key, reports: Sequence[Stored]) -> str:
    model, kind, batch, threads = key
    cells = [TITLES[model], kind, str(batch), str(threads)]
    cells += [_time(reports, name) for name in ("vermilion", "ort", "openvino")]
    cells += [_best(reports), _floor(key, reports)]
    share = [r["peak_share"] for r in _engine_rows(reports, "vermilion") if r.get("peak_share")]
    cells.append(f"{statistics.median(share):.0%}" if share else "")
    cells.append(
        ", ".join(_memory(reports, name) for name in ("vermilion", "ort", "openvino")).strip(", ")
    )
    return f"| {' | '.join(cells)} |"


def _engine_rows(reports: Sequence[Stored], engine: str) -> list[Stored]:
    return [row for report in reports for row in report["results"] if row["engine"] == engine]


def _time(reports: Sequence[Stored], engine: str) -> str:
    """Return milliseconds and, for a peer, how many times as fast ours is."""
    found = [row for row in _engine_rows(reports, engine) if "latency_ms" in row]
    if not found:
        return "–"
    own = found[0]["precision"] == reports[0]["cases"][0]["precision"]
    key = engine if own else f"{engine}@{found[0]['precision']}"
    notes = [] if own else [found[0]["precision"]]
    ratios = [report["cases"][0]["ratios"].get(key) for report in reports]
    medians = [ratio["median"] for ratio in ratios if ratio is not None]
    notes += [f"{1 / statistics.median(medians):.2f} ×"] if medians else []
    notes += [] if all(row["agrees"] for row in found) else ["wrong"]
    text = f"{statistics.median(row['latency_ms']['p50'] for row in found):.3g}"
    return f"{text} ({', '.join(notes)})" if notes else text


def _memory(reports: Sequence[Stored], engine: str) -> str:
    found = [r["peak_rss_mb"] for r in _engine_rows(reports, engine) if r.get("peak_rss_mb")]
    return f"{statistics.median(found):.0f}" if found else ""


def _best_ratios(reports: Sequence[Stored]) -> list[Stored]:
    cases = [report["cases"][0] for report in reports]
    return [case["ratios"][case["best_peer"]] for case in cases if case["best_peer"]]


def _best(reports: Sequence[Stored]) -> str:
    ratios = _best_ratios(reports)
    if not ratios:
        return "no peer"
    medians = sorted(1 / r["median"] for r in ratios)
    runs = ", ".join(f"{m:.3f}" for m in medians) if len(medians) > 1 else ""
    low, high = 1 / max(r["q3"] for r in ratios), 1 / min(r["q1"] for r in ratios)
    spread = f"{low:.3f} to {high:.3f}"
    inner = f"{runs}; {spread}" if runs else spread
    return f"**{statistics.median(medians):.3f}** ({inner})"


def _floor(key: Key, reports: Sequence[Stored]) -> str:
    model, kind, batch, threads = key
    floor = FLOORS[model][kind]
    ratios = _best_ratios(reports)
    if floor is None or (batch, threads) != (1, 2) or not ratios:
        return ""
    median = statistics.median(r["median"] for r in ratios)
    return f"≥ {1 / floor:.2f} {'met' if median <= floor else 'missed'}"


def _colophon(stored: Sequence[Stored]) -> str:
    """Say where and with what; more than one of anything is listed."""
    machines = {f"{s['machine']['cpu']} ({s['machine']['core']})" for s in stored}
    tools = {", ".join(f"{k} {v}" for k, v in s["versions"].items()) for s in stored}
    openvino = {
        row["version"]
        for s in stored
        for row in _engine_rows([s["report"]] if "report" in s else [], "openvino")
        if "version" in row
    }
    codes = {s["code"][:12] for s in stored}
    loads = [s["report"]["cases"][0]["other_load"] or 0.0 for s in stored if "report" in s]
    disturbed = sum(load > DISTURBED_SHARE for load in loads)
    warning = f" {disturbed} of {len(loads)} runs were disturbed by other programs."
    return (
        f"Measured on {'; '.join(sorted(machines))} with {'; '.join(sorted(tools))}, "
        f"openvino {', '.join(sorted(openvino)) or 'not run'}; code {', '.join(sorted(codes))}."
        f"{warning if disturbed else ''}"
    )


def parse_options() -> argparse.Namespace:
    """Read the command line."""

    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    def numbers(text: str) -> list[int]:
        return [int(word) for word in words(text)]

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", type=words, default=[])
    parser.add_argument("--precisions", type=words, default=[])
    parser.add_argument("--threads", type=numbers, default=[2])
    parser.add_argument("--batch", type=numbers, default=[1])
    parser.add_argument("--against", type=words, default=["ort", "openvino"])
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--keep", action="store_true", help="keep rows of other code, too")
    parser.add_argument("--print", action="store_true", help="measure nothing")
    options = parser.parse_args()
    for name in options.only:
        if name not in FLOORS:
            parser.error(f"no row is called {name}: there are {', '.join(FLOORS)}")
    return options


def main() -> int:
    """Measure what is missing, and print the table."""
    options = parse_options()
    stored = load(options.out)
    wanted = list(rows(options))
    for run in range(0 if options.print else options.runs):
        for row in wanted:
            if any(is_finished(one, row, run, options.keep) for one in stored):
                continue
            print(f"run {run}: {' '.join(map(str, row.key))}", file=sys.stderr, flush=True)
            new = measured_row(row, run, options)
            for words in [new["error"]] if "error" in new else new["report"]["warnings"]:
                print(f"  {words}", file=sys.stderr, flush=True)
            stored = [one for one in stored if (key_of(one), one["run"]) != (row.key, run)]
            stored.append(new)
            save_json(options.out, {"schema_version": 1, "rows": stored})
    keys = {row.key: position for position, row in enumerate(wanted)}
    shown = sorted((one for one in stored if key_of(one) in keys), key=lambda s: keys[key_of(s)])
    print(markdown(shown))
    return 1 if any("error" in one for one in shown) else 0


if __name__ == "__main__":
    sys.exit(main())
