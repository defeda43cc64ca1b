from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from models import resnet18, resnet50, small_cnn
from vermilion.errors import OptionError, UnsupportedError
from vermilion.inspection import inspect_model


@pytest.mark.parametrize(
    ("build", "operators", "gops"),
    # Source: the summaries in AMD's public Versal AI Edge Gen 2 tutorials.
    [(lambda: resnet18(bn=True), 49, 3.64388), (resnet50, 122, 7.76806)],
    ids=["resnet18 with batch norms", "resnet50 v1"],
)
def test_published_networks_on_ve2(build, operators: int, gops: float) -> None:  # type: ignore[no-untyped-def]
    found = inspect_model(build(), target="ve2")
    assert found.prediction is not None
    summary = found.prediction.summary
    assert summary.operators == summary.offloaded_operators == operators
    assert summary.gops == pytest.approx(gops, rel=0.005)
    assert summary.offloaded_gops == pytest.approx(summary.gops)
    assert (summary.subgraphs_supported, summary.subgraphs_offloaded) == (1, 1)
    text = summary.to_text()
    assert f"Number of operators offloaded by VAIML: {operators} (100.000%)" in text
    assert "(100.000%)  OPs:" in text
    assert found.prediction.milliseconds is None, "nothing is published to fit to"


def test_what_is_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    ir.save(small_cnn(bn=True, batch="batch"), file)
    found = inspect_model(file)
    assert found.path == str(file.resolve())
    assert (found.opset, found.producer) == (17, "vermilion tests")
    assert (found.number_format, found.data_type) == ("fp32", "float32")
    assert [(t.name, t.type, t.shape) for t in found.inputs] == [
        ("input", "tensor(float)", ("batch", 3, 16, 16))
    ]
    assert [t.name for t in found.outputs] == ["output"]
    assert (found.nodes_before, len(found.cost.nodes)) == (10, 8)
    # 8·3·9 + 8, 16·8·9 + 16, 10·16 + 10: the batch norms are folded into the weights.
    assert found.parameters == 224 + 1168 + 170
    assert found.weight_bytes == 4 * found.parameters
    assert found.open_dimensions == ("batch",)
    assert not found.cost.exact
    assert found.prediction is None
    assert found.operators[0].op_type == "Conv"
    assert found.operators[0].count == 2
    assert sum(share.gops for share in found.operators) == pytest.approx(found.cost.gops)


def test_json_for_machines() -> None:
    plain = inspect_model(small_cnn()).as_json()
    assert plain["gops_exact"] is True
    assert "target" not in plain
    full = inspect_model(small_cnn(), target="strix").as_json()
    assert full["model"] == "(in memory)"
    assert full["predicted_is"] == "modelled"
    assert (full["predicted_ms"], full["predicted_interval_ms"]) == (None, None)
    assert "the published BF16 networks of Ryzen AI 1.7 have" in str(full["predicted_reason"])
    nodes = full["nodes"]
    assert isinstance(nodes, list)
    assert {"name", "op_type", "device", "reason", "hint", "supported"} <= set(nodes[0])
    passes = full["passes"]
    assert isinstance(passes, list)
    assert {"name": "compare-outputs", "fired": 1, "refused": 0} in passes


def test_dimensions_are_bound_first() -> None:
    found = inspect_model(small_cnn(batch="batch"), dims={"batch": 3}, target="strix")
    assert found.open_dimensions == ()
    assert found.inputs[0].shape == (3, 3, 16, 16)
    assert found.cost.operations == pytest.approx(3 * inspect_model(small_cnn()).cost.operations)


def test_operators_of_other_domains_have_sizes_and_prices() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[1,2,8] x) => (float[1,2,8] y)
    <int64[1] at = {0}, float[2,4] c = {1,1,1,1,1,1,1,1}, float[2,4] s = {0,0,0,0,0,0,0,0}> {
      a = com.microsoft.RotaryEmbedding (x, at, c, s) y = Neg (a) }"""
    found = inspect_model(ir.from_proto(onnx.parser.parse_model(text)), target="strix")
    assert found.cost.exact
    assert found.cost.operations == 16 * 3 + 16
    assert found.prediction is not None
    away = {node.op_type: node for node in found.prediction.placement.nodes}["RotaryEmbedding"]
    assert away.device == "cpu"
    assert away.hint


def test_wrong_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vermilion.backends.iree.toolchain.PACKAGES", ("no-such-compiler",))
    with pytest.raises(OptionError, match="unknown target `strx`"):
        inspect_model(small_cnn(), target="strx")
    with pytest.raises(UnsupportedError, match="nothing here compiles for gfx942"):
        inspect_model(small_cnn(), target="gfx942")
