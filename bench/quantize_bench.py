"""Quantization beside other tools: seconds, peak memory and what is left of the accuracy.

    python bench/quantize_bench.py [--models r50,det,rec,cls,nsfw] [--samples 32]
        [--photos DIR] [--font FILE.ttf] [--json OUT.json]
        [--engines vermilion,vermilion:scheme=a8w8+method=mse,onnxruntime,onnxruntime:per_channel]
        [--peer-python quark=PYTHON,nncf=PYTHON,neural_compressor=PYTHON]

An engine is a tool, then its settings: for `vermilion` the fields of its options, for
`onnxruntime` `per_channel` or a calibration method (`Percentile`), for `quark` a preset
(`quark:XINT8`), nothing for `nncf` and `neural_compressor`. Each peer runs in the environment
that it is installed in. `vermilion:…+min_sqnr_db=18` and `…+max_drop=0.02` ask for a promise.

Every run is a child process of its own. Time is that of the quantize call alone, as wall clock and
as CPU time of the process; peak memory is that of the whole process. Accuracy is measured on
samples that were not calibrated on. ONNX Runtime gets the same simplified model and the same data
(`quantize_static`, MinMax, one scale a tensor, uint8 activations, int8 weights), and so does
Quark.

Data: `r50` (random weights) takes noise, which says something about time only. `det`, `rec` and
`cls` take rendered text, `nsfw` crops of the photographs in DIR, without it smooth random
pictures, which its features were not trained for; so does `nudenet` (a YOLOv8n).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from quantize_cases import (
    CALIBRATION_SEED,
    CASES,
    EVALUATION_SEED,
    PEERS,
    Case,
    Run,
    Sample,
    drawn,
    prepared,
    session_options,
)

if TYPE_CHECKING:
    pass

EVALUATION_SAMPLES = defaultdict(lambda: 16, rec=48)
ENGINES = ("vermilion", "vermilion:scheme=a8w8", "onnxruntime", "onnxruntime:per_channel")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Quantize one model with one engine in this process."""
    case = CASES[options.models]
    folder = Path(options.folder)
    samples = list(drawn(case, CALIBRATION_SEED, options.samples, options))
    tool, _, words = options.engine.partition(":")
    run = _vermilion(words) if tool == "vermilion" else PEERS[tool](words)
    before_mb = _peak_mb()
    cpu, wall = _cpu_s(), time.perf_counter()
    details = run(folder, samples)
    cpu, wall = _cpu_s() - cpu, time.perf_counter() - wall
    return {
        "engine": options.engine,
        "model": options.models,
        "samples": options.samples,
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        "start_mb": before_mb,
        "peak_rss_mb": _peak_mb(),
        **_accuracy(case, folder, options),
        **details,
    }


def _vermilion(words: str) -> Run:
    """Return what is timed; imports are not."""
    from vermilion.ir.external_weights import write_model
    from vermilion.ir.load import load_model
    from vermilion.quantize.guard import Promise, quantize_guarded
    from vermilion.quantize.options import Options
    from vermilion.quantize.quantize import quantize_model

    settings: dict[str, Any] = {}
    for word in words.split("+") if words else ():
        name, _, value = word.partition("=")
        is_json = value in ("true", "false", "null") or value[:1].isdigit()
        settings[name] = json.loads(value) if is_json else value
    promised = {k: float(settings.pop(k)) for k in ("min_sqnr_db", "max_drop") if k in settings}

    def run(folder: Path, samples: Sequence[Sample]) -> dict[str, Any]:
        model = load_model(folder / "float.onnx")
        ladder: list[str] = []
        if not promised:
            done = quantize_model(model, iter(samples), **settings)
        else:
            promise = Promise(**promised)
            guarded = quantize_guarded(model, iter(samples), promise, Options(**settings))
            done = guarded.quantized
            ladder = [
                f"{rung.what}: {rung.sqnr_db:.1f} dB, {rung.drop:.1%}" for rung in guarded.ladder
            ]
            ladder.append("met" if guarded.met else "not met")
        write_model(done.model, folder / "result.onnx")
        found = {"eight_bit_share": round(done.eight_bit_share, 3), "moved": done.moved}
        return found | ({"ladder": ladder} if ladder else {})

    return run


