"""A disk without room: what was to be written where, what to do, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from commands import Command
from vermilion.files_test import files_up_to

NET = """<ir_version: 8, opset_import: ["" : 17]>
net (float[64, 64] x) => (float[64, 64] y) { h = MatMul (x, w) y = Relu (h) }"""
# No file of these verbs is smaller, and what they print is.
ROOM_BYTES = 4000


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a small model with a sample beside it."""
    net = onnx.parser.parse_model(NET)
    weights = np.random.default_rng(0).standard_normal((64, 64), dtype=np.float32)
    net.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    onnx.save(net, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=weights)
    return tmp_path / "m.onnx"


# What a verb writes, and its words before the name of that.
OUTPUTS = {
    "y.npz": ("run", "--input", "{x}", "-o"),
    "y.npy": ("run", "--input", "{x}", "-o"),
    "folder": ("run", "--input", "{x}", "-o"),
    "m.rai": ("compile", "-o"),
    "m_ctx.onnx": ("compile", "--ep-context"),
    "q.onnx": ("quantize", "--calib", "{x}", "-o"),
    "m.html": ("view", "-o"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output(name: str, model: Path, tmp_path: Path, vermilion: Command) -> None:
    assert vermilion("compile", model).code == 0  # what is tried is writing, not compiling
    verb, *rest = (word.format(x=tmp_path / "x.npz") for word in OUTPUTS[name])
    output = tmp_path / "out" / name
    with files_up_to(ROOM_BYTES):
        done = vermilion(verb, model, *rest, output)
    assert done.code == 1
    error, hint = done.err.strip().splitlines()[-2:]
    assert error.startswith("error: the ")
    assert "cannot be written" in error
    assert str(output) in error
    assert hint.startswith("hint: ")
    assert list(output.parent.iterdir()) == []


def test_the_cache(model: Path, tmp_path: Path, vermilion: Command) -> None:
    """What was compiled without room is not kept as if the graph were at fault."""
    cache = tmp_path / "cache"
    with files_up_to(ROOM_BYTES):
        done = vermilion("compile", model, "--cache-dir", cache)
    assert done.code == 1
    assert done.err.startswith("error: the cache cannot be written: no space left on the disk")
    assert f"({cache})" in done.err
    assert "`vermilion cache prune`" in done.err
    done = vermilion("compile", model, "--cache-dir", cache)
    assert "compiled for" in done.out
    assert "2 of 2 operators native" in done.out


def test_a_dump_leaves_what_was_compiled(model: Path, tmp_path: Path, vermilion: Command) -> None:
    assert vermilion("compile", model).code == 0
    with files_up_to(ROOM_BYTES):
        assert vermilion("compile", model, "--dump", tmp_path / "dump").code == 1
    assert "2 of 2 operators native" in vermilion("compile", model).out
    (tmp_path / "file").touch()
    done = vermilion("compile", model, "--dump", tmp_path / "file" / "dump")
    assert (done.code, str(tmp_path / "file" / "dump") in done.err) == (1, True)
