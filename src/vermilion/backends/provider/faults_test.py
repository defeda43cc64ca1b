from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.backends.provider.faults import Fault, NanCheck, find_faults
from vermilion.errors import DeviceError
from vermilion.ir.literal.run import run_literally
from vermilion.proof.bounds import FormatName
from vermilion.proof.judge import Question

TEXT = """<ir_version: 9, opset_import: ["" : 17]>
g (float[4,64] x, int64[8] i) => (float[4,64] y, int64[8] j) { y = Mul (x, x) j = Add (i, i) }"""
X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
INPUTS = {"x": X, "i": np.arange(1, 9)}


def faults(form: FormatName = "fp32", batch: int | None = 4, **found: Any) -> list[Fault]:
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    expected = run_literally(model, INPUTS).outputs
    question = Question(model, INPUTS, expected, {**expected, **found}, form)
    return find_faults(question, batch=batch)


def test_a_fault_of_one_entry_is_told_from_one_of_all() -> None:
    assert faults() == []
    swapped = X * X
    swapped[2] = -swapped[2]
    (fault,) = faults(y=swapped)
    assert (fault.kind, fault.entry) == ("wrong-entry", 2)
    (fault,) = faults(y=swapped, batch=None)
    assert (fault.kind, fault.entry) == ("wrong", None)
    half = X * X
    half[1] = np.nan
    assert (faults(y=half)[0].kind, faults(y=half)[0].entry) == ("nan", 1)


def test_scale_is_judged_as_well_as_direction() -> None:
    for factor in (2.0, 0.1, 1.13):
        (fault,) = faults(y=X * X * np.float32(factor))
        assert fault.kind == "wrong"
        assert "SQNR" in fault.words
        assert faults("bf16", y=X * X * np.float32(factor))
    off = np.arange(1, 9) * 2
    off[3] += 1
    assert faults(j=off)[0].words == "1 of 8 values differ"


def test_the_format_s_own_rounding_is_no_fault() -> None:
    rounded = (X * X).astype(ml_dtypes.bfloat16).astype(np.float32)
    assert faults("bf16", y=rounded) == []
    assert faults("fp32", y=rounded)


def test_nan_are_right_where_the_cpu_has_them() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (float[4] x) => (float[4] y) { y = Log (x) }"""
    )
    check = NanCheck(model.SerializeToString(), {}).check
    inputs = {"x": np.array([1.0, -1.0, 2.0, 3.0], np.float32)}
    right = np.array([0.0, np.nan, 0.7, 1.1], np.float32)
    check(inputs, {"y": right})
    check(inputs, {"y": np.zeros(4, np.float32)})
    wrong = right.copy()
    wrong[2] = np.nan
    with pytest.raises(DeviceError, match="`y`: 1 of its 4 values are NaN where the CPU's are"):
        check(inputs, {"y": wrong})
