from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from commands import Command, wide_enough
from models import small_cnn
from vermilion.quantize.native_run import cost_model


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


def test_what_our_own_kernels_ran_is_said(
    vermilion: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_model, "LEAST_SAVED_MS", -math.inf)
    samples = np.random.default_rng(0).standard_normal((9, 1, 3, 16, 16), dtype=np.float32)
    for number, sample in enumerate(samples):
        np.save(tmp_path / f"{number}.npy", sample)
    words = ("quantize", model, "--calib", tmp_path, "--dim", "n=1", "-o", tmp_path / "q.onnx")
    assert "9 samples, 5 of them in own kernels, " in vermilion(*words).words
    assert vermilion(*words, "--json").data["samples_in_own_kernels"] == 5


def test_random_data_are_warned_about_once(
    vermilion: Command, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = ("quantize", model, "--calib", "random", "-n", "1", "--dim", "n=1")
    done = vermilion(*words, "-o", tmp_path / "q.onnx")
    assert done.code == 0
    assert done.err.count("random data") == 1
    assert done.err.startswith("warning: calibrating on random data")
    assert not caplog.records
    data = vermilion(*words, "-o", tmp_path / "q.onnx", "--json").data
    assert data["calibration"] == "random"


def test_every_kind_of_scheme(
    vermilion: Command, model: Path, samples: Path, tmp_path: Path
) -> None:
    words = ("quantize", model, "--calib", samples, "--dim", "n=1", "--json")
    for scheme in ("a8w8", "a16w8", "bf16", "bfp16"):
        out = tmp_path / f"{scheme}.onnx"
        data = vermilion(*words, "-o", out, "--scheme", scheme).data
        assert data["scheme"] == scheme
        assert data["outputs"][0]["sqnr_db"] > 20.0
        assert out.is_file()


def test_recipe_page_and_options(
    vermilion: Command, model: Path, samples: Path, tmp_path: Path
) -> None:
    words = ("quantize", model, "--calib", samples, "--dim", "n=1", "--json")
    recipe, page = tmp_path / "r.json", tmp_path / "r.html"
    chosen = ("--scheme", "a8w8", "--method", "mse", "--per-tensor", "--wide", "input")
    first = vermilion(
        *words, "-o", tmp_path / "a.onnx", *chosen, "--save-recipe", recipe, "--report", page
    ).data
    again = vermilion(*words, "-o", tmp_path / "b.onnx", "--recipe", recipe).data
    assert first["recipe"] == again["recipe"]
    assert (again["recipe"]["wide"], again["recipe"]["per_channel"]) == (["input"], False)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    other = vermilion(*words, "-o", tmp_path / "c.onnx", "--recipe", recipe, "--method", "minmax")
    assert other.data["recipe"]["method"] == "minmax"


@pytest.mark.parametrize(
    ("scheme", "more"), [("int8-dynamic", []), ("a8w8", ["--migrate"]), ("a8w8", ["--equalize"])]
)
def test_schemes_and_preparations_by_name(
    vermilion: Command,
    model: Path,
    samples: Path,
    tmp_path: Path,
    scheme: str,
    more: list[str],
) -> None:
    words = ("quantize", model, "--calib", samples, "--dim", "n=1", "-o", tmp_path / "q.onnx")
    data = vermilion(*words, "--scheme", scheme, *more, "--json").data
    assert data["scheme"] == scheme
    assert data["outputs"][0]["sqnr_db"] > 25.0
    assert data["recipe"]["migrate"] is ("--migrate" in more)
    assert data["recipe"]["equalize"] is ("--equalize" in more)


@pytest.fixture
def many(tmp_path: Path) -> Path:
    images = np.random.default_rng(0).standard_normal((12, 3, 16, 16), dtype=np.float32)
    np.save(tmp_path / "many.npy", images)
    return tmp_path / "many.npy"


def test_promise_that_is_kept(vermilion: Command, model: Path, many: Path, tmp_path: Path) -> None:
    words = ("quantize", model, "--calib", many, "--dim", "n=1", "-o", tmp_path / "q.onnx")
    done = vermilion(*words, "--scheme", "a8w8", "--min-sqnr", "20")
    assert done.code == 0
    assert "the promise is kept" in done.words
    data = vermilion(*words, "--max-drop", "70%", "--json").data
    assert data["promise_met"] is True
    assert data["held_out"] == 3
    assert "on 3 samples held out" in done.words
    assert set(data["ladder"][0]) >= {"what", "sqnr_db", "drop", "bound", "samples_needed", "met"}


def test_promise_that_is_not_kept_is_exit_code_1(
    vermilion: Command, model: Path, many: Path, tmp_path: Path
) -> None:
    words = ("quantize", model, "--calib", many, "--dim", "n=1", "-o", tmp_path / "q.onnx")
    done = vermilion(*words, "--scheme", "xint8", "--min-sqnr", "150", "--json")
    assert done.code == 1
    assert done.data["promise_met"] is False
    assert done.data["ok"] is False
    assert (tmp_path / "q.onnx").is_file()


def test_promise_that_too_few_samples_can_show_says_how_many_would(
    vermilion: Command, model: Path, many: Path, tmp_path: Path
) -> None:
    words = ("quantize", model, "--calib", many, "--dim", "n=1", "-o", tmp_path / "q.onnx")
    done = vermilion(*words, "--scheme", "a8w8", "--max-drop", "5%")
    assert done.code == 1
    assert "the promise is not kept" in done.words
    enough = int(done.words.rpartition("--samples ")[2].split("`")[0])
    assert 69 < enough < 130  # 69 held out: 0.95^69 < 0.03
    assert "68.93%" in done.words  # what 0 of 3 shows, first of several trials: 1 - 0.03^(1/3)


def test_metric_of_the_user(
    vermilion: Command,
    model: Path,
    many: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_metric.py").write_text("def count(outputs):\n    return float(len(outputs))\n")
    words = ("quantize", model, "--calib", many, "--dim", "n=1", "-o", tmp_path / "q.onnx")
    done = vermilion(*words, "--max-drop", "1%", "--metric", "my_metric:count", "--json")
    assert done.data["ladder"][0]["drop"] == 0.0
    for wrong in ("nothing", "my_metric:nothing", "no_such_module:x"):
        assert vermilion(*words, "--max-drop", "1%", "--metric", wrong).code == 2


WRONG = {
    "method": (["--method", "best"], "unknown method `best`"),
    "drop": (["--max-drop", "little"], "`--max-drop little` is not a part"),
    "two promises": (["--max-drop", "1%", "--min-sqnr", "9"], "either a largest drop or"),
    "lone metric": (["--metric", "a:b"], "`--metric` needs `--max-drop`"),
    "recipe": (["--recipe", "no.json"], "cannot be read: No such file"),
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


def test_a_join_that_leaves_too_few_steps_is_named(vermilion: Command, tmp_path: Path) -> None:
    """The hint holds: with it, no tensor is crowded."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,4,8] x) => (float[1,4,16] found) {
          scores = Sigmoid(x)
          pixels = Constant<value_float=300.0>()
          boxes = Mul(x, pixels)
          found = Concat<axis=2>(boxes, scores)
        }"""
    model = ir.from_onnx_text(text)
    next(node for node in model.graph if node.op_type == "Concat").name = "/head/Concat"
    ir.save(model, tmp_path / "m.onnx")
    words = ("quantize", tmp_path / "m.onnx", "--calib", "random", "-n", "4")
    found = vermilion(*words, "-o", tmp_path / "q.onnx")
    assert "`scores` keeps" in found.words
    _, _, option = found.words.partition("--exclude ")
    assert option.startswith("'/head/Concat'")
    data = vermilion(*words, "-o", tmp_path / "q.onnx", "--exclude", "/head/Concat", "--json").data
    assert data["crowded"] == []
