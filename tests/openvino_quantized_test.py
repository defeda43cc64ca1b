"""Quantized files in another runtime: OpenVINO reads them and gives what ONNX Runtime gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import models
from vermilion.ir.execute import Array, open_session, run_session
from vermilion.ir.measure import sqnr_from_sums
from vermilion.quantize.formats import SCHEMES, DynamicScheme, WeightScheme
from vermilion.quantize.quantize import quantize_model

pytestmark = pytest.mark.needs("openvino")

MATRICES = """<ir_version: 10, opset_import: ["" : 17]>
    g (float[1,6,64] input) => (float[1,6,48] y) {
      h = MatMul(input, w)
      k = Add(h, b)
      r = Relu(k)
      y = MatMul(r, v)
    }"""

# What lies at half a step may go either way: sums in float32 come in another order.
LEAST_DB = 25.0
# With its transformations to low precision more turns: powers of two put much at half a step. The
# same file without them gives ONNX Runtime's bits.
LEAST_LOW_DB = 20.0

# Its transformations to low precision, `LP_TRANSFORMS_MODE`, get the product behind this Concat
# wrong in OpenVINO 2026.4: 12 dB, without them 330.
WRONG_IN_LOW_PRECISION = {("xint8", models.branching_cnn)}


def matrices() -> ir.Model:
    """Return two products in a row."""
    proto = onnx.parser.parse_model(MATRICES)
    random = np.random.default_rng(2)
    for name, shape in {"w": (64, 80), "b": (80,), "v": (80, 48)}.items():
        array = random.standard_normal(shape).astype(np.float32) / 8.0
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


NETWORKS = (models.small_cnn, models.branching_cnn, models.mobilenet, matrices)
CASES = [
    (scheme, build)
    for scheme, row in SCHEMES.items()
    for build in NETWORKS
    if build is matrices or not isinstance(row, WeightScheme | DynamicScheme)
]


def in_openvino(file: Path, feeds: Sequence[dict[str, Array]], low_precision: bool) -> list[Array]:
    """Return the outputs, one feed's after the other's."""
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "LP_TRANSFORMS_MODE": "YES" if low_precision else "NO",
    }
    compiled = openvino.Core().compile_model(file, "CPU", settings)
    return [array for feed in feeds for array in compiled(feed).values()]


@pytest.mark.parametrize(("scheme", "build"), CASES)
def test_it_agrees(scheme: str, build: Callable[[], ir.Model], tmp_path: Path) -> None:
    model = build()
    random = np.random.default_rng(9)
    shape = tuple(int(n) for n in model.graph.inputs[0].shape or ())
    samples = [{"input": random.standard_normal(shape).astype(np.float32)} for _ in range(8)]
    done = quantize_model(model, samples, scheme=scheme)
    file = tmp_path / "q.onnx"
    ir.save(done.model, file)
    session, feeds = open_session(done.model), samples[:2]
    ours = [array for feed in feeds for array in run_session(session, feed).values()]
    for low_precision in (False, True):
        theirs = in_openvino(file, feeds, low_precision)
        signal = noise = 0.0
        for a, b in zip(ours, theirs, strict=True):
            signal += float(np.sum(np.square(a, dtype=np.float64)))
            noise += float(np.sum(np.square(b - a, dtype=np.float64)))
        decibels = sqnr_from_sums(signal, noise)
        least = LEAST_LOW_DB if low_precision else LEAST_DB
        if low_precision and (scheme, build) in WRONG_IN_LOW_PRECISION:
            assert decibels < least
        else:
            assert decibels > least, f"{low_precision=}"
