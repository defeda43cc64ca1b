from __future__ import annotations

import os
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from commands import Command
from models import small_cnn
from vermilion.ir.value_files import read_values, write_values


@pytest.fixture
def model(tmp_path: Path) -> Path:
    ir.save(small_cnn(batch=2), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def open_model(tmp_path: Path) -> Path:
    ir.save(small_cnn(batch="n"), tmp_path / "open.onnx")
    return tmp_path / "open.onnx"


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    image = np.random.default_rng(0).standard_normal((2, 3, 16, 16), dtype=np.float32)
    np.savez(tmp_path / "in.npz", input=image)
    np.save(tmp_path / "image.npy", image)
    return tmp_path / "in.npz"


def test_a_model_a_folder_and_a_file_give_the_same(
    vermilion: Command, model: Path, inputs: Path, tmp_path: Path
) -> None:
    words = ("compile", model, "-o", tmp_path / "m.rai", "--json")
    compiled = vermilion(*words).data
    folder = Path(compiled["cache_dir"]) / compiled["cache_key"]
    found = []
    for at, what in enumerate((model, folder, tmp_path / "m.rai", f"{model}@x86-64-v3")):
        out = tmp_path / "out" / f"{at}.npz"
        done = vermilion("run", what, "--input", inputs, "--output", out)
        assert (done.code, done.err) == (0, "")
        assert f"written to {out}" in done.words
        assert done.out.startswith("ran on CPU (native code for")
        assert "(one run, not warmed up): 8 of 8 operators native" in done.words
        with np.load(out) as arrays:
            assert arrays.files == ["output"]
            found.append(arrays["output"])
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=1e-4, atol=1e-5)


def test_one_input_by_name(vermilion: Command, model: Path, inputs: Path, tmp_path: Path) -> None:
    done = vermilion("run", model, "--input", f"input={tmp_path / 'image.npy'}")
    assert done.code == 0
    assert "output float32 2×10" in done.words
    assert "not written: give --output OUT.npz" in done.out


def test_for_machines(vermilion: Command, model: Path, inputs: Path) -> None:
    data = vermilion("run", model, "--input", inputs, "--json").data
    assert data["outputs"] == [{"name": "output", "dtype": "float32", "shape": [2, 10]}]
    assert (data["modelled"], data["output"]) == (False, None)
    assert data["milliseconds"] > 0
    assert data["placement"] == "8 of 8 operators native"
    assert "warnings" not in data
    words = ("run", f"{model}@onnxruntime", "--input", inputs, "--json")
    as_it_is = vermilion(*words).data
    assert (as_it_is["runs_on"], as_it_is["placement"]) == ("CPU (ONNX Runtime)", "")


def test_as_many_threads_as_are_asked_for(vermilion: Command, model: Path, inputs: Path) -> None:
    for what in (model, f"{model}@cpu"):
        done = vermilion("run", what, "--input", inputs, "--threads", "1", "--json")
        assert done.data["runs_on"].endswith(", 1 thread)")
    assert vermilion("run", model, "--threads", "-1").code == 2


def test_what_stands_in_for_a_device_says_so(vermilion: Command, open_model: Path) -> None:
    done = vermilion("run", f"{open_model}@strix", "--dim", "n=1")
    assert "ran on strix (modelled: bfloat16 computed by CPU" in done.words
    data = vermilion("run", f"{open_model}@strix", "--dim", "n=1", "--json").data
    assert data["modelled"] is True
    assert data["placement"] == "8 of 8 operators native on strix (modelled)"


def test_a_target_that_got_nothing_is_told_of(vermilion: Command, open_model: Path) -> None:
    done = vermilion("run", f"{open_model}@strix")
    assert done.code == 0
    assert "0 of 8 operators native on strix; 8 in ONNX Runtime: strix needs fixed" in done.words
    assert "`--dim n=1`" in done.err
    # Of a reason that no note tells, the line itself is the warning.
    (warning, _) = vermilion("run", f"{open_model}@phoenix", "--dim", "n=1", "--json").data[
        "warnings"
    ]
    assert warning.startswith(
        "0 of 8 operators native on phoenix; 8 in ONNX Runtime: phoenix takes"
    )


def test_sample_inputs_are_warned_about(vermilion: Command, model: Path) -> None:
    done = vermilion("run", model)
    assert done.code == 0
    assert done.err.startswith("warning: no --input given: ran on sample inputs")


def test_which_inputs_it_needs(vermilion: Command, open_model: Path, tmp_path: Path) -> None:
    done = vermilion("run", open_model, "--schema")
    assert (done.code, done.err) == (0, "")
    assert "input float n×3×16×16" in done.words
    assert not (tmp_path / "cache").exists(), "nothing is compiled for that"
    data = vermilion("run", open_model, "--schema", "--dim", "n=4", "--json").data
    assert data["inputs"] == [{"name": "input", "dtype": "float", "shape": [4, 3, 16, 16]}]


