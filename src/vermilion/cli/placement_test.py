from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from rich.console import RenderableType

import bundles
from commands import Command, wide_enough
from models import package_model_path, resnet18, small_cnn
from vermilion.cli.output import console_on
from vermilion.cli.placement import nodes_view, summary_view
from vermilion.inspection import inspect_model
from vermilion.ir.passes.contract_test import parse, weight
from vermilion.runtime.summary import Fallback


def drawn(*views: RenderableType) -> str:
    out = io.StringIO()
    for view in views:
        console_on(out).print(view)
    return " ".join(out.getvalue().split())


def row(name: str, device: str, reason: str = "", hint: str = "") -> dict[str, object]:
    return {
        "name": name,
        "op_type": "Relu",
        "device": device,
        "part": f"{device}_par_0",
        "reason": reason,
        "hint": hint,
    }


def nodes(rows: Sequence[dict[str, object]], *, every_node: bool = False) -> str:
    return drawn(*nodes_view(rows, "npu", every_node=every_node))


def test_supported_offloaded_and_ran_are_three_columns() -> None:
    text = drawn(summary_view(bundles.small_summary(), ran="not compiled"))
    assert text.startswith("model supported offloaded ran operators 3 3 (100.0%) 2 (66.7%) not")
    assert "subgraphs 1 1" in text
    assert "failed to compile" not in text


def test_subgraphs_that_were_lost_have_their_cause() -> None:
    summary = replace(bundles.small_summary(), fallback=Fallback(1, 2, 3))
    text = drawn(summary_view(summary, ran="CPU"))
    assert "-1 failed to compile" in text
    assert "-2 below 20% of GOPs" in text
    assert "-3 above 7 subgraphs" in text


def test_a_model_without_work_divides_by_nothing() -> None:
    empty = replace(
        bundles.small_summary(), gops=0.0, supported_gops=0.0, offloaded_gops=0.0, operators=0
    )
    assert "0 (0.0%)" in drawn(summary_view(empty, ran="CPU"))


def test_nodes_with_one_reason_are_one_line() -> None:
    rows = [row(f"n{at}", "cpu", "too small", "merge it") for at in range(3)]
    rows += [row("odd", "cpu", "unknown", "replace it"), row("fine", "npu")]
    text = nodes(rows)
    assert "3 too small merge it" in text
    assert "1 unknown replace it" in text
    assert "fine" not in text
    assert text.index("too small") < text.index("unknown"), "the commonest first"


def test_many_reasons_are_cut_and_counted() -> None:
    text = nodes([row(f"n{at}", "cpu", f"reason {at}", "hint") for at in range(20)])
    assert "8 8 more reasons see `--nodes`" in text
    assert "reason 11" in text
    assert "reason 12" not in text


def test_every_node_where_it_is_asked_for() -> None:
    text = nodes([row("a", "cpu", "why"), row("b", "npu")], every_node=True)
    assert "a Relu cpu cpu_par_0 why" in text
    assert "b Relu npu npu_par_0" in text


def test_nothing_stays_behind() -> None:
    assert nodes([row("a", "npu")]) == "every node is placed on the NPU"


def test_brackets_in_names_are_no_style() -> None:
    assert "[red]x[/red]" in nodes([row("[red]x[/red]", "cpu", "why")], every_node=True)


PRELU = """(float[1,8,16,16] x, float[8,8,3,3] w, float[8,1,1] s) => (float[1,8,16,16] y) {
    a = Conv<pads=[1,1,1,1]>(x, w)
    b = PRelu(a, s)
    c = Conv<pads=[1,1,1,1]>(b, w)
    d = Softplus(c)
    y = Conv<pads=[1,1,1,1]>(d, w)
}"""


def prelu_model() -> ir.Model:
    return parse(PRELU, w=0.1 * weight(8, 8, 3, 3), s=weight(8, 1, 1))


