from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bundles
from vermilion.backends.base import CompileOptions, Part
from vermilion.backends.npu_model import NpuModelBackend
from vermilion.backends.ort import OrtBackend
from vermilion.errors import UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.report import run_pass
from vermilion.progress import no_progress
from vermilion.runtime.judge import MIN_COSINE
from vermilion.runtime.prove import prove
from vermilion.runtime.write import CompiledPart

CPU, STRIX = find_target("x86-64-v3"), find_target("strix")


def proven(original: ir.Model, parts: Sequence[CompiledPart]) -> tuple[dict[str, object], ...]:
    return prove(original, parts, CPU, no_progress)


def replaced(part: CompiledPart, text: str, weights: dict[str, np.ndarray]) -> CompiledPart:
    """Give the part compiled from another graph: a compiler that is wrong."""
    model = bundles.model_from_text(text, weights)
    wrong = replace(part.part, model=model)
    folder = part.folder.parent / "wrong"
    program = OrtBackend().compile(wrong, CPU, CompileOptions(), folder)
    return CompiledPart(wrong, program, folder)


def test_every_output_gets_a_row(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    rows = prove(
        bundles.small_model(), bundles.small_parts(tmp_path), CPU, lambda *step: told.append(step)
    )
    assert [row["name"] for row in rows] == ["y", "h"]
    for row in rows:
        cosine, sqnr_db = row["cosine"], row["sqnr_db"]
        assert isinstance(cosine, float)
        assert isinstance(sqnr_db, float)
        assert cosine == pytest.approx(1.0, abs=1e-9)
        assert sqnr_db > 100
    assert told == [("prove", 0, 2), ("prove", 1, 2), ("prove", 2, 2)]


WRONG = {
    "another function": (bundles.FIRST.replace("Relu", "Neg"), 1.0),
    "no numbers": (bundles.FIRST.replace("Relu", "Log"), 1.0),
    "shuffled weights": (bundles.FIRST, None),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_part_is_found(case: str, tmp_path: Path) -> None:
    text, factor = WRONG[case]
    first, second = bundles.small_parts(tmp_path)
    weight = bundles.small_weights()["w1"]
    weight = weight[:, ::-1].copy() if factor is None else weight * factor
    with pytest.raises(UnsupportedError, match=r"gives another `[hy]` than the model") as error:
        proven(bundles.small_model(), (replaced(first, text, {"w1": weight}), second))
    assert error.value.where == CPU.name
    assert "report it" in error.value.hint


def test_roundings_are_not_faults(tmp_path: Path) -> None:
    first, second = bundles.small_parts(tmp_path)
    rounded = bundles.small_weights()["w1"].astype(np.float16).astype(np.float32)
    rows = proven(bundles.small_model(), (replaced(first, bundles.FIRST, {"w1": rounded}), second))
    cosine, sqnr_db = rows[0]["cosine"], rows[0]["sqnr_db"]
    assert isinstance(cosine, float)
    assert isinstance(sqnr_db, float)
    assert MIN_COSINE < cosine < 1
    assert 50 < sqnr_db < 100


def test_an_output_that_is_nothing_but_rounding_proves_nothing(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[1,64] x) => (float[1,64] y) {
      [a] s = Mul (x, k)
      [b] y = Mul (s, t)
    }"""
    small = {"k": np.array(1e-4, np.float32), "t": np.array(1e-4, np.float32)}
    model = bundles.model_from_text(text, small)
    part, _ = bundles.small_parts(tmp_path)
    compiled = replaced(part, text, small)
    wrong = replaced(part, text, small | {"t": np.array(-1e-4, np.float32)})
    assert len(proven(model, (compiled,))) == 1
    rows = proven(model, (wrong,))
    assert rows[0]["cosine"] == pytest.approx(-1.0)


def test_a_wrong_part_is_found_in_bf16(tmp_path: Path) -> None:
    first, second = bundles.small_parts(tmp_path)
    wrong = bundles.small_weights()["w1"][:, ::-1].copy()
    parts = (replaced(first, bundles.FIRST, {"w1": wrong}), second)
    with pytest.raises(UnsupportedError, match="gives another"):
        prove(bundles.small_model(), parts, CPU, no_progress, "bf16")


def test_an_output_that_bf16_cannot_hold_is_no_fault(tmp_path: Path) -> None:
    # The difference of two nearly equal tensors: rounding the weights alone already loses it.
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[1,64] x) => (float[1,64] y) {
      [a] s = Mul (x, k) [b] t = Mul (x, l) [c] y = Sub (s, t)
    }"""
    random = np.random.default_rng(2)
    k = random.random((1, 64), dtype=np.float32) + 1
    weights = {"k": k, "l": k * np.float32(1.0005)}
    model = bundles.model_from_text(text, weights)
    part, _ = bundles.small_parts(tmp_path)
    near = weights | {"l": weights["l"] + random.normal(0, 2e-3, (1, 64)).astype(np.float32)}
    compiled = replaced(part, text, near)
    with pytest.raises(UnsupportedError, match="gives another"):
        proven(model, (compiled,))
    (row,) = prove(model, (compiled,), CPU, no_progress, "bf16")
    assert row["reference_spread"] > row["max_abs_error"]  # type: ignore[operator]


SEQUENCE = """<ir_version: 9, opset_import: ["" : 17]>
g (float[4] x) => (seq(float) y) { a = Relu (x)  y = SplitToSequence (a) }"""


def test_a_sequence_is_compared_number_by_number(tmp_path: Path) -> None:
    model = ir.from_proto(onnx.parser.parse_model(SEQUENCE))
    part = Part("cpu_par_0", "cpu", "ort", model, (), 0.0)
    program = OrtBackend().compile(part, CPU, CompileOptions(), tmp_path)
    (row,) = proven(model, [CompiledPart(part, program, tmp_path)])
    assert (row["name"], row["cosine"]) == ("y", 1.0)


# The difference of two products that are nearly one: what is left in bfloat16 is all rounding.
FAR = """<ir_version: 9, opset_import: ["" : 17]>
g (float[8,32] x) => (float[8,16] y) {
  a = MatMul (x, w)  b = MatMul (x, v)  y = Sub (a, b)
}"""


def modelled(text: str, weights: dict[str, np.ndarray], folder: Path) -> CompiledPart:
    model = bundles.model_from_text(text, weights)
    run_pass(infer_shapes, model)
    part = Part("vaiml_par_0", "npu", "npu_model", model, (), 0.0)
    program = NpuModelBackend().compile(part, STRIX, CompileOptions(threads=1), folder)
    return CompiledPart(part, program, folder)


def test_what_is_modelled_is_held_to_the_device_s_own_numbers(tmp_path: Path) -> None:
    w = np.random.default_rng(1).standard_normal((32, 16)).astype(np.float32)
    near = (w * np.float32(1 + 2.0**-10)).astype(np.float32)
    weights = {"w": w, "v": near}
    part = modelled(FAR, weights, tmp_path / "right")
    (row,) = prove(part.part.model, [part], STRIX, no_progress)
    assert row["modelled_in"] == "bf16"
    assert isinstance(row["cosine"], float)
    assert row["cosine"] < MIN_COSINE, "bfloat16 does not tell the two weights apart"
    assert "reference_spread" in row


def test_a_device_s_numbers_excuse_no_wrong_graph(tmp_path: Path) -> None:
    w = np.random.default_rng(1).standard_normal((32, 16)).astype(np.float32)
    weights = {"w": w, "v": -w}
    right = modelled(FAR, weights, tmp_path / "right")
    wrong = modelled(FAR.replace("Sub (a, b)", "Add (a, b)"), weights, tmp_path / "wrong")
    mixed = CompiledPart(right.part, wrong.program, wrong.folder)
    with pytest.raises(UnsupportedError, match="gives another `y`"):
        prove(right.part.model, [mixed], STRIX, no_progress)


def test_a_reference_in_bf16_keeps_what_is_no_number_to_compute_with(tmp_path: Path) -> None:
    # Scales of a Resize stand in the file, or ONNX Runtime does not know the output's shape.
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[1,1,8,8] x) => (float[1,1,12,12] y) {
      [a] s = Mul (x, k) [b] t = Mul (x, l) [c] d = Sub (s, t) [d] y = Resize (d, , scales)
    }"""
    random = np.random.default_rng(2)
    k = random.random((1, 1, 8, 8), dtype=np.float32) + 1
    scales = np.array([1, 1, 1.5, 1.5], np.float32)
    weights = {"k": k, "l": k * np.float32(1.0005), "scales": scales}
    model = bundles.model_from_text(text, weights)
    part, _ = bundles.small_parts(tmp_path)
    noise = random.normal(0, 2e-3, k.shape).astype(np.float32)
    compiled = replaced(part, text, weights | {"l": weights["l"] + noise})
    (row,) = prove(model, (compiled,), CPU, no_progress, "bf16")
    assert row["reference_spread"] > row["max_abs_error"]  # type: ignore[operator]
