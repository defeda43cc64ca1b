"""Ten small trained networks in each scheme, beside what other quantizers make of them.

    python bench/ten_networks_bench.py [--networks mobilenet,vit,…] [--folder DIR] [--json OUT.json]
        [--engines vermilion:xint8,quark:XINT8,…] [--calibrated 64] [--fresh 256]

Every engine gets the same float model and the same samples; SQNR and what is right of the
decisions are measured on fresh samples. `seconds` are of the quantizing call alone, in this
process. Networks that are in DIR already are not trained again. Needs PyTorch, and the peers where
they are asked for (`quark`, `nncf`) in the same environment.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import sys
import time
import traceback
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from quantize_cases import PEERS, session_options
from ten_networks import KINDS, exported, samples

ENGINES = (
    *("vermilion:xint8", "quark:XINT8", "vermilion:a8w8", "onnxruntime:per_channel", "nncf"),
    *("quark:A8W8", "vermilion:a16w8", "quark:A16W8", "vermilion:bf16", "quark:BF16"),
)
CALIBRATION_SEED, FRESH_SEED = 11, 12


def ours(scheme: str, folder: Path, data: list[dict[str, np.ndarray]]) -> None:
    """Quantize as `vermilion quantize` does."""
    from vermilion.quantization import quantize_file

    quantize_file(
        folder / "float.onnx", folder / "result.onnx", calib=data, samples=len(data), scheme=scheme
    )


def outputs(file: Path, data: list[dict[str, np.ndarray]], engine: str) -> np.ndarray:
    """Run a file in ONNX Runtime."""
    import onnxruntime as ort

    for exact in (True, False):
        options = session_options(engine, exact)
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        try:
            session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
            break
        except Exception:  # ONNX Runtime's exceptions share no base but Exception
            if not exact:
                raise
    return np.concatenate([session.run(None, sample)[0] for sample in data])


def decided(found: np.ndarray) -> np.ndarray:
    """Return the classes: along the channels of pictures, along the last axis of all else."""
    return np.asarray(found.argmax(axis=1 if found.ndim == 4 else -1))


def measure(name: str, engine: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Quantize one network in one way."""
    data, _ = samples(name, options.calibrated, CALIBRATION_SEED)
    fresh, wanted = samples(name, options.fresh, FRESH_SEED)
    exact = outputs(folder / "float.onnx", fresh, "")
    tool, _, words = engine.partition(":")
    begin = time.process_time()
    with contextlib.redirect_stdout(io.StringIO()):
        if tool == "vermilion":
            ours(words, folder, data)
        else:
            PEERS[tool](words)(folder, data)
    seconds = time.process_time() - begin
    found = outputs(folder / "result.onnx", fresh, engine)
    noise = float(np.sum((exact.astype(np.float64) - found) ** 2))
    signal = float(np.sum(exact.astype(np.float64) ** 2))
    return {
        "network": name,
        "engine": engine,
        "sqnr_db": 10 * np.log10(signal / noise) if noise else 200.0,
        "right": float(np.mean(decided(found) == wanted)),
        "float_right": float(np.mean(decided(exact) == wanted)),
        "alike": float(np.mean(decided(found) == decided(exact))),
        "cpu_seconds": seconds,
    }


def main() -> None:
    """Measure all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", default=",".join(KINDS))
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--calibrated", type=int, default=64)
    parser.add_argument("--fresh", type=int, default=256)
    options = parser.parse_args()
    logging.disable(logging.ERROR)
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as scratch:
        for name in options.networks.split(","):
            folder = (options.folder or Path(scratch)) / name
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "float.onnx").exists():
                exported(name, folder / "float.onnx")
            for engine in options.engines.split(","):
                try:
                    row = measure(name, engine, options, folder)
                except Exception as error:  # a peer may fail in any way: that is its result
                    traceback.print_exc(limit=2)
                    row = {"network": name, "engine": engine, "error": str(error)[:80]}
                rows.append(row)
                if "error" in row:
                    sys.stdout.write(f"{name:11} {engine:24} {row['error']}\n")
                else:
                    sys.stdout.write(
                        f"{name:11} {engine:24} {row['sqnr_db']:6.1f} dB  right {row['right']:.3f} "
                        f"(float {row['float_right']:.3f})  alike {row['alike']:.4f}  "
                        f"{row['cpu_seconds']:.1f} s\n"
                    )
                sys.stdout.flush()
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