def test_a_plan_shows_time_transfers_and_what_a_fix_gains(
    vermilion: Command, tmp_path: Path
) -> None:
    ir.save(prelu_model(), tmp_path / "m.onnx")
    done = vermilion("inspect", tmp_path / "m.onnx", "--target", "strix")
    assert done.code == 0
    assert "no latency is modelled: it has" in done.words
    assert "the published BF16 networks of Ryzen AI 1.7 have 0.772 to 78.9" in done.words
    assert (
        "transfers 3 parts on the device; 4 tensors, 0.03 MB between it and the CPU in a run"
        in done.words
    )
    assert "ms for the whole model, measured now" in done.words
    assert "--fix write-attributes, replace-prelu: 3 → 7 of 8 operators offloaded" in done.words
    assert wide_enough(done.out)


def test_every_chip_in_one_table(vermilion: Command, tmp_path: Path) -> None:
    ir.save(resnet18(image=64), tmp_path / "m.onnx")
    done = vermilion("inspect", tmp_path / "m.onnx", "--target", "all")
    assert done.code == 0
    rows = {line.split()[0]: line for line in done.out.splitlines() if line.strip()}
    assert {"phoenix", "strix", "krackan", "ve2"} <= set(rows)
    assert "49 of 49" in rows["strix"]
    assert "not known" in rows["ve2"]
    assert "0 of 49" in rows["phoenix"]
    assert " ms, " in rows["strix"], "with its interval"
    assert "krackan: no latency is modelled: no latencies are published" in done.words
    assert wide_enough(done.out)


def test_a_latency_stands_with_its_interval(vermilion: Command, tmp_path: Path) -> None:
    ir.save(resnet18(image=160), tmp_path / "m.onnx")
    data = vermilion("inspect", tmp_path / "m.onnx", "--target", "strix", "--json").data
    latency = data["latency"]
    shares = ("compute_dense_ms", "compute_depthwise_ms", "traffic_ms", "dispatch_ms")
    assert sum(latency[key] for key in shares) == pytest.approx(latency["modelled_ms"])
    assert latency["errors"]["resnet18"] == pytest.approx(0.01)
    assert data["predicted_interval_ms"] == [latency["low_ms"], latency["high_ms"]]
    assert latency["low_ms"] < data["predicted_ms"] < latency["high_ms"]
    words = f"{latency['modelled_ms']:.2f} ms, {latency['low_ms']:.2f} to {latency['high_ms']:.2f}"
    done = vermilion("inspect", tmp_path / "m.onnx", "--target", "strix")
    assert f"modelled latency on the device: {words} ms" in done.words
    assert "Networks left out of the fit came out ±44% in the middle, minilm-l6 +227%" in done.words
    assert "holds another such network with a probability of 67%" in done.words


def test_the_plan_as_json(vermilion: Command, tmp_path: Path) -> None:
    ir.save(prelu_model(), tmp_path / "m.onnx")
    data = vermilion("inspect", tmp_path / "m.onnx", "--target", "strix", "--json").data
    assert data["predicted_is"] == "modelled"
    assert (data["latency"], data["predicted_ms"]) == (None, None)
    assert data["predicted_reason"]
    assert data["crossings"] == {"tensors": 4, "bytes": 4 * 8 * 16 * 16 * 4}
    assert data["fix"]["fixes"] == ["write-attributes", "replace-prelu"]
    assert data["cpu_is"] == "measured"
    every = vermilion("inspect", tmp_path / "m.onnx", "--target", "all", "--json").data
    names = [row["target"] for row in every["targets"]]
    assert names == ["phoenix", "strix", "krackan", "ve2"]


