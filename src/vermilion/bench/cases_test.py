from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from vermilion.bench.cases import Case, Sizes, prepare_case
from vermilion.cli.options import parse_dims
from vermilion.errors import OptionError

HEADER = '<ir_version: 11, opset_import: ["": 23]>\n'


def prepared(text: str, folder: Path, *dims: str) -> Case:
    """Write out a case of a graph that is given as text."""
    model = ir.from_onnx_text(HEADER + text)
    return prepare_case(
        folder / "m.onnx", model, Sizes(None, None, 1), precision=None, dims=parse_dims(dims),
        inputs={}, folder=folder,
    )  # fmt: skip


def test_who_follows_the_hint_has_no_open_dimension(tmp_path: Path) -> None:
    text = "g (float[batch, seq, 8] x) => (float[batch, seq, 8] y) { y = Tanh (x) }"
    with pytest.raises(OptionError, match="dynamic dimensions: batch, seq") as raised:
        prepared(text, tmp_path)
    words = raised.value.hint.partition("`")[2].rstrip("`").replace("--dim", "").split()
    case = prepared(text, tmp_path, *words)
    assert (case.batch, case.reference["y"].shape) == (1, (1, 128, 8))


def test_the_right_answers_are_those_of_a_literal_run(tmp_path: Path) -> None:
    # The standard broadcasts the mask, and ONNX Runtime's kernel does not.
    text = """g (float[1,2,3,4] q, float[1,2,3,4] k, bool[1,1,1,3] m) => (float[1,2,3,4] y) {
      y = Attention (q, k, k, m) }"""
    case = prepared(text, tmp_path)
    with np.load(case.inputs_path) as stored:
        q, k, m = (stored[f"arr_{at}"] for at in range(3))
    weights = np.exp(q @ k.swapaxes(2, 3) / 2) * m
    wanted = weights / weights.sum(-1, keepdims=True) @ k
    np.testing.assert_allclose(case.reference["y"], wanted, rtol=1e-5, atol=1e-6)
