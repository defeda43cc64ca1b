from __future__ import annotations

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import models
from vermilion.errors import OptionError
from vermilion.ir.execute import open_session, run_session
from vermilion.progress import no_progress
from vermilion.quantize.evidence import binomial_bound
from vermilion.quantize.guard import _FIRST, _FURTHER, Promise, quantize_guarded
from vermilion.quantize.hold_out import HeldOut
from vermilion.quantize.html import html_report
from vermilion.quantize.look import look
from vermilion.quantize.options import Options, from_json
from vermilion.quantize.quantize import decide
from vermilion.quantize.sensitivity import measure_damage

RNG = np.random.default_rng(4)
IMAGES = [{"input": RNG.standard_normal((1, 3, 16, 16)).astype(np.float32)} for _ in range(12)]
A8W8 = Options(scheme="a8w8")


def test_promise_that_holds_at_once_changes_nothing() -> None:
    done = quantize_guarded(models.small_cnn(), iter(IMAGES), Promise(min_sqnr_db=15.0), A8W8)
    assert done.met
    assert [trial.what for trial in done.ladder] == ["as asked"]
    assert done.quantized.options == A8W8
    assert done.quantized.samples == 9  # three were held out


def test_precision_is_raised_until_the_promise_holds() -> None:
    plain = quantize_guarded(models.small_cnn(), IMAGES, Promise(min_sqnr_db=0.0), A8W8).ladder[0]
    promise = Promise(min_sqnr_db=plain.sqnr_db + 6.0)
    done = quantize_guarded(models.small_cnn(), IMAGES, promise, A8W8)
    assert done.met
    assert done.quantized.options.wide
    chosen = next(trial for trial in done.ladder if trial.options == done.quantized.options)
    kept = [trial for trial in done.ladder if trial.met]
    assert chosen in kept
    assert chosen.eight_bit_share == max(trial.eight_bit_share for trial in kept)
    assert not done.ladder[-1].met or len(kept) > 1, "cheaper ones are tried after it"
    held_out = IMAGES[3::4]
    pair = [open_session(m) for m in (models.small_cnn(), done.quantized.model)]
    a, b = (
        np.stack([next(iter(run_session(s, x).values())) for x in held_out]).astype(np.float64)
        for s in pair
    )
    measured = 10 * np.log10(np.sum(a**2) / np.sum((a - b) ** 2))
    assert measured == pytest.approx(chosen.sqnr_db, abs=0.01)
    assert measured >= promise.min_sqnr_db


def test_promise_that_cannot_hold_gives_the_best_and_says_so() -> None:
    done = quantize_guarded(
        models.small_cnn(), IMAGES, Promise(min_sqnr_db=190.0), Options(scheme="xint8")
    )
    assert not done.met
    best = max(trial.sqnr_db for trial in done.ladder)
    assert next(r for r in done.ladder if r.options == done.quantized.options).sqnr_db == best