def _accuracy(case: Case, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Compare the saved file with the float file on samples that neither has seen."""
    import onnxruntime as ort

    files = folder / "float.onnx", folder / "result.onnx"
    given = session_options(options.engine)
    ours, theirs = (
        ort.InferenceSession(f, given, providers=["CPUExecutionProvider"]) for f in files
    )
    pairs, texts = [], []
    for sample in drawn(case, EVALUATION_SEED, EVALUATION_SAMPLES[options.models], options):
        pairs.append((ours.run(None, sample)[0], theirs.run(None, sample)[0]))
        texts.append(getattr(options, "text", ""))
    reference = np.stack([pair[0] for pair in pairs]).astype(np.float64)
    noise = float(np.sum((reference - np.stack([pair[1] for pair in pairs])) ** 2))
    centred = reference - reference.mean(axis=0)
    row = {"sqnr_db": _decibel(np.sum(reference**2), noise)}
    row["sqnr_about_mean_db"] = _decibel(np.sum(centred**2), noise)
    if options.models == "rec":
        same = [np.array_equal(_decoded(a), _decoded(b)) for a, b in pairs]
        row["same_text_percent"] = 100.0 * sum(same) / len(same)
        letters = ours.get_modelmeta().custom_metadata_map["character"].splitlines()
        for name, side in (("float", 0), ("quantized", 1)):
            read = [_text(_decoded(pair[side]), letters) for pair in pairs]
            row[f"{name}_cer_percent"] = _error_rate(read, texts)
    if options.models == "det":
        row["mask_iou"] = round(_iou(pairs), 3)
    return row


def _decibel(signal: float, noise: float) -> float:
    return round(float(10 * np.log10(signal / noise)), 2) if noise else 200.0


def _decoded(scores: np.ndarray) -> np.ndarray:
    """Read a line greedily: repeats merged, blanks (class 0) dropped."""
    best = scores[0].argmax(axis=-1)
    kept = best[np.append(True, best[1:] != best[:-1])]
    return kept[kept != 0]


def _text(classes: np.ndarray, letters: Sequence[str]) -> str:
    """Spell what was read; spaces are left out, as the network drops most of them."""
    return "".join(letters[number - 1] for number in classes if number <= len(letters)).replace(
        " ", ""
    )


def _error_rate(read: Sequence[str], meant: Sequence[str]) -> float:
    """Return insertions, deletions and changes, in percent of the characters meant."""
    wrong = total = 0
    for ours, line in zip(read, meant, strict=True):
        true = line.replace(" ", "")
        row = list(range(len(true) + 1))
        for at, letter in enumerate(ours, 1):
            before, row[0] = row[0], at
            for place, other in enumerate(true, 1):
                changed = before + (letter != other)
                before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, changed)
        wrong += row[-1]
        total += len(true)
    return round(100.0 * wrong / total, 2)


def _iou(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    both = sum(float(((a > 0.3) & (b > 0.3)).sum()) for a, b in pairs)
    either = sum(float(((a > 0.3) | (b > 0.3)).sum()) for a, b in pairs)
    return both / either if either else 1.0


def _cpu_s() -> float:
    """Return the CPU time of this process and of the processes that it has waited for."""
    return sum(os.times()[:4])


def _peak_mb() -> int:
    if sys.platform == "win32":
        import psutil

        return int(psutil.Process().memory_info().peak_wset / 1e6)
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6)


def main() -> None:
    """Run every engine on every model, each pair in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--photos", default="")
    parser.add_argument("--font", default="")
    parser.add_argument("--peer-python", default="", metavar="TOOL=PYTHON,…")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine == "prepare":
        import onnx_ir as ir

        ir.save(prepared(CASES[options.models]), Path(options.folder) / "float.onnx")
        return
    if options.engine:
        print(json.dumps(measure(options)))
        return
    from vermilion.bench.harness import save_json  # which a peer's environment does not need

    rows = [row for name in options.models.split(",") for row in _rows_of(name, options)]
    if options.json:
        save_json(options.json, {"results": rows})


def _rows_of(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    from vermilion.bench.harness import printed_record

    pythons = dict(word.split("=", 1) for word in options.peer_python.split(",") if word)
    with tempfile.TemporaryDirectory() as folder:
        base = [sys.executable, __file__, *_passed_on(options), "--models", name]
        subprocess.run([*base, "--engine", "prepare", "--folder", folder], check=True)
        for engine in options.engines.split(","):
            python = pythons.get(engine.partition(":")[0], sys.executable)
            command = [python, *base[1:], "--engine", engine, "--folder", folder]
            row = printed_record(command)
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
            yield row


def _passed_on(options: argparse.Namespace) -> list[str]:
    return ["--samples", str(options.samples), "--photos", options.photos, "--font", options.font]


if __name__ == "__main__":
    main()