def test_fixes_are_applied_and_listed_when_compiling(vermilion: Command, tmp_path: Path) -> None:
    ir.save(prelu_model(), tmp_path / "m.onnx")
    arguments = ["compile", tmp_path / "m.onnx", "--target", "strix", "--json"]
    plain = vermilion(*arguments).data
    fixed = vermilion(*arguments, "--fix").data
    assert fixed["cache_key"] != plain["cache_key"]
    assert plain["summary"]["offloaded_operators"] == 3
    assert fixed["summary"]["offloaded_operators"] == 7
    passes = {row["name"]: row["fired"] for row in fixed["passes"]}
    assert passes["fix replace-prelu"] == 1
    assert passes["fix compare-outputs"] == 1
    assert fixed["offload_is"] == "modelled"
    proof = fixed["verification"]["outputs"][0]
    assert proof["modelled_in"] == "bf16"
    assert proof["cosine"] == pytest.approx(1.0, abs=1e-4)


def test_a_batch_on_phoenix_is_unrolled(vermilion: Command, tmp_path: Path) -> None:
    text = """(float[4,8,16,16] x, float s, uint8 z, float[8,8,3,3] w) => (float[4,8,16,16] y) {
        q = QuantizeLinear(x, s, z)
        a = DequantizeLinear(q, s, z)
        b = Conv<pads=[1,1,1,1]>(a, w)
        c = QuantizeLinear(b, s, z)
        d = DequantizeLinear(c, s, z)
        e = Conv<pads=[1,1,1,1]>(d, w)
        f = QuantizeLinear(e, s, z)
        y = DequantizeLinear(f, s, z)
    }"""
    model = parse(text, w=0.1 * weight(8, 8, 3, 3), s=np.float32(0.0625), z=np.array(128, np.uint8))
    ir.save(model, tmp_path / "m.onnx")
    plan = inspect_model(tmp_path / "m.onnx", target="phoenix").prediction
    assert plan is not None
    assert plan.summary.offloaded_operators == 0
    assert plan.fix is not None
    assert "unroll-batch" in plan.fix.fixes
    assert plan.fix.offloaded_gops > 0.95 * plan.summary.gops
    arguments = ["compile", tmp_path / "m.onnx", "--target", "phoenix", "--fix", "--json"]
    done = vermilion(*arguments, "--min-offload", "gops=95%")
    assert done.code == 0, done.err
    assert done.data["summary"]["subgraphs_offloaded"] == 4


def test_what_has_failed_elsewhere_is_said(tmp_path: Path) -> None:
    text = """(float[6,1,4] x, float[1,32,4] w, float[1,32,8] r) => (float[6,1,1,8] y) {
        y = LSTM<hidden_size=8>(x, w, r)
    }"""
    model = parse(text, w=weight(1, 32, 4), r=weight(1, 32, 8))
    plan = inspect_model(model, target="strix").prediction
    assert plan is not None
    assert plan.summary.offloaded_operators == 1
    assert "issues/394" in plan.cautions[0]


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("ocr-det", {"x": (1, 3, 320, 320)}),
        ("ocr-rec", {"x": (1, 3, 48, 320)}),
        ("ocr-cls", {"x": (1, 3, 48, 192)}),
        ("nsfw", {}),
    ],
)
def test_real_models_are_planned_for_every_chip(name: str, dims) -> None:
    found = inspect_model(package_model_path(name), target="all", dims=dims)
    plans = {plan.target.name: plan for plan in found.predictions}
    strix = plans["strix"]
    if name == "nsfw":
        assert strix.fix is not None
        assert strix.fix.offloaded_operators == strix.fix.operators
        assert "freeze-batch" in strix.fix.fixes
    else:
        assert strix.summary.offloaded_operators == strix.summary.operators
        assert (strix.latency is None) == (name == "ocr-cls"), "a quarter of the smallest one"
    for node in plans["phoenix"].placement.nodes:
        assert "this model is fp32" in node.reason


def test_an_open_model_is_planned_too(tmp_path: Path) -> None:
    plan = inspect_model(small_cnn(batch="batch"), target="strix", measure_cpu=True)
    assert plan.cpu_ms is None
    assert plan.prediction is not None
    assert plan.prediction.fix is not None
    assert plan.prediction.fix.fixes[0] == "freeze-batch"
