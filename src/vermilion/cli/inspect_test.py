from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from commands import Command, wide_enough
from models import mobilenet, package_model_path, resnet18, small_cnn


def test_resnet_18_on_ve2_for_people(vermilion: Command, tmp_path: Path) -> None:
    ir.save(resnet18(bn=True), tmp_path / "resnet18.onnx")
    done = vermilion("inspect", tmp_path / "resnet18.onnx", "--target", "ve2")
    assert done.code == 0
    assert "operators 49 (in the file: 69 nodes)" in done.words
    assert "Conv 20 3.6" in done.words
    assert "placement on ve2, by rule: nothing was compiled" in done.out
    assert "operators 49 49 (100.0%) 49 (100.0%) not compiled" in done.words
    assert "subgraphs 1 1" in done.words
    assert "every node is placed on the NPU" in done.out
    assert "modelled latency" not in done.out, "nothing was published for this chip"
    assert wide_enough(done.out)


def test_without_a_target_nothing_is_placed(vermilion: Command, tmp_path: Path) -> None:
    ir.save(small_cnn(), tmp_path / "m.onnx")
    done = vermilion("inspect", tmp_path / "m.onnx")
    assert done.code == 0
    assert str(tmp_path / "m.onnx") in done.out.replace("\n", "").replace(" ", "")
    assert "opset 17, from vermilion tests" in done.words
    assert "data type fp32 (float32)" in done.words
    assert "placement" not in done.out


def test_many_kinds_of_operators_are_summed_up(vermilion: Command) -> None:
    file = package_model_path("ocr-rec")
    done = vermilion("inspect", file, "--dim", "x=1x3x48x320")
    assert "more kinds" in done.out
    assert "at least" not in done.out


def test_open_dimensions_get_options_that_bind_them(vermilion: Command, tmp_path: Path) -> None:
    ir.save(small_cnn(batch="batch"), tmp_path / "m.onnx")
    done = vermilion("inspect", tmp_path / "m.onnx")
    assert "at least: dynamic dimensions count as 1" in done.words
    assert "dynamic batch; fix with --dim batch=…" in done.words
    # Where a dimension has no name, only the whole input can be named.
    nameless = vermilion("inspect", package_model_path("ocr-rec"), "--target", "strix").words
    assert "--dim x=…x3x…x…" in nameless
    assert "strix needs fixed shapes" in nameless
    assert " ?, " not in nameless


def test_the_summary_as_a_file(vermilion: Command, tmp_path: Path) -> None:
    ir.save(mobilenet(), tmp_path / "m.onnx")
    place = tmp_path / "made" / "summary.txt"
    done = vermilion("inspect", tmp_path / "m.onnx", "-t", "strix", "--summary", place)
    assert done.code == 0
    assert place.read_text(encoding="utf-8").startswith("--------- Final Summary of VAIML Pass")
    refused = vermilion("inspect", tmp_path / "m.onnx", "--summary", place)
    assert refused.code == 2
    assert "`--summary` needs a target" in refused.err


def test_operators_without_a_price_are_warned_about(vermilion: Command, tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[1,4,4,4] x, float[2,5] r) => (float[2,4,1,1] y) {
      y = MaxRoiPool <pooled_shape = [1, 1]> (x, r) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    done = vermilion("inspect", tmp_path / "m.onnx", "--json")
    assert done.code == 0
    assert done.data["unpriced_operators"] == ["MaxRoiPool"]
    assert "no rule for `MaxRoiPool`" in done.data["warnings"][0]


def test_for_machines(vermilion: Command, tmp_path: Path) -> None:
    ir.save(mobilenet(), tmp_path / "m.onnx")
    data = vermilion("inspect", tmp_path / "m.onnx", "--target", "strix", "--json").data
    assert (data["target"], data["predicted_is"]) == ("strix", "modelled")
    assert len(data["nodes"]) == data["operators"] == data["summary"]["operators"]
    for row in data["nodes"]:
        assert row["device"] == "npu" or (row["reason"] and row["hint"])


def written(folder: Path, text: str) -> Path:
    onnx.save(onnx.parser.parse_model(text), folder / "m.onnx")
    return folder / "m.onnx"


def test_thousands_of_inputs_are_counted(vermilion: Command, tmp_path: Path) -> None:
    names = [f"x{number}" for number in range(300)]
    inputs = ", ".join(f"float[2] {name}" for name in names)
    model = written(
        tmp_path,
        f'<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => (float[2] y) '
        f"{{ y = Sum ({', '.join(names)}) }}",
    )
    done = vermilion("inspect", model)
    assert done.out.count("tensor(float)") == 12 + 1
    assert "288 more; `--json` lists them" in done.out
    assert len(vermilion("inspect", model, "--json").data["inputs"]) == 300


def test_small_and_empty_graphs(vermilion: Command, tmp_path: Path) -> None:
    head = '<ir_version: 8, opset_import: ["" : 17]> g (float[2,3] x) => '
    done = vermilion("inspect", written(tmp_path, head + "(float[2,3] y) { y = Relu (x) }"))
    assert "17, of an unknown producer" in done.words
    assert "operators 1 (in the file: 1 node)" in done.words
    assert "Relu 1 0.000000006000 100.0%" in done.words
    model = written(tmp_path, head + "(float[2,3] x) {}")
    assert "the graph has no operators" in vermilion("inspect", model).out
    done = vermilion("compile", model)
    assert done.out.endswith("the graph has no nodes\n")
    assert "ran in " in vermilion("run", model).out
    assert vermilion("view", model, "-o", tmp_path / "v.html").out.endswith("m.onnx: 0 nodes\n")
