from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from commands import Command, command_line, wide_enough
from models import small_cnn
from vermilion.errors import OptionError
from vermilion.ir.passes.contract_test import parse, weight
from vermilion.planning import Choice, DevicePlan, Span, _best, plan_devices

# 0.3 GOPs, which the published networks carry, and little to compile.
TEXT = """(float[batch,64,32,32] x, float[64,64,3,3] w) => (float[batch,64,32,32] y) {
    a = Conv<pads=[1,1,1,1]>(x, w)
    b = Relu(a)
    c = Conv<pads=[1,1,1,1]>(b, w)
    d = Relu(c)
    e = Conv<pads=[1,1,1,1]>(d, w)
    f = Relu(e)
    y = Conv<pads=[1,1,1,1]>(f, w)
}"""


def network(batch: str = "batch") -> ir.Model:
    return parse(TEXT.replace("batch", batch), w=0.05 * weight(64, 64, 3, 3))


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> DevicePlan:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VERMILION_CACHE", str(tmp_path_factory.mktemp("cache")))
        return plan_devices(network(), targets=("cpu", "strix", "krackan"), batches=(1, 4))


def choices(planned: DevicePlan, device: str, **wanted: object) -> list[Choice]:
    return [
        choice
        for choice in planned.choices
        if choice.device == device and all(getattr(choice, k) == v for k, v in wanted.items())
    ]


def test_each_device_and_batch_has_its_row(planned: DevicePlan) -> None:
    assert [c.batch for c in choices(planned, "cpu")] == [1, 4]
    assert all(c.how == "measured" for c in choices(planned, "cpu"))
    (one,) = choices(planned, "strix", numbers="fp32", batch=1)
    (four,) = choices(planned, "strix", numbers="fp32", batch=4)
    assert one.latency is not None
    assert four.latency == one.latency.times(4), "entry by entry"
    assert one.how == "modelled"
    assert one.latency.low < one.latency.middle < one.latency.high
    assert choices(planned, "strix", numbers="xint8, once quantized", batch=1)
    for choice in choices(planned, "krackan"):
        assert (choice.latency, choice.throughput, choice.how) == (None, None, "not known")
        assert "no latencies are published" in choice.reason


def test_every_row_that_has_a_figure_has_its_interval(planned: DevicePlan) -> None:
    for choice in planned.choices:
        for span in filter(None, (choice.latency, choice.throughput)):
            assert 0 < span.low <= span.middle <= span.high
        assert (choice.latency is None) == bool(choice.reason)


def test_a_pipeline_is_worth_its_while(planned: DevicePlan) -> None:
    whole = {(c.batch, c.numbers): c for c in choices(planned, "strix")}
    for choice in planned.choices:
        if "pipelined" in choice.split:
            alone = whole[choice.batch, choice.numbers].throughput
            assert choice.throughput is not None
            assert alone is not None
            assert choice.throughput.middle > alone.middle / 0.9
            assert "MB between" in choice.split


def choice(name: str, *ms: float) -> Choice:
    span = Span(*ms)
    return Choice(name, "fp32", 1, "whole", span, span.as_rate(1), "modelled", 1.0)


def test_a_best_one_is_named_where_the_intervals_tell() -> None:
    a, b = choice("a", 2, 1, 3), choice("b", 6, 4, 9)
    assert _best([b, a], "latency") == _best([b, a], "throughput") == "a (fp32)"
    wide = choice("c", 7, 2, 20)
    assert "do not tell it from c (fp32)" in _best([a, b, wide], "latency")
    assert "nothing is known" in _best([], "latency")


def test_spans_are_added_and_compared_end_by_end() -> None:
    a, b = Span(2, 1, 3), Span(5, 0.5, 6)
    assert a.plus(b) == Span(7, 1.5, 9)
    assert a.slower(b) == Span(5, 1, 6)
    assert Span(2, 1, 4).as_rate(2) == Span(1000, 500, 2000)


def test_sizes_that_stay_open_are_asked_for() -> None:
    model = small_cnn(batch="n")
    model.graph.inputs[0].shape = ir.Shape(["n", 3, "height", 32])
    with pytest.raises(OptionError, match="height") as caught:
        plan_devices(model, targets=("strix",))
    assert "--dim height=SIZE" in caught.value.hint


def test_the_verb(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vermilion: Command = command_line(capfd, monkeypatch, tmp_path / "cache")
    ir.save(network("1"), tmp_path / "m.onnx")
    done = vermilion("plan", tmp_path / "m.onnx", "--target", "strix,gfx942")
    assert done.code == 0
    assert "gfx942: not known: no latency is modelled for a GPU" in done.words
    assert "least latency: strix" in done.words
    assert wide_enough(done.out)
    data = vermilion("plan", tmp_path / "m.onnx", "--target", "strix", "--json").data
    row = data["choices"][0]
    assert set(row["latency_ms"]) == {"low", "middle", "high"}
    assert vermilion("plan", tmp_path / "m.onnx", "--batch", "0").code == 2
