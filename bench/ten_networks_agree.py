"""Whether every quantized file of the ten networks is read everywhere, and means the same there.

    python bench/ten_networks_agree.py [--networks mobilenet,vit,…] [--schemes xint8,a8w8,…]
        [--folder DIR] [--calibrated 16] [--fresh 4]

Each network in each scheme goes through ONNX's checker and is opened in ONNX Runtime as it is, in
ONNX Runtime optimized, and in OpenVINO. The three get the same fresh samples. Sums of float32 come
in another order in each, and what lies at half a step may go either way; so outputs agree where no
reader is more than `MOST_DB` further from the float model than the one that is nearest to it.
Exits 1 where a file is refused or outputs do not agree.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from ten_networks import KINDS, exported, samples

from vermilion.errors import UnsupportedError
from vermilion.hardware.cpu import detect_cpu
from vermilion.quantization import quantize_file
from vermilion.quantize.formats import SCHEMES

MOST_DB = 1.5
CALIBRATION_SEED, FRESH_SEED = 11, 12

Feeds = Sequence[dict[str, np.ndarray]]


def in_onnxruntime(file: Path, feeds: Feeds, optimized: bool) -> np.ndarray:
    """Return the outputs, one feed's after the other's."""
    import onnxruntime as ort

    level = ort.GraphOptimizationLevel
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    # Without VNNI, pairs of products are cut off at 16 bits otherwise: see docs/quantize.md.
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimized else level.ORT_DISABLE_ALL
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, feed)[0] for feed in feeds])


def in_openvino(file: Path, feeds: Feeds) -> np.ndarray:
    """Return the outputs, computed in float32 between what the file rounds."""
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "LP_TRANSFORMS_MODE": "NO"}
    compiled = openvino.Core().compile_model(file, "CPU", settings)
    return np.concatenate([compiled(feed)[0] for feed in feeds])


def decibels(wanted: np.ndarray, found: np.ndarray) -> float:
    """Return how far outputs lie apart, 200 where they are the same."""
    exact = wanted.astype(np.float64)
    noise, signal = float(np.sum((found - exact) ** 2)), float(np.sum(exact**2))
    if not np.isfinite(noise):
        return -np.inf
    return 10 * np.log10(signal / noise) if noise else 200.0


def checked(file: Path, feeds: Feeds, exact: np.ndarray) -> tuple[bool, str]:
    """Open one file everywhere; say whether all agree, and how near to the float model each is."""
    onnx.checker.check_model(file, full_check=True)
    # Products on integers that are not optimized are not exact without VNNI.
    integers = any(node.op_type == "MatMulInteger" for node in onnx.load(file).graph.node)
    whole = not integers or bool(detect_cpu().features & {"avx512vnni", "avxvnni"})
    kept = {
        "as it is": decibels(exact, in_onnxruntime(file, feeds, optimized=not whole)),
        "optimized": decibels(exact, in_onnxruntime(file, feeds, optimized=True)),
        "OpenVINO": decibels(exact, in_openvino(file, feeds)),
    }
    words = ", ".join(f"{name} {found:.1f} dB" for name, found in kept.items())
    return min(kept.values()) >= max(kept.values()) - MOST_DB, words


def main() -> int:
    """Check all; give the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", default=",".join(KINDS))
    parser.add_argument("--schemes", default=",".join(SCHEMES))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--calibrated", type=int, default=16)
    parser.add_argument("--fresh", type=int, default=4)
    options = parser.parse_args()
    failed = 0
    with TemporaryDirectory() as scratch:
        for name in options.networks.split(","):
            folder = (options.folder or Path(scratch)) / name
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "float.onnx").exists():
                exported(name, folder / "float.onnx")
            data, _ = samples(name, options.calibrated, CALIBRATION_SEED)
            fresh, _ = samples(name, options.fresh, FRESH_SEED)
            exact = in_onnxruntime(folder / "float.onnx", fresh, optimized=True)
            for scheme in options.schemes.split(","):
                file = Path(scratch) / "quantized.onnx"
                try:
                    quantize_file(folder / "float.onnx", file, calib=data, scheme=scheme)
                    agreed, words = checked(file, fresh, exact)
                except UnsupportedError:
                    continue  # nothing there for this scheme, as 4-bit weights of convolutions
                except Exception as error:  # whatever a reader says is the result
                    agreed, words = False, f"{type(error).__name__}: {str(error)[:160]}"
                failed += not agreed
                sys.stdout.write(f"{name:11} {scheme:13} {'' if agreed else 'FAILS '}{words}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{failed} fail\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
