"""Tests of the literal run."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.ir.literal.run import NOT_OPTIMIZED, open_literally, run_literally


def test_a_model_runs_several_times_from_one_opening() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y, float[2] z)'
        "{ y = Add(x, x) z = Neg(y) }"
    )
    opened = open_literally(model)
    for number in (1.0, 2.0):
        given = {"x": np.full(2, number, np.float32)}
        assert opened.run(given, ["z"])["z"].tolist() == [-2 * number] * 2
        assert sorted(opened.run(given)) == ["y", "z"]
    assert run_literally(model, given).engine == NOT_OPTIMIZED
