from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from models import small_cnn
from vermilion.api import compile_model
from vermilion.compare import compare_sides
from vermilion.errors import OptionError, UnsupportedError
from vermilion.sides import onnx_side, open_reference, open_side, read_graph, split_place

# The standard broadcasts the mask, and ONNX Runtime's kernel does not.
MASKED = """<ir_version: 11, opset_import: ["" : 23]>
g (float[1,2,3,4] q, float[1,2,3,4] k, bool[1,1,1,3] m) => (float[1,2,3,4] y) {
  y = Attention (q, k, k, m) }"""


@pytest.fixture
def cnn(tmp_path: Path) -> Path:
    ir.save(small_cnn(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def masked(folder: Path) -> Path:
    onnx.save(onnx.parser.parse_model(MASKED), folder / "masked.onnx")
    return folder / "masked.onnx"


def masked_inputs() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0).standard_normal
    q, k = (draw((1, 2, 3, 4), dtype=np.float32) for _ in range(2))
    return {"q": q, "k": k, "m": np.array([[[[True, False, True]]]])}


def test_a_model_alone_is_compiled_for_this_cpu(cnn: Path, tmp_path: Path) -> None:
    image = {"input": np.ones((1, 3, 16, 16), np.float32)}
    found = {}
    for place in ("", "@cpu", "@onnxruntime", "@ort", "@literal"):
        side = open_side(f"{cnn}{place}", cache_dir=tmp_path / "cache", threads=1)
        found[place] = side.run(image)["output"]
        assert side.label == f"m.onnx{place}"
        assert ("native code" in side.runs_on) == (place in ("", "@cpu"))
        assert (side.placement == "8 of 8 operators native") == (place in ("", "@cpu"))
    assert ", 1 thread)" in open_side(str(cnn), cache_dir=tmp_path / "cache", threads=1).runs_on
    assert np.array_equal(found[""], found["@cpu"])
    for other in found.values():
        np.testing.assert_allclose(other, found[""], rtol=1e-4, atol=1e-5)


def test_what_is_expected_of_a_file_is_its_literal_run(tmp_path: Path) -> None:
    file, cache = masked(tmp_path), tmp_path / "cache"
    given = masked_inputs()
    with pytest.raises(UnsupportedError, match="attn_mask"):
        open_side(f"{file}@onnxruntime").run(given)
    other = open_side(str(compile_model(file, cache_dir=cache).artifact))
    for timed in (True, False):
        reference = open_reference(str(file), other, timed=timed, cache_dir=cache)
        found = compare_sides(reference, other, given, runs=int(timed))
        assert found.worst_sqnr_db > 100
        assert ("literal" in reference.runs_on) != timed
        assert (reference.expected is not None) == timed


def test_a_reference_that_is_no_file_is_what_it_computes(cnn: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    compiled = compile_model(cnn, cache_dir=cache)
    other = open_side(str(compiled.artifact))
    for what in (str(compiled.artifact), f"{cnn}@cpu"):
        reference = open_reference(what, other, cache_dir=cache)
        assert reference.expected is None
        assert "native code" in reference.runs_on


def test_a_reference_with_open_sizes_is_compiled_in_those_of_the_other(tmp_path: Path) -> None:
    ir.save(small_cnn(batch="n"), tmp_path / "m.onnx")
    cache = tmp_path / "cache"
    compiled = compile_model(tmp_path / "m.onnx", dims={"n": 2}, cache_dir=cache)
    other = open_side(str(compiled.artifact))
    reference = open_reference(str(tmp_path / "m.onnx"), other, cache_dir=cache)
    assert reference.placement == "8 of 8 operators native"
    assert compare_sides(reference, other, runs=1).worst_sqnr_db > 100


def test_an_input_with_a_default_may_be_left_out_or_given() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1.0, 2.0}> { y = Add (x, w) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    assert len(model.graph.inputs) == 2
    one = onnx_side("m", model)
    x = np.zeros(2, np.float32)
    np.testing.assert_array_equal(one.run({"x": x})["y"], [1, 2])
    np.testing.assert_array_equal(one.run({"x": x, "w": x})["y"], [0, 0])


def test_dimensions_are_bound_on_a_side(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    ir.save(small_cnn(batch="n"), file)
    assert read_graph(str(file), {"n": 2}).graph.inputs[0].shape == ir.Shape((2, 3, 16, 16))
    bound = open_side(str(file), dims={"n": 2}, cache_dir=tmp_path / "cache")
    assert bound.run({"input": np.zeros((2, 3, 16, 16), np.float32)})["output"].shape == (2, 10)
    with pytest.raises(OptionError, match="wants 2×3×16×16"):
        bound.run({"input": np.zeros((1, 3, 16, 16), np.float32)})


@pytest.mark.parametrize("what", ["none.onnx", "none.rai", "none", "none.onnx@strix"])
def test_what_is_not_there_is_wrong_use(what: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no such model"):
        open_side(str(tmp_path / what), cache_dir=tmp_path / "cache")


def test_a_place_of_what_is_compiled_is_wrong_use(tmp_path: Path) -> None:
    (tmp_path / "m.rai").write_bytes(b"")
    with pytest.raises(OptionError, match="compiled already"):
        split_place(f"{tmp_path / 'm.rai'}@strix")
    named = tmp_path / "odd@strix"  # a file may be called so
    named.write_bytes(b"")
    assert split_place(str(named)) == (named, "")
