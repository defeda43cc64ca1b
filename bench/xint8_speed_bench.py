"""The XINT8 model that goes to the NPU, run on the CPU: our code beside ONNX Runtime's u8·s8.

    python bench/xint8_speed_bench.py [--model r50] [--runs 40]

Both are quantized here from the same float model (random weights say all that time needs). One
thread each, in turns; the figure is the least CPU time of a run, which a busy machine disturbs
least.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from quantize_cases import CALIBRATION_SEED, CASES, drawn, onnxruntime, prepared

from vermilion.rounds import in_rounds

CALIBRATED = 4


def least_cpu_ms(runs: dict[str, Callable[[], object]], times: int) -> dict[str, float]:
    """Run all in turns; give the least CPU time of each."""

    def turn(name: str, _: int) -> float:
        begin = time.process_time()
        runs[name]()
        return 1e3 * (time.process_time() - begin)

    names = list(runs)
    return dict(zip(names, map(min, in_rounds(names, turn, times)), strict=True))


def main() -> None:
    """Quantize, compile, measure."""
    import onnx_ir as ir

    from vermilion import compile_model
    from vermilion.ir.execute import open_session, run_session
    from vermilion.quantize.quantize import quantize_model

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="r50", choices=sorted(CASES))
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--photos", default="")
    parser.add_argument("--font", default="")
    options = parser.parse_args()
    case = CASES[options.model]
    model = prepared(case)
    samples = list(drawn(case, CALIBRATION_SEED, CALIBRATED, options))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        ir.save(model, place / "float.onnx")
        onnxruntime("")(place, samples)
        peer = open_session(ir.load(place / "result.onnx"), threads=1)
        xint8 = quantize_model(model, samples, scheme="xint8").model
        in_peer = open_session(xint8, threads=1)
        in_float = open_session(model, threads=1)
        names = [str(value.name) for value in model.graph.outputs]
        session = compile_model(xint8, cache_dir=place / "cache").session(threads=1)
        native = dict(zip(names, session.run(names, samples[0]), strict=True))
        peers = run_session(in_peer, samples[0])
        for name, array in peers.items():
            off = float(np.abs(array - native[name]).max() / np.abs(array).max())
            print(f"XINT8, ours against ONNX Runtime: `{name}` differs by {off:.1e} of its largest")
        least = least_cpu_ms(
            {
                "XINT8, our code": lambda: session.run(names, samples[0]),
                "u8·s8, ONNX Runtime": lambda: run_session(peer, samples[0]),
                "XINT8, ONNX Runtime": lambda: run_session(in_peer, samples[0]),
                "float32, ONNX Runtime": lambda: run_session(in_float, samples[0]),
            },
            options.runs,
        )
        for name, cpu_ms in least.items():
            print(f"{name:24} {cpu_ms:8.2f} ms CPU")


if __name__ == "__main__":
    main()
