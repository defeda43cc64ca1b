"""Models whose results are maps: compiled, run and described as ONNX Runtime does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from commands import Command
from vermilion.api import compile_model
from vermilion.errors import UnsupportedError
from vermilion.ir.load import load_model
from vermilion.ir.value_files import read_values

PROBABILITIES = helper.make_sequence_type_proto(
    helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, []))
)


def classifier() -> onnx.ModelProto:
    """Return what skl2onnx makes of a logistic regression, behind a layer that is native."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18, "ai.onnx.ml": 3]> g (float[N, 3] x) => (int64[N] y)'
        "{ a = Relu (x) "
        "y, p = ai.onnx.ml.LinearClassifier <coefficients = [0.1, 0.2, 0.3, -0.1, -0.2, -0.3], "
        'intercepts = [0.0, 0.1], classlabels_ints = [0, 1], post_transform = "SOFTMAX"> (a) '
        "maps = ai.onnx.ml.ZipMap <classlabels_int64s = [0, 1]> (p) }"
    )
    model.graph.output.append(helper.make_value_info("maps", PROBABILITIES))
    return model


def test_a_classifier_that_gives_maps_runs_as_in_onnx_runtime(tmp_path: Path) -> None:
    model = classifier()
    before = model.SerializeToString()
    compiled = compile_model(model, cache_dir=tmp_path)
    assert model.SerializeToString() == before
    session = compiled.session()
    theirs = ort.InferenceSession(before, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32)
    labels, maps = session.run(None, {"x": x})
    expected = theirs.run(None, {"x": x})
    assert np.array_equal(labels, expected[0])
    assert maps == expected[1]
    assert [o.type for o in session.get_outputs()] == [o.type for o in theirs.get_outputs()]
    assert "1 of 3 operators native" in compiled.placement


def test_maps_are_written_and_read_again(tmp_path: Path, vermilion: Command) -> None:
    onnx.save(classifier(), tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    done = vermilion(
        "run", tmp_path / "m.onnx", "--input", f"x={tmp_path / 'x.npy'}", "--output",
        tmp_path / "y.npz",
    )  # fmt: skip
    assert done.code == 0, done.err
    maps = read_values(tmp_path / "y.npz")["maps"]
    assert isinstance(maps, list)
    assert [sorted(row) for row in maps] == [[0, 1], [0, 1]]


def test_an_input_that_is_a_map_is_refused() -> None:
    model = classifier()
    model.graph.input.append(helper.make_value_info("words", PROBABILITIES))
    with pytest.raises(UnsupportedError, match="input `words` is a map"):
        load_model(model)
