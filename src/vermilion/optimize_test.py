from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from commands import Command, wide_enough
from models import small_cnn, transformer_block
from vermilion.errors import OptionError, UnsupportedError
from vermilion.ir.load import load_model
from vermilion.optimize import optimize_transformer

pytestmark = pytest.mark.needs("sympy")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ir.save(transformer_block(batch="batch"), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_fused_and_proven(vermilion: Command, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "f.onnx"
    done = vermilion("optimize", model, "-o", output, "--heads", "4", "--width", "64", "--json")
    assert done.code == 0, done.err
    assert done.data["fused"]["BiasGelu"] == 1
    assert done.data["nodes_after"] < done.data["nodes_before"]
    assert done.data["outputs"][0]["sqnr_db"] > 70
    operators = {(node.domain, node.op_type) for node in load_model(output).graph}
    assert ("com.microsoft", "BiasGelu") in operators
    assert ("", "Erf") not in operators


def test_for_people_in_float16(vermilion: Command, model: Path, tmp_path: Path) -> None:
    output = tmp_path / "f.onnx"
    done = vermilion("optimize", model, "-o", output, "-p", "fp16")
    assert done.code == 0, done.err
    assert "1 BiasGelu" in done.words
    assert "compared with the model as it came" in done.words
    assert wide_enough(done.out, 200)
    floats = {value.dtype for value in load_model(output).graph.initializers.values()}
    assert ir.DataType.FLOAT16 in floats


def test_what_is_no_transformer_is_left_as_it_is(vermilion: Command, tmp_path: Path) -> None:
    ir.save(small_cnn(), tmp_path / "cnn.onnx")
    done = vermilion("optimize", tmp_path / "cnn.onnx", "-o", tmp_path / "f.onnx", "--json")
    assert done.code == 0
    assert done.data["fused"] == {}
    assert "nothing was fused" in done.data["warnings"][0]


def test_a_result_that_is_too_far_off_is_not_written(
    vermilion: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vermilion.optimize.LEAST_DB", {"fp32": 70.0, "fp16": 199.0})
    done = vermilion("optimize", model, "-o", tmp_path / "f.onnx", "-p", "fp16", "--json")
    assert done.code == 1
    assert "nothing was written" in done.data["warnings"][-1]
    assert not (tmp_path / "f.onnx").exists()


def test_wrong_use(model: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="`yolo` is not known"):
        optimize_transformer(model, tmp_path / "f.onnx", kind="yolo")
    with pytest.raises(OptionError, match="`int4` is not known"):
        optimize_transformer(model, tmp_path / "f.onnx", precision="int4")
    with pytest.raises(OptionError, match="would replace the model"):
        optimize_transformer(model, model)
    with pytest.raises(OptionError, match=r"does not end in \.onnx"):
        optimize_transformer(model, tmp_path / "f.txt")
    for heads, width in ((-1, 0), (0, -1), (3, 64)):
        with pytest.raises(OptionError, match="heads of one size"):
            optimize_transformer(model, tmp_path / "f.onnx", heads=heads, width=width)


def test_an_optimizer_that_fails_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setattr(
        "vermilion.optimize._OPTIMIZER", (sys.executable, "-c", "import no_such_package")
    )
    with pytest.raises(UnsupportedError, match="optimizer failed") as caught:
        optimize_transformer(model, tmp_path / "f.onnx")
    assert caught.value.hint == "pip install no_such_package"
