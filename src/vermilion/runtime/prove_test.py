from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import bundles
from vermilion.backends.base import CompileOptions
from vermilion.backends.ort import OrtBackend
from vermilion.errors import UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.progress import no_progress
from vermilion.runtime.prove import MIN_COSINE, prove
from vermilion.runtime.write import CompiledPart

CPU = find_target("x86-64-v3")


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
