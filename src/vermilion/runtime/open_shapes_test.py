"""Open dimensions compile; that little is native then, and what to write, is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from commands import Command, command_line
from vermilion.api import compile_model
from vermilion.cli.options import parse_dims
from vermilion.partition.place import NodePlace
from vermilion.runtime.open_shapes import open_shape_note
from vermilion.runtime.session import Session

# The table of a cubic Resize is made for one size.
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[{x}] x) => (float[a, b, c, d] y) <float[4] scales = {{1, 1, 1.5, 1.5}}> {{
  a = Resize <mode = "cubic"> (x, , scales)
  b = Resize <mode = "cubic"> (a, , scales)
  y = Resize <mode = "cubic"> (b, , scales)
}}"""


def model(sizes: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(TEXT.format(x=sizes)))


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ("batch, 3, 24, 24", "--dim batch=1"),
        ("1, 3, height, width", "--dim height=224 --dim width=224"),
        ("n, length", "--dim n=1 --dim length=128"),
        ("n, n", "--dim n=1"),
        ("?, 3, 32, 32", "--dim x=1x3x32x32"),
        ("batch, ?", "--dim x=1x128"),
    ],
)
def test_the_note_has_the_options_that_fix_it(sizes: str, options: str) -> None:
    place = NodePlace("a", "Trilu", 0, False, "cpu", "cpu_par_0", "ort", "a size is dynamic", "")
    (note,) = open_shape_note(model(sizes), [place] * 3, "native")
    assert note.startswith("0 of 3 nodes")
    assert f"`{options}`" in note


def test_sizes_that_depend_on_data_have_no_note() -> None:
    place = NodePlace("a", "Trilu", 0, False, "cpu", "cpu_par_0", "ort", "a size is dynamic", "")
    assert open_shape_note(model("4, 4"), [place], "native") == ()
    any_rank = model("4, 4")
    any_rank.graph.inputs[0].shape = None
    (note,) = open_shape_note(any_rank, [place], "native")
    assert "dynamic is the rank of an input. Fix it" in note
    assert "`--dim x=SIZExSIZE`" in note


def test_a_bundle_has_the_note_and_what_it_says_fixes_it(tmp_path: Path) -> None:
    compiled = compile_model(model("1, 3, h, w"), cache_dir=tmp_path)
    (note,) = [note for note in compiled.report.notes if "fixed sizes" in note]
    assert note in Session(compiled.artifact).notes
    dims = parse_dims(["h=20", "w=30"])
    again = compile_model(model("1, 3, h, w"), dims=dims, cache_dir=tmp_path)
    assert all(row["backend"] == "native" for row in again.report.nodes)
    assert not again.report.notes
    assert not Session(again.artifact).notes


def test_what_any_size_is_generated_for_needs_no_note(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n,length] x) => (float[n,length] y) { a = Sigmoid(x) b = Mul(a, x) y = Relu(b) }"""
    compiled = compile_model(ir.from_proto(onnx.parser.parse_model(text)), cache_dir=tmp_path)
    assert all(row["backend"] == "native" for row in compiled.report.nodes)
    assert not Session(compiled.artifact).notes


def test_nothing_is_told_where_nothing_is_open_or_another_engine_was_asked_for(
    tmp_path: Path,
) -> None:
    assert not compile_model(model("2, 3, 4, 4"), cache_dir=tmp_path).report.notes
    assert not compile_model(model("1, 3, h, w"), backend="ort", cache_dir=tmp_path).report.notes


def test_it_is_told_on_stderr_by_the_verbs(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vermilion: Command = command_line(capfd, monkeypatch, tmp_path / "cache")
    path = tmp_path / "m.onnx"
    ir.save(model("1, 3, h, w"), path)
    done = vermilion("compile", path, "-o", tmp_path / "m.rai")
    assert "--dim h=224 --dim w=224" in done.err
    for words in (
        ("run", f"{path}@cpu"),
        ("run", tmp_path / "m.rai"),
        ("compare", path, f"{path}@cpu"),
    ):
        assert "--dim h=224 --dim w=224" in vermilion(*words).err, words


def test_opening_a_bundle_of_open_sizes_loads_no_library_of_graphs(tmp_path: Path) -> None:
    artifact = compile_model(model("1, 3, h, w"), cache_dir=tmp_path).artifact
    code = (
        "import sys; from vermilion.runtime.session import Session;"
        f"assert Session({str(artifact)!r}).notes; assert 'vermilion.partition' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
