from __future__ import annotations

import statistics
from functools import partial

import pytest

from models import mobilenet, resnet18, resnet50
from vermilion.backends.npu_cost import (
    BF16_ERRORS,
    BF16_RATES,
    DISPATCH_MS,
    INT8_ERRORS,
    INT8_RATES,
    NEWEST,
    fit,
    layer_of,
    left_out_errors,
    predict,
)
from vermilion.backends.npu_published import BF16_MS, INT8_MS, network
from vermilion.hardware.targets.find import find_target
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import run_pass

STRIX = find_target("strix")
TABLES = [
    *((INT8_MS[r], INT8_RATES[r], INT8_ERRORS[r], 1, f"int8 {r}") for r in INT8_MS),
    *((BF16_MS[r], BF16_RATES[r], BF16_ERRORS[r], 2, f"bf16 {r}") for r in BF16_MS),
]


@pytest.mark.parametrize(
    ("published", "rates", "errors", "bytes_per_element"),
    [row[:4] for row in TABLES],
    ids=[row[4] for row in TABLES],
)
def test_the_constants_are_what_the_fit_gives(published, rates, errors, bytes_per_element) -> None:
    found = fit(published, bytes_per_element)
    assert vars(found) == pytest.approx(vars(rates), rel=2e-3)
    left_out = left_out_errors(published, bytes_per_element)
    assert left_out == pytest.approx(errors, abs=2e-3)


@pytest.mark.parametrize("release", INT8_ERRORS)
def test_left_out_int8_networks_are_within_30_percent_in_the_middle(release: str) -> None:
    errors = [abs(error) for error in INT8_ERRORS[release].values()]
    assert statistics.median(errors) < 0.30


def test_where_the_model_is_bad_it_says_so() -> None:
    latency = predict(STRIX, "fp32", [], parts=1)
    assert latency is not None
    assert latency.median_error > 0.4
    int8 = predict(STRIX, "xint8", [], parts=1)
    assert int8 is not None
    assert int8.worst_error == ("mobilenet-v2", -0.774)
    assert int8.as_json()["errors"] == INT8_ERRORS[NEWEST]


@pytest.mark.parametrize(
    ("name", "gops"),
    # Published multiply-accumulates ×2: torchvision and ultralytics model tables.
    [
        ("resnet18", 3.63),
        ("resnet34", 7.33),
        ("resnet50", 8.18),
        ("mobilenet-v2", 0.60),
        ("mobilenet-v3", 0.43),
        ("efficientnet-b0", 0.77),
        ("yolov8m", 78.9),
    ],
)
def test_the_networks_have_the_work_of_the_papers(name: str, gops: float) -> None:
    assert sum(layer.operations for layer in network(name)) / 1e9 == pytest.approx(gops, rel=0.02)


V15 = partial(resnet50, v1=False)


@pytest.mark.parametrize(("build", "name"), [(resnet18, "resnet18"), (V15, "resnet50")])
def test_a_graph_and_its_description_have_the_same_layers(build, name: str) -> None:
    model = build()
    run_pass(infer_shapes, model)
    layers = [layer for layer in map(layer_of, model.graph) if layer is not None]
    described = network(name)
    assert len(layers) == len(described)
    for key in ("operations", "weights", "activations"):
        graph, text = (sum(getattr(layer, key) for layer in some) for some in (layers, described))
        assert graph == pytest.approx(text, rel=0.02), key


def test_depthwise_layers_are_told_from_dense_ones() -> None:
    model = mobilenet()
    run_pass(infer_shapes, model)
    kinds = {layer.is_depthwise for layer in map(layer_of, model.graph) if layer is not None}
    assert kinds == {True, False}


def test_the_shares_add_up_to_the_whole() -> None:
    model = resnet50()
    run_pass(infer_shapes, model)
    for number_format in ("xint8", "fp32"):
        found = predict(STRIX, number_format, list(model.graph), parts=3)
        assert found is not None
        shares = found.dense_ms + found.depthwise_ms + found.traffic_ms + found.dispatch_ms
        assert shares == pytest.approx(found.total_ms)
        assert found.dispatch_ms == pytest.approx(3 * DISPATCH_MS)


def test_other_chips_are_scaled_by_their_array_and_say_so() -> None:
    model = resnet50()
    run_pass(infer_shapes, model)
    nodes = list(model.graph)
    strix, krackan, phoenix = (
        predict(find_target(name), "xint8", nodes, parts=1)
        for name in ("strix", "krackan", "phoenix")
    )
    assert strix is not None
    assert krackan is not None
    assert phoenix is not None
    assert krackan.total_ms == strix.total_ms
    assert phoenix.total_ms > 2 * strix.total_ms
    assert (strix.is_scaled, krackan.is_scaled, phoenix.is_scaled) == (False, True, True)
    assert "nothing is published" in phoenix.basis
    assert predict(find_target("ve2"), "xint8", nodes, parts=1) is None
    assert predict(find_target("phoenix"), "fp32", nodes, parts=1) is None
    assert predict(STRIX, "xint8", nodes, parts=1, release="1.2") is None


def test_the_array_of_strix_gives_what_the_vendors_test_measures() -> None:
    assert STRIX.npu.array.int8_tops == pytest.approx(51.3, rel=0.02)
