from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.backends import BACKENDS, backend
from vermilion.backends.base import Claim, CompileOptions, ModelFacts, Part
from vermilion.backends.ort import OrtBackend
from vermilion.errors import ArtifactError, Refusal, UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.ir.execute import split_weights

FACTS = ModelFacts("fp32", 17, 0, (), 1)
TARGET = find_target("x86-64-v3")
TEXT = """<ir_version: 9, opset_import: ["" : 17]>
net (float[n, 64] x) => (float[n, 128] y) { y = MatMul (x, w) }"""


def part(text: str = TEXT) -> tuple[Part, np.ndarray]:
    weight = np.random.default_rng(0).standard_normal((64, 128), dtype=np.float32)
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return Part("cpu_par_0", "cpu", "ort", ir.from_proto(proto), ("0",), 0.0), weight


class Files:
    def __init__(self, folder: Path, weights: Mapping[str, np.ndarray]) -> None:
        self._folder, self._weights = folder, weights

    def read(self, name: str) -> memoryview:
        return memoryview((self._folder / name).read_bytes())

    def weights(self) -> Mapping[str, np.ndarray]:
        return self._weights


@pytest.mark.parametrize(
    ("domain", "op_type", "opset"),
    [
        ("", "Conv", 17),
        ("ai.onnx", "Conv", 11),
        ("", "QuantizeLinear", 21),
        ("", "Celu", 12),
        ("", "MeanVarianceNormalization", 13),
        ("ai.onnx.ml", "TreeEnsembleRegressor", 17),
        ("com.microsoft", "MatMulNBits", 17),
    ],
)
def test_claims_what_the_cpu_provider_has(domain: str, op_type: str, opset: int) -> None:
    facts = ModelFacts("fp32", opset, 0, (), 1)
    assert OrtBackend().claim(ir.Node(domain, op_type, []), facts, TARGET) == Claim()


@pytest.mark.parametrize(
    ("domain", "op_type", "words"),
    [
        ("acme", "Conv", "no operators of the domain `acme`"),
        ("", "Konv", "no operator `Konv` in opset 17"),
        ("com.microsoft", "Teleport", "no `Teleport` in the domain `com.microsoft`"),
    ],
)
def test_refuses_with_a_reason(domain: str, op_type: str, words: str) -> None:
    answer = OrtBackend().claim(ir.Node(domain, op_type, []), FACTS, TARGET)
    assert isinstance(answer, Refusal)
    assert words in answer.reason
    assert answer.hint


def test_refuses_an_operator_that_the_opset_has_not() -> None:
    facts = ModelFacts("fp32", 7, 0, (), 1)
    answer = OrtBackend().claim(ir.Node("", "QuantizeLinear", []), facts, TARGET)
    assert isinstance(answer, Refusal)
    assert "opset 7" in answer.reason


def test_compiles_loads_and_runs(tmp_path: Path) -> None:
    made, weight = part()
    program = OrtBackend().compile(made, TARGET, CompileOptions(threads=1), tmp_path / "p")
    assert program.files == ("part.onnx",)
    assert not program.modelled
    # Its weight is outside: the file holds next to nothing.
    assert (tmp_path / "p" / "part.onnx").stat().st_size < 1000
    files = Files(tmp_path / "p", split_weights(made.model)[1])
    loaded = OrtBackend().load(program, files, TARGET, CompileOptions(threads=1))
    x = np.ones((2, 64), np.float32)
    np.testing.assert_allclose(loaded.run({"x": x})["y"], x @ weight, rtol=1e-5, atol=1e-5)
    assert loaded.runs_on.startswith("CPU (ONNX Runtime")


def test_what_cannot_run_is_a_compile_error_and_leaves_no_file(tmp_path: Path) -> None:
    made, _ = part(TEXT.replace("MatMul (x, w)", "Konv (x, w)"))
    with pytest.raises(UnsupportedError, match="Konv"):
        OrtBackend().compile(made, TARGET, CompileOptions(threads=1), tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_every_name_in_the_table_is_a_backend() -> None:
    for name in BACKENDS:
        assert backend(name).name == name
    assert backend("ort") is backend("ort")


def test_an_unknown_name_says_which_there_are() -> None:
    with pytest.raises(ArtifactError, match="no backend is called `orb`") as error:
        backend("orb")
    assert "`ort`" in error.value.hint


def test_a_part_that_optimizing_breaks_runs_without(tmp_path: Path) -> None:
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 21]> net (float[3, 8] x) => (float[8, 3] y)
        <float s = {0.03}, int8 z = {0}> {
          q = QuantizeLinear (x, s, z)
          d = DequantizeLinear (q, s, z)
          e = Transpose <perm = [1, 0]> (d)
          f = Relu (e)
          r = QuantizeLinear (f, s, z)
          y = DequantizeLinear (r, s, z)
        }"""
    )
    text = Part("cpu_par_0", "cpu", "ort", model, ("0",), 0.0)
    program = OrtBackend().compile(text, TARGET, CompileOptions(), tmp_path)
    assert program.details == {"opened": "literal"}
    assert "without its optimizations" in program.notes[0]
    loaded = OrtBackend().load(program, Files(tmp_path, {}), TARGET, CompileOptions())
    x = np.full((3, 8), 0.3, np.float32)
    assert np.allclose(loaded.run({"x": x})["y"], 0.3)


def test_a_part_may_be_asked_for_without_optimizations(tmp_path: Path) -> None:
    wanted = CompileOptions(literal_parts=frozenset({"cpu_par_0"}))
    program = OrtBackend().compile(part()[0], TARGET, wanted, tmp_path)
    assert program.details == {"opened": "literal"}
    assert not OrtBackend().compile(part()[0], TARGET, CompileOptions(), tmp_path).details


def test_bfloat16_is_interpreted(tmp_path: Path) -> None:
    weight = np.arange(64, dtype=np.float32).reshape(8, 8).astype(ml_dtypes.bfloat16)
    x, y = (
        ir.Value(name=name, type=ir.TensorType(ir.DataType.BFLOAT16), shape=ir.Shape([2, 8]))
        for name in "xy"
    )
    w = ir.Value(name="w", const_value=ir.Tensor(weight, name="w"))
    node = ir.Node("", "MatMul", [x, w], outputs=[y])
    graph = ir.Graph([x], [y], nodes=[node], initializers=[w], opset_imports={"": 17}, name="g")
    model = ir.Model(graph, ir_version=8)
    text = Part("cpu_par_0", "cpu", "ort", model, ("0",), 0.0)
    program = OrtBackend().compile(text, TARGET, CompileOptions(), tmp_path)
    assert program.details == {"opened": "interpreter"}
    assert "interpreter, which is slow" in program.notes[0]
    weights = split_weights(model)[1]
    loaded = OrtBackend().load(program, Files(tmp_path, weights), TARGET, CompileOptions())
    assert "interpreter" in loaded.runs_on
    given = np.eye(2, 8, dtype=np.float32).astype(ml_dtypes.bfloat16)
    assert loaded.run({"x": given})["y"].tolist() == weight[:2].tolist()
