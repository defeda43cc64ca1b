from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from models import mobilenet, small_cnn
from vermilion import compare
from vermilion.api import compile_model
from vermilion.compare import DIVERGED_DB, compare_sides
from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.ir.measure import EXACT_DB
from vermilion.sides import Side, onnx_side, open_reference, open_side

HEADER = '<ir_version: 9, opset_import: ["" : 17]>\n'
TWO = "g (float[2,3] x) => (float[2,3] y, float[2,3] z) { [a] y = Relu (x) [b] z = Neg (y) }"


def parse(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(HEADER + text))


def side(text: str, label: str = "m.onnx") -> Side:
    return onnx_side(label, parse(text))


def test_a_model_equals_itself() -> None:
    told: list[tuple[str, int, int]] = []
    found = compare_sides(side(TWO), side(TWO), runs=3, progress=lambda *step: told.append(step))
    assert [(a.name, a.sqnr_db) for a in found.outputs] == [("y", EXACT_DB), ("z", EXACT_DB)]
    assert [(x.agreement.name, x.op_type) for x in found.layers] == [("y", "Relu"), ("z", "Neg")]
    assert found.first_divergence is None
    assert found.worst_sqnr_db == EXACT_DB
    for latency in found.latencies:
        assert latency.runs == 3
        assert 0 < latency.min_ms <= latency.median_ms <= latency.max_ms
    assert {stage for stage, _, _ in told} == {"compare outputs", "compare layers", "time"}


def test_the_first_divergence_is_where_a_copy_was_broken() -> None:
    broken = mobilenet()
    name = "block1.depthwise/Conv"
    node = next(node for node in broken.graph if node.name == name)
    weight = node.inputs[1]
    assert weight is not None
    assert weight.const_value is not None
    weight.const_value = ir.Tensor(-weight.const_value.numpy(), name=weight.name)
    found = compare_sides(onnx_side("whole", mobilenet()), onnx_side("broken", broken), runs=0)
    first = found.first_divergence
    assert first is not None
    assert (first.agreement.name, first.op_type) == (f"{name}_output", "Conv")
    assert first.agreement.cosine == pytest.approx(-1.0, abs=0.3)
    before = found.layers[: found.layers.index(first)]
    assert len(before) > 5
    assert all(layer.agreement.sqnr_db > DIVERGED_DB for layer in before)
    assert found.worst_sqnr_db < DIVERGED_DB
    assert found.latencies[0].runs == 0


def test_names_may_differ_when_there_are_as_many() -> None:
    other = "g (float[2,3] in) => (float[2,3] p, float[2,3] q) { p = Relu (in) q = Neg (p) }"
    found = compare_sides(side(TWO), side(other), {"x": np.ones((2, 3), np.float32)}, runs=1)
    assert [(a.name, a.sqnr_db) for a in found.outputs] == [("y", EXACT_DB), ("z", EXACT_DB)]
    assert found.layers == (), "no layer has the same name"


def test_outputs_in_another_order_are_paired_by_name() -> None:
    other = "g (float[2,3] x) => (float[2,3] z, float[2,3] y) { y = Relu (x) z = Neg (y) }"
    found = compare_sides(side(TWO), side(other), runs=0)
    assert all(a.sqnr_db == EXACT_DB for a in found.outputs)


def test_another_number_of_outputs_with_other_names_cannot_be_paired() -> None:
    other = side("g (float[2,3] x) => (float[2,3] q) { q = Relu (x) }", "one.onnx")
    with pytest.raises(ModelError, match=r"m\.onnx has y, z; one\.onnx has q"):
        compare_sides(side(TWO), other)


def test_outputs_of_another_shape() -> None:
    text = "g (float[2,3] x) => (float[3,2] y, float[2,3] z) { y = Transpose (x) z = Neg (x) }"
    with pytest.raises(
        ModelError, match=r"`y` has shape \(2, 3\) in m\.onnx and \(3, 2\)"
    ) as error:
        compare_sides(side(TWO), side(text, "other.onnx"))
    assert "--dim" in error.value.hint


