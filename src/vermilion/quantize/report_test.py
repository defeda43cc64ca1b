from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.ir.measure import EXACT_DB
from vermilion.quantize.calibrate import tensor_facts
from vermilion.quantize.report import compare_layers, compare_outputs


def model_of(second: str, result: str = "float[n] y") -> ir.Model:
    text = (
        f'<ir_version: 8, opset_import: ["" : 17]> g (float[n] x) => ({result}) '
        f"<float k = {{1.0}}, float half = {{0.5}}> {{ [one] h = Add(x, k) \n [two] {second} }}"
    )
    return ir.from_proto(onnx.parser.parse_model(text))


SAMPLES = [
    {"x": np.random.default_rng(seed).standard_normal(40_000).astype(np.float32)}
    for seed in range(3)
]


def test_sums_run_over_all_samples_and_pieces() -> None:
    a, b = model_of("y = Sin(h)"), model_of("y = Tanh(h)")
    row = compare_outputs(a, b, SAMPLES)[0]
    x = np.stack([sample["x"] for sample in SAMPLES]).astype(np.float64) + 1
    p, q = np.sin(x), np.tanh(x)
    assert row.sqnr_db == pytest.approx(10 * math.log10((p**2).sum() / ((p - q) ** 2).sum()), 1e-4)
    assert row.cosine == pytest.approx((p * q).sum() / math.sqrt((p**2).sum() * (q**2).sum()), 1e-5)
    assert row.max_abs_error == pytest.approx(np.abs(p - q).max(), 1e-4)
    assert not row.has_nan


def test_equal_models_agree_exactly() -> None:
    row = compare_outputs(model_of("y = Sin(h)"), model_of("y = Sin(h)"), SAMPLES)[0]
    assert (row.sqnr_db, row.max_abs_error) == (EXACT_DB, 0.0)


def test_integer_outputs_are_compared() -> None:
    pair = [model_of(f"y = {op}<axis=0>(h)", "int64[m] y") for op in ("ArgMax", "ArgMin")]
    assert compare_outputs(*pair, SAMPLES)[0].sqnr_db < 20


def test_nan_is_not_agreement() -> None:
    bad = "m = Sub(h, h) \n y = Div(m, m)"
    row = compare_outputs(model_of("y = Sin(h)"), model_of(bad), SAMPLES)[0]
    assert row.has_nan
    assert row.sqnr_db == -EXACT_DB


def test_equal_infinities_are_agreement() -> None:
    mask = "z = Sub(h, h) \n y = Log(z)"
    row = compare_outputs(model_of(mask), model_of(mask), SAMPLES)[0]
    assert not row.has_nan
    assert row.sqnr_db == EXACT_DB


def test_layers_are_named_by_their_nodes_and_first_divergence_shows() -> None:
    a, b = model_of("y = Mul(h, h)"), model_of("y = Mul(h, half)")
    rows = compare_layers(a, b, tensor_facts(a, SAMPLES[0]), SAMPLES)
    assert [(row.name, row.op_type) for row in rows] == [("one", "Add"), ("two", "Mul")]
    assert rows[0].sqnr_db == EXACT_DB
    assert rows[1].sqnr_db < 10
