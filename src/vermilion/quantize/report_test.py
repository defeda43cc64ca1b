from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.ir.execute import open_session, run_session
from vermilion.ir.measure import EXACT_DB
from vermilion.quantize import report
from vermilion.quantize.calibrate import tensor_facts, with_outputs
from vermilion.quantize.report import (
    LayerKeeper,
    compare_both,
    compare_layers,
    compare_outputs,
    some_of,
)


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


@pytest.mark.parametrize("bytes_at_once", [1, report._GROUP_BYTES])
def test_few_values_of_a_layer_tell_what_all_do(
    bytes_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "_GROUP_BYTES", bytes_at_once)
    rough = "r = Round(h) \n y = Add(h, half)", "r = Sub(h, half) \n y = Add(h, half)"
    a, b = (model_of(words, "float[n] r, float[n] y") for words in rough)
    facts = tensor_facts(a, SAMPLES[0])
    keeper = LayerKeeper(["h", "r"], most=2)
    runs = [run_session(open_session(with_outputs(a, ["h", "r", "y"])), x) for x in SAMPLES]
    for run in runs:
        for name, array in run.items():
            keeper.add(name, array)
    assert [len(kept) for kept in keeper.kept.values()] == [2, 2]
    assert max(kept[0].size for kept in keeper.kept.values()) < 10_000, "of 40,000"
    outputs, layers = compare_both(a, keeper.kept, a, b, facts, SAMPLES)
    whole = {row.name: row for row in compare_layers(a, b, facts, SAMPLES[:2])}
    assert outputs == compare_outputs(a, b, SAMPLES)
    assert [row.name for row in layers] == ["one", whole["two"].name]
    assert layers[0].sqnr_db == EXACT_DB
    assert layers[1].sqnr_db == pytest.approx(whole["two"].sqnr_db, abs=0.2)


def test_places_that_are_looked_at_lie_all_over_a_tensor() -> None:
    """Also where a row is as long as the way from one place to the next."""
    places = some_of(np.arange(128 * 56 * 56, dtype=np.float32)).reshape(-1)
    assert len(np.unique(places)) == places.size
    columns = np.bincount((places % 56).astype(int), minlength=56)
    channels = np.bincount((places // (56 * 56)).astype(int), minlength=256)
    assert columns.min() > 0.8 * columns.mean()
    assert channels.max() <= 4 * 64