def test_layers_of_another_shape_are_passed_over() -> None:
    text = """g (float[2,3] x) => (float[2,3] y, float[2,3] z) {
      a = Transpose (x) b = Relu (a) y = Transpose (b) z = Neg (y) }"""
    straight = """g (float[2,3] x) => (float[2,3] y, float[2,3] z) {
      a = Neg (x) y = Relu (x) z = Neg (y) }"""
    found = compare_sides(side(straight), side(text), runs=0)
    assert [layer.agreement.name for layer in found.layers] == ["y", "z"]


def test_inputs_that_do_not_fit_name_the_side() -> None:
    other = side(
        "g (float[2,4] x) => (float[2,4] y, float[2,4] z) { y = Relu (x) z = Neg (x) }", "b"
    )
    with pytest.raises(OptionError, match="has shape 2×3, the model wants 2×4") as error:
        compare_sides(side(TWO, "a"), other)
    assert error.value.where == "b"
    with pytest.raises(OptionError, match="the model has no input `w`") as error:
        compare_sides(side(TWO, "a"), side(TWO, "b"), {"w": np.ones((2, 3), np.float32)})
    assert error.value.where == "a"
    double = {"x": np.ones((2, 3))}
    with pytest.raises(OptionError, match="is float64, the model wants float32"):
        compare_sides(side(TWO, "a"), side(TWO, "b"), double)
    two = TWO.replace("(float[2,3] x)", "(float[2,3] x, float[2,3] w)")
    with pytest.raises(OptionError, match="the inputs differ: a takes x; b takes x, w"):
        compare_sides(side(TWO, "a"), side(two, "b"))


def test_many_layers_are_fetched_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = compare_sides(onnx_side("a", mobilenet()), onnx_side("b", mobilenet()), runs=0)
    monkeypatch.setattr(compare, "TAP_BYTES", 5000)
    pieces = compare_sides(onnx_side("a", mobilenet()), onnx_side("b", mobilenet()), runs=0)
    assert pieces.layers == whole.layers
    assert len(whole.layers) == len(list(mobilenet().graph))


@pytest.mark.parametrize("form", ["folder", "rai", "@strix"])
def test_compiled_models_against_the_file(form: str, tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    ir.save(small_cnn(bn=True), file)
    cache = tmp_path / "cache"
    if form == "@strix":
        other = open_side(f"{file}@strix", cache_dir=cache)
        assert (other.label, other.modelled) == ("m.onnx@strix", True)
        assert "modelled" in other.runs_on
    else:
        rai = tmp_path / "m.rai" if form == "rai" else None
        compiled = compile_model(file, cache_dir=cache, output=rai)
        other = open_side(str(compiled.artifact))
        assert not other.modelled
    found = compare_sides(open_reference(str(file), other), other, runs=1)
    assert found.reference.placement == "8 of 8 operators native"
    # What is modelled is computed in the chip's bfloat16.
    assert found.outputs[0].cosine > (0.9999 if form == "@strix" else 0.999999)
    assert found.layers, "the layers that kept their names"
    worst = min(layer.agreement.sqnr_db for layer in found.layers)
    assert (worst < 70.0) == (form == "@strix"), "layers too have the chip's roundings"
    assert found.first_divergence is None


def test_sample_inputs_have_the_sizes_that_were_bound(tmp_path: Path) -> None:
    model = small_cnn(batch="batch")
    compiled = compile_model(model, dims={"batch": 3}, cache_dir=tmp_path)
    found = compare_sides(onnx_side("m", model), open_side(str(compiled.artifact)), runs=1)
    assert found.worst_sqnr_db > 100


def test_the_sample_is_one_that_the_reference_takes() -> None:
    text = """g (int64[2] a, int64[2] b, float[4,6] x, int64[2] s) => (int64[2] y, float[m,k] z)
    { two = Constant <value_int = 2> () q = Div (b, two) y = Div (a, q) z = Reshape (x, s) }"""
    assert compare_sides(side(text), side(text), runs=1).worst_sqnr_db == EXACT_DB


def test_a_model_that_runs_on_no_sample_says_why() -> None:
    text = (
        "g (float[2] x) => (float[2] y) { s = Constant <value_ints = [3]> () y = Reshape (x, s) }"
    )
    with pytest.raises(UnsupportedError, match="none of 16 samples is accepted: running the model"):
        compare_sides(side(text), side(text), runs=1)
