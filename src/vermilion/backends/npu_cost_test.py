"""The fit, what it is off by, and what is said where it carries nothing."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import astuple
from functools import cache, partial
from itertools import product

import numpy as np
import onnx_ir as ir
import pytest

from models import mobilenet, resnet18, resnet50
from vermilion.backends import npu_fit
from vermilion.backends.npu_cost import (
    BF16_ERRORS,
    BF16_RATES,
    INT8_ERRORS,
    INT8_RATES,
    NEWEST,
    Latency,
    layer_of,
    node_milliseconds,
    predict,
)
from vermilion.backends.npu_fit import DISPATCH_MS, Rates, Work, fit, left_out_errors
from vermilion.backends.npu_published import BF16_MS, INT8_MS, Published, network
from vermilion.errors import Refusal
from vermilion.hardware.targets.find import find_target
from vermilion.hello_network import hello_network
from vermilion.ir.passes.contract_test import parse, weight
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import run_pass

STRIX = find_target("strix")
TABLES = [
    *((INT8_MS[r], INT8_RATES[r], INT8_ERRORS[r], 1, f"int8 {r}") for r in INT8_MS),
    *((BF16_MS[r], BF16_RATES[r], BF16_ERRORS[r], 2, f"bf16 {r}") for r in BF16_MS),
]
EVERY = pytest.mark.parametrize(
    ("published", "rates", "errors", "size"), [t[:4] for t in TABLES], ids=[t[4] for t in TABLES]
)


@EVERY
def test_the_constants_are_what_the_fit_gives(published, rates, errors, size) -> None:
    assert vars(fit(published, size)) == pytest.approx(vars(rates), rel=2e-3)
    assert left_out_errors(published, size) == pytest.approx(errors, abs=2e-3)


def loss(published: Published, rates: Rates, size: int) -> float:
    """The loss as its definition has it, network by network."""
    return sum(
        abs(np.log(Work.of(network(name), size).total_ms(rates) / ms))
        for name, ms in published.items()
    )


@EVERY
def test_no_search_finds_better_rates(published, rates, errors, size) -> None:
    best = fit(published, size)
    least = loss(published, best, size)
    random = np.random.default_rng(3)
    steps = [0.7, 0.9, 0.98, 1.0, 1.02, 1.1, 1.4]
    near = [Rates(*(np.array(astuple(best)) * by)) for by in product(steps, repeat=3)]
    far = [Rates(*(10.0 ** random.uniform((-2, 0, -4), (1.5, 3, 0)))) for _ in range(400)]
    assert all(loss(published, tried, size) > least - 1e-9 for tried in near + far)


def test_the_fit_is_the_same_from_any_start(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = fit(INT8_MS["1.7"], 1)
    monkeypatch.setattr(npu_fit, "START", Rates(5.0, 1.0, 3.0))
    assert fit(INT8_MS["1.7"], 1) == usual


@pytest.mark.parametrize("release", INT8_ERRORS)
def test_left_out_int8_networks_are_within_30_percent_in_the_middle(release: str) -> None:
    errors = [abs(error) for error in INT8_ERRORS[release].values()]
    assert statistics.median(errors) < 0.30


@cache
def inferred(build: Callable[[], ir.Model]) -> ir.Model:
    model = build()
    run_pass(infer_shapes, model)
    return model


def predicted(build, number_format: str, *, parts: int = 1, target=STRIX) -> Latency | Refusal:
    return predict(target, number_format, list(inferred(build).graph), parts=parts)


def latency(build, number_format: str, *, parts: int = 1) -> Latency:
    found = predicted(build, number_format, parts=parts)
    assert isinstance(found, Latency)
    return found


@pytest.mark.parametrize(("size", "number_format"), [(1, "xint8"), (2, "fp32")])
def test_every_published_network_is_in_its_own_interval(size: int, number_format: str) -> None:
    shown = latency(resnet50, number_format)
    published = (INT8_MS if size == 1 else BF16_MS)[NEWEST]
    rates = (INT8_RATES if size == 1 else BF16_RATES)[NEWEST]
    for name, ms in published.items():
        middle = Work.of(network(name), size).total_ms(rates)
        low, high = (middle * end / shown.total_ms for end in (shown.low_ms, shown.high_ms))
        assert low < ms < high, name


@pytest.mark.parametrize(
    ("build", "number_format", "published_ms"),
    [(resnet18, "xint8", 1.70), (resnet50, "xint8", 3.84), (resnet18, "fp32", 30.8)],
)
def test_a_graph_is_near_what_was_published_of_it(build, number_format, published_ms) -> None:
    assert latency(build, number_format).total_ms == pytest.approx(published_ms, rel=0.06)


def test_the_vendors_example_is_in_its_interval() -> None:
    # AMD's hello-world for the Ryzen AI NPU prints 0.023 s.
    shown = latency(hello_network, "xint8")
    assert shown.low_ms < 23.0 < shown.high_ms
    assert shown.words.startswith(f"{shown.total_ms:.2f} ms, {shown.low_ms:.2f} to ")


def test_where_the_model_is_bad_it_says_so() -> None:
    float32 = latency(resnet50, "fp32")
    assert float32.median_error > 0.4
    assert float32.worst_error[0] == "minilm-l6"
    int8 = latency(resnet50, "xint8")
    assert int8.worst_error == ("mobilenet-v2", pytest.approx(-0.784))
    data = int8.as_json()
    assert data["errors"] == INT8_ERRORS[NEWEST]
    assert data["low_ms"] < data["modelled_ms"] < data["high_ms"]
    assert data["coverage"] == pytest.approx(0.8)


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
    model = inferred(build)
    layers = [layer for layer in map(layer_of, model.graph) if layer is not None]
    described = network(name)
    assert len(layers) == len(described)
    for key in ("operations", "weights", "activations"):
        graph, text = (sum(getattr(layer, key) for layer in some) for some in (layers, described))
        assert graph == pytest.approx(text, rel=0.02), key


def test_depthwise_layers_are_told_from_dense_ones() -> None:
    model = inferred(mobilenet)
    kinds = {layer.is_depthwise for layer in map(layer_of, model.graph) if layer is not None}
    assert kinds == {True, False}


def test_the_shares_add_up_to_the_whole() -> None:
    for number_format in ("xint8", "fp32"):
        found = latency(resnet50, number_format, parts=3)
        shares = found.dense_ms + found.depthwise_ms + found.traffic_ms + found.dispatch_ms
        assert shares == pytest.approx(found.total_ms)
        assert found.dispatch_ms == pytest.approx(3 * DISPATCH_MS)
        alone = sum(node_milliseconds(number_format, list(inferred(resnet50).graph)))
        assert alone == pytest.approx(found.total_ms - found.dispatch_ms)


TINY = """(float[1,8,16,16] x, float[8,8,3,3] w) => (float[1,8,16,16] y) {
    y = Conv<pads=[1,1,1,1]>(x, w)
}"""
PRODUCTS = """(float[512,1024] x, float[1024,1024] w) => (float[512,1024] y) { y = MatMul(x, w) }"""


def test_what_the_published_networks_do_not_carry_is_refused() -> None:
    tiny = predicted(lambda: parse(TINY, w=weight(8, 8, 3, 3)), "xint8")
    assert isinstance(tiny, Refusal)
    assert "0.000295 GOPs" in tiny.reason
    assert tiny.hint
    products = partial(parse, PRODUCTS, w=weight(1024, 1024))
    transformer = predicted(products, "xint8")
    assert isinstance(transformer, Refusal)
    assert "it is a transformer" in transformer.reason
    assert isinstance(predicted(products, "fp32"), Latency), "one is published in BF16"
    for name in ("krackan", "phoenix", "ve2"):
        other = predicted(resnet50, "xint8", target=find_target(name))
        assert isinstance(other, Refusal)
        assert f"on {name}" in other.reason
    older = predict(STRIX, "xint8", list(inferred(resnet50).graph), parts=1, release="1.2")
    assert isinstance(older, Refusal)


def test_the_array_of_strix_gives_what_the_vendors_test_measures() -> None:
    assert STRIX.npu.array.int8_tops == pytest.approx(51.3, rel=0.02)