def many_images(count: int) -> list[dict[str, np.ndarray]]:
    shape = (1, 3, 16, 16)
    return [{"input": RNG.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def test_metric_of_the_user_decides() -> None:
    """Each figure is that of all samples, and how far it falls for each is found out."""
    exact: list[np.ndarray] = []

    def worst(outputs: list[dict[str, np.ndarray]]) -> float:
        rows = np.stack([np.asarray(row["output"]) for row in outputs])
        if not exact:
            exact.append(rows)
        return 1.0 - float(np.mean(np.abs(rows - exact[0]).max(axis=(1, 2)) > 0.01))

    images = many_images(40)
    promise = Promise(max_drop=0.55, metric=worst, direction="larger")
    done = quantize_guarded(models.small_cnn(), images, promise, A8W8)
    assert done.held_out == 10
    assert done.met
    assert done.metric == "worst"
    assert done.ladder[-1].bound <= 0.55 < done.ladder[0].bound
    for number, trial in enumerate(done.ladder):
        lost = round(trial.drop * done.held_out)
        confidence = _FURTHER if number else _FIRST
        assert trial.bound == pytest.approx(binomial_bound(lost, done.held_out, confidence))
        assert trial.met == (trial.bound <= 0.55)


def test_trials_together_are_as_sure_as_one() -> None:
    """Each further trial on the same samples may be lucky; what all of them miss adds up."""
    assert pytest.approx(0.05) == (1.0 - _FIRST) + 32 * (1.0 - _FURTHER)


SCHEMES = {"bf16": 30.0, "bfp16": 20.0, "mxfp4": 12.0, "int4": 16.0, "int8-dynamic": 30.0}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_can_promise(scheme: str) -> None:
    model, data = products()
    plain = quantize_guarded(model, data, Promise(min_sqnr_db=0.0), Options(scheme=scheme))
    assert plain.met
    assert plain.ladder[0].sqnr_db > SCHEMES[scheme] - 8.0
    assert plain.held_out == 5
    better = Promise(min_sqnr_db=plain.ladder[0].sqnr_db + 1.0)
    raised = quantize_guarded(model, data, better, Options(scheme=scheme))
    assert raised.met
    assert len(raised.ladder) > 1
    drop = quantize_guarded(model, data, Promise(max_drop=0.6), Options(scheme=scheme))
    assert drop.met == (drop.ladder[-1].bound <= 0.6)


def products() -> tuple[ir.Model, list[dict[str, np.ndarray]]]:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4,64] x) => (float[4,32] y)
        { a = MatMul(x, w) b = Relu(a) c = MatMul(b, v) d = Relu(c) y = MatMul(d, u) }"""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in {"w": (64, 64), "v": (64, 64), "u": (64, 32)}.items():
        array = (rng.standard_normal(shape) / 8.0).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    data = [{"x": rng.standard_normal((4, 64)).astype(np.float32)} for _ in range(20)]
    return ir.from_proto(proto), data


def test_labels_reach_the_metric_of_their_sample() -> None:
    """The label of a sample is what its own number says, wherever it was held out from."""
    images = many_images(24)
    session = open_session(models.small_cnn())
    labels = [int(next(iter(run_session(session, x).values())).argmax()) for x in images]
    promise = Promise(max_drop=0.9, labels=labels)
    done = quantize_guarded(models.small_cnn(), images, promise, A8W8)
    assert done.metric == "top1"
    assert done.ladder[0].drop == 0.0
    seen: dict[int, int] = {}

    def own(outputs: dict[str, np.ndarray], sample: object, index: int, label: int) -> float:
        seen[index] = label
        return float(next(iter(outputs.values())).argmax() == label)

    promise = Promise(max_drop=0.9, labels=labels, metric=own, direction="larger")
    quantize_guarded(models.small_cnn(), images, promise, A8W8)
    assert seen == {index: labels[index] for index in range(3, 24, 4)}


def test_nan_of_the_quantized_model_fails() -> None:
    """x ÷ Σ x after a layer that rounds dark samples to zero: 0 ÷ 0 where float gives numbers."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,8,8] x) => (float[1,4,1,1] y)
        { a = Conv<pads = [1, 1, 1, 1]>(x, w) r = Relu(a) p = GlobalAveragePool(r)
          ax = Constant<value_ints = [1]>() s = ReduceSum(p, ax) y = Div(p, s) }"""
    proto = onnx.parser.parse_model(text)
    weight = RNG.standard_normal((4, 4, 3, 3)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    scale = [1e-5 if n % 8 == 7 else 1.0 for n in range(32)]
    data = [{"x": (RNG.standard_normal((1, 4, 8, 8)) * s).astype(np.float32)} for s in scale]
    for promise in (Promise(min_sqnr_db=5.0), Promise(max_drop=0.6)):
        done = quantize_guarded(ir.from_proto(proto), data, promise, A8W8)
        assert "NaN in output `y` of sample 7, held out" in done.ladder[0].fault
        assert not done.ladder[0].met
        chosen = open_session(done.quantized.model)
        gives_nan = any(np.isnan(run_session(chosen, x)["y"]).any() for x in data[3::4])
        assert done.met is not gives_nan


def test_a_promise_that_few_samples_cannot_show_is_not_kept() -> None:
    """None of three samples changed: that does not show that fewer than one in ten do."""
    done = quantize_guarded(models.small_cnn(), IMAGES, Promise(max_drop=0.1), A8W8)
    assert not done.met
    assert [trial.drop for trial in done.ladder] == [0.0]  # nothing is lost: no trial shows more
    assert done.ladder[0].bound == pytest.approx(1.0 - 0.03 ** (1.0 / 3.0))
    enough = done.ladder[0].samples_needed
    done = quantize_guarded(models.small_cnn(), many_images(enough), Promise(max_drop=0.1), A8W8)
    assert done.held_out >= 34  # 0.9^34 < 0.03 < 0.9^33
    assert done.met == (done.ladder[-1].bound <= 0.1)


def test_all_samples_that_are_given_count() -> None:
    """What an accuracy of two thirds, or losses beside gains, need is more than 7 ÷ drop."""

    def right(outputs: dict[str, np.ndarray], index: int) -> float:
        return float(index % 3 > 0)

    promise = Promise(max_drop=0.1, metric=right, direction="larger", bounds=(0.0, 1.0))
    done = quantize_guarded(models.small_cnn(), many_images(200), promise, A8W8)
    assert done.held_out > 140
    assert done.met


def test_choices_that_mean_nothing_are_told_from_damage() -> None:
    """Numbers along the last axis are all but equal: which is largest says nothing."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[1,8,32] x) => (float[1,8,32] y)
        { y = MatMul(x, w) }"""
    proto = onnx.parser.parse_model(text)
    weight = 1.0 + 1e-3 * RNG.standard_normal((32, 32)).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    boxed = [{"x": x.astype(np.float32)} for x in RNG.uniform(1.0, 2.0, (8, 1, 8, 32))]
    boxes = quantize_guarded(ir.from_proto(proto), boxed, Promise(max_drop=0.02), A8W8)
    assert boxes.has_doubtful_metric
    classes = quantize_guarded(models.small_cnn(), IMAGES, Promise(max_drop=0.0), A8W8)
    assert not classes.met
    assert not classes.has_doubtful_metric


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(OptionError, match="hold out"):
        quantize_guarded(models.small_cnn(), IMAGES[:3], Promise(min_sqnr_db=10.0), A8W8)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_drop": 0.1, "min_sqnr_db": 3.0},
        {"max_drop": 3.0},
        {"min_sqnr_db": 1e20},
        {"min_sqnr_db": float("nan")},
    ],
)
def test_promises_are_checked(fields: dict[str, float]) -> None:
    with pytest.raises(OptionError):
        Promise(**fields)  # type: ignore[arg-type]


def test_damages_add_up_to_the_whole() -> None:
    model = models.small_cnn()
    seen = look(model, IMAGES, A8W8, no_progress, held=HeldOut())
    decided = decide(seen, A8W8)
    rows = measure_damage(decided.work, decided.plan, decided.constants, IMAGES[:4], no_progress)
    assert rows == sorted(rows, key=lambda row: -row.noise)
    assert {row.kind for row in rows} == {"activation", "weight"}
    total = sum(row.noise for row in rows)
    again = quantize_guarded(model, IMAGES, Promise(min_sqnr_db=1.0), A8W8).ladder[0]
    assert 10 * np.log10(1.0 / total) == pytest.approx(again.sqnr_db, abs=3.0)


def test_page_holds_everything_and_fetches_nothing() -> None:
    done = quantize_guarded(
        models.small_cnn(), IMAGES, Promise(min_sqnr_db=60.0), A8W8, details=True
    )
    page = html_report(done.quantized, "<m> & co", done)
    assert "&lt;m&gt; &amp; co" in page
    for layer in done.quantized.layers:
        assert layer.name in page
    for trial in done.ladder:
        assert trial.what in page
    assert page.count("<svg") == 1 + len(done.quantized.details)
    assert not [word for word in ("http:", "https:", "<script", "src=", "url(") if word in page]
    kinds = {detail.kind for detail in done.quantized.details}
    assert kinds == {"activation", "weight"}


def test_recipe_reproduces_the_options() -> None:
    options = Options(
        scheme="a8w8",
        method="mse",
        ranges={"x": "minmax"},
        wide=("a", "b*"),
        per_channel=False,
        block=64,
    )
    assert from_json(json.loads(json.dumps(options.as_json()))) == options


@pytest.mark.parametrize(
    "recipe",
    [
        {"shceme": "a8w8"},
        {"method": "best"},
        {"wide": "a"},
        {"block": True},
        {"equalize": 1},
        {"ranges": ["x"]},
        {"ranges": {"x": 1}},
        {"ranges": {"x": "best"}},
    ],
)
def test_recipe_is_checked(recipe: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        from_json(recipe)
