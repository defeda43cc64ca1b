from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from commands import Command, command_line, wide_enough
from models import small_cnn


@pytest.fixture
def vermilion(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    return command_line(capfd, monkeypatch, tmp_path / "cache")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ir.save(small_cnn(batch="n"), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    (tmp_path / "samples").mkdir()
    random = np.random.default_rng(0)
    for at in range(3):
        image = random.standard_normal((1, 3, 16, 16), dtype=np.float32)
        np.save(tmp_path / "samples" / f"{at}.npy", image)
    return tmp_path / "samples"


def test_accuracy_layer_by_layer_for_people(
    vermilion: Command, model: Path, samples: Path, tmp_path: Path
) -> None:
    words = ("quantize", model, "--calib", samples, "--dim", "n=1", "-o", tmp_path / "q.onnx")
    done = vermilion(*words)
    assert (done.code, done.err) == (0, "")
    assert "xint8, 3 samples, " in done.words
    assert "against the float model, on calibration samples" in done.out
    assert "layers furthest from float, of" in done.out
    assert wide_enough(done.out.partition("\n")[2])
    assert "1 sample, " in vermilion(*words, "-n", "1").words


def test_the_keys_that_others_rely_on(
    vermilion: Command, model: Path, samples: Path, tmp_path: Path
) -> None:
    out = tmp_path / "q.onnx"
    words = ("quantize", model, "--calib", samples, "--dim", "n=1", "-o", out, "--json")
    data = vermilion(*words).data
    assert (data["output"], data["scheme"], data["samples"]) == (str(out), "xint8", 3)
    assert set(data["outputs"][0]) >= {"name", "sqnr_db", "cosine"}
    assert set(data["layers"][0]) == {"name", "op_type", "sqnr_db"}
    assert data["peak_rss_mb"] > 20
    assert data["seconds"] > 0
    compiled = vermilion("compile", out, "--target", "phoenix", "--json").data
    assert compiled["summary"]["model_data_type"] == "int8 quantized"
    assert compiled["summary"]["offloaded_operators"] > 0


def test_random_data_are_warned_about_once(
    vermilion: Command, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ("quantize", model, "--calib", "random", "-n", "1", "--dim", "n=1")
    done = vermilion(*words, "-o", tmp_path / "q.onnx")
    assert done.code == 0
    assert done.err.count("random data") == 1
    assert done.err.startswith("warning: calibrating on random data")
    assert not caplog.records
    assert logging.getLogger("vermilion.quantize.samples").level == logging.NOTSET


WRONG = {
    "layout": (["--layout", "hwcn"], "unknown layout `hwcn`"),
    "mean": (["--mean", "a,b"], "`--mean a,b` is not a list of numbers"),
    "resize": (["--resize", "224"], "`--resize 224` is not HEIGHTxWIDTH"),
    "scheme": (["--scheme", "int3"], "unknown quantization scheme `int3`"),
    "samples": (["-n", "0"], "at least 1"),
    "output": (["-o", "q.bin"], "does not end in .onnx"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use(
    case: str, vermilion: Command, model: Path, samples: Path, tmp_path: Path
) -> None:
    options, words = WRONG[case]
    out = [] if "-o" in options else ["-o", str(tmp_path / "q.onnx")]
    done = vermilion("quantize", model, "--calib", samples, "--dim", "n=1", *out, *options)
    assert done.code == 2
    assert words in done.err
    assert not list(tmp_path.glob("q.*"))


def test_samples_that_are_not_there(vermilion: Command, model: Path, tmp_path: Path) -> None:
    done = vermilion(
        "quantize", model, "--calib", tmp_path / "none", "--dim", "n=1", "-o", tmp_path / "q.onnx"
    )
    assert done.code == 2
    assert "none" in done.err
    assert "hint: " in done.err