def test_outputs_of_every_kind_can_be_drawn(vermilion: Command, tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[2] x) => (bool[2] b, string[1] s, float z, float[0] none)
      <string[1] word = {"hi"}, float zero = {0.0}, int64[1] at = {0}> {
      b = Greater (x, zero) s = Identity (word) z = ReduceSum <keepdims = 0> (x)
      none = Slice (x, at, at) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "kinds.onnx")
    done = vermilion("run", tmp_path / "kinds.onnx", "--output", tmp_path / "o.npz")
    assert done.code == 0, done.err
    assert "b bool 2 0 " in done.words
    assert "s string 1" in done.words
    assert "z float32 scalar" in done.words
    assert "none float32 0" in done.words


def test_a_wrong_output_is_found_before_anything_runs(
    vermilion: Command, model: Path, tmp_path: Path
) -> None:
    done = vermilion("run", model, "--output", tmp_path / "o.txt")
    assert done.code == 2
    assert done.err.startswith("error: the output `")
    assert "warning" not in done.err


def test_damaged_and_foreign_files(vermilion: Command, model: Path, tmp_path: Path) -> None:
    vermilion("compile", model, "-o", tmp_path / "m.rai")
    whole = (tmp_path / "m.rai").read_bytes()
    (tmp_path / "cut.rai").write_bytes(whole[: len(whole) // 2])
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 1
    (tmp_path / "flipped.rai").write_bytes(flipped)
    (tmp_path / "folder").mkdir()
    for name in ("cut.rai", "flipped.rai", "folder"):
        done = vermilion("run", tmp_path / name)
        assert done.code == 1, name
        assert done.err.count("error: ") == done.err.count("hint: ") == 1
        assert "fault in vermilion" not in done.err


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no named pipes")
@pytest.mark.parametrize("name", ["m.rai", "m.onnx", "in.npz", "input.npy", "rows.parquet"])
def test_a_pipe_is_refused_at_once(
    vermilion: Command, model: Path, tmp_path: Path, name: str
) -> None:
    if name == "m.onnx":
        model.unlink()
    os.mkfifo(tmp_path / name)
    words = {
        ".rai": ("run", tmp_path / name),
        ".onnx": ("run", tmp_path / name),
        ".npz": ("run", model, "--input", tmp_path / name),
        ".npy": ("run", model, "--input", f"input={tmp_path / name}"),
        ".parquet": ("batch", model, "--input", tmp_path / name, "-o", tmp_path / "out.npz"),
    }
    done = vermilion(*words[Path(name).suffix])
    assert done.code in (1, 2)
    assert done.err.startswith("error: ")
    assert "fault in vermilion" not in done.err


UNUSUAL = """<ir_version: 9, opset_import: ["" : 17]>
g (int64[3] i, bfloat16[2,2] x, float[2] f)
  => (string[3] file, bfloat16[2,2] y, seq(float[2]) many)
<string[3] names = {"cat", "dog", "huepfer"}> {
  file = Gather (names, i)
  y = Identity (x)
  many = SequenceConstruct (f, f)
}"""


@pytest.mark.parametrize("form", ["o.npz", "folder"])
def test_texts_sequences_and_other_numbers_go_out_and_come_in(
    vermilion: Command, tmp_path: Path, form: str
) -> None:
    onnx.save(onnx.parser.parse_model(UNUSUAL), tmp_path / "m.onnx")
    x = np.array([[1, 2.5], [-3, 1e30]], ml_dtypes.bfloat16)
    f = np.array([0.5, np.inf], np.float32)
    write_values(tmp_path / form, {"i": np.array([2, 0, 1]), "x": x, "f": f})
    out = tmp_path / f"out-{form}"
    done = vermilion("run", tmp_path / "m.onnx", "--input", tmp_path / form, "--output", out)
    assert done.code == 0, done.err
    found = read_values(out)
    assert found["file"].tolist() == ["huepfer", "cat", "dog"]
    assert found["y"].dtype == x.dtype
    np.testing.assert_array_equal(found["y"], x)
    np.testing.assert_array_equal(found["many"], [f, f])
    # An array that numpy itself wrote has lost its type, and not its bits.
    np.savez(tmp_path / "plain.npz", i=np.array([2, 0, 1]), x=x, f=f)
    done = vermilion("run", tmp_path / "m.onnx", "--input", tmp_path / "plain.npz", "-o", out)
    assert done.code == 0, done.err
    np.testing.assert_array_equal(read_values(out)["y"], x)


def test_texts_and_models_without_inputs(vermilion: Command, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g () => (float[2] y, string[2] t)
    { y = Constant <value_floats = [1.0, 2.0]> () t = Constant <value_strings = ["a", "b"]> () }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "m.onnx")
    done = vermilion("run", tmp_path / "m.onnx", "-o", tmp_path / "o.npz")
    assert done.code == 0
    assert "sample inputs" not in done.err
    assert "t string 2" in done.words
    assert read_values(tmp_path / "o.npz")["t"].tolist() == ["a", "b"]


def test_an_array_without_a_name(model: Path, vermilion: Command, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(2, np.float32))
    done = vermilion("run", model, "--input", tmp_path / "x.npy")
    assert done.code == 2
    assert f"hint: say which input it is: `--input NAME={tmp_path / 'x.npy'}`" in done.err
