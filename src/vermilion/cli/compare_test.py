from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from commands import Command, wide_enough
from models import mobilenet


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ir.save(mobilenet(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """Return a copy in which one layer has the wrong weights."""
    copy = mobilenet()
    value = copy.graph.initializers["block1.depthwise.weight"]
    assert value.const_value is not None
    value.const_value = ir.Tensor(-value.const_value.numpy(), name=value.name)
    ir.save(copy, tmp_path / "broken.onnx")
    return tmp_path / "broken.onnx"


def test_a_model_on_two_targets(vermilion: Command, model: Path) -> None:
    done = vermilion("compare", model, f"{model}@strix", "--runs", "2")
    assert done.code == 0
    sampled = "warning: no --input given: compared on sample inputs, not on real data\n"
    assert done.err.startswith(sampled)
    assert "A m.onnx B m.onnx@strix runs on median ms min max" in done.words
    assert "A CPU (native code for" in done.words
    assert "B strix (modelled: bfloat16 computed by CPU" in done.words
    assert "A: 40 of 40 operators native B: 40 of 40 operators native on strix" in done.words
    assert "B against the literal run of A's model" in done.out
    assert "the 8 furthest apart" in done.out
    assert "no layer is below 10 dB" in done.out
    assert wide_enough(done.out)


def test_a_broken_layer_is_named(vermilion: Command, model: Path, broken: Path) -> None:
    done = vermilion("compare", model, broken, "--runs", "0")
    assert done.code == 0
    name = "block1.depthwise/Conv_output"
    assert f"first layer below 10 dB: {name} (Conv)," in done.out
    data = vermilion("compare", model, broken, "--runs", "0", "--json").data
    assert data["first_divergence"] == name
    assert data["sides"][0]["latency_ms"] == {"p50": None, "min": None, "max": None, "runs": 0}
    assert data["outputs"][0]["sqnr_db"] < 10
    assert {"name", "cosine", "sqnr_db", "max_abs_error", "op_type"} <= set(data["layers"][0])


def test_a_gate_on_accuracy(vermilion: Command, model: Path, broken: Path) -> None:
    words = ("compare", model, broken, "--runs", "0", "--no-layers", "--min-sqnr", "20")
    missed = vermilion(*words, "--json")
    assert missed.code == 1
    assert missed.data["layers"] == []
    assert "`--min-sqnr` asks for 20" in missed.data["error"]["message"]
    same = vermilion("compare", model, model, "--runs", "0", "--min-sqnr", "100")
    assert same.code == 0
    assert "equal" in same.out


def test_inputs_that_do_not_fit_name_the_side(
    vermilion: Command, model: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "in.npz", input=np.zeros((1, 3, 8, 8), np.float32))
    done = vermilion("compare", model, model, "--input", tmp_path / "in.npz")
    assert done.code == 2
    assert "the model wants 1×3×32×32 (m.onnx)" in done.err


def test_a_page_of_a_comparison(
    vermilion: Command, model: Path, broken: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    done = vermilion("compare", model, broken, "--runs", "2", "--report", page)
    assert done.code == 0
    text = page.read_text(encoding="utf-8")
    assert text.count('<svg class="plot"') == 2
    assert text.count('class="whisker"') == 2
    assert "the first below 10 dB: block1.depthwise/Conv_output (Conv)" in text
    assert "B against the literal run of A&#x27;s model" in text
    assert 's-bad"' in text
    assert "<script" not in text
    vermilion("compare", model, broken, "--runs", "0", "--no-layers", "--report", page)
    assert '<svg class="plot"' not in page.read_text(encoding="utf-8")
