"""What a user writes with the public names is typed: mypy in its strictest form finds nothing.

The types of the whole package stand behind them. mypy keeps what it found of it in the folder that
`mypy` itself uses, so that only the first of both reads everything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT

pytestmark = pytest.mark.needs("mypy")

SCRIPT = """
from pathlib import Path

import numpy as np
import onnx

import vermilion
from vermilion import Compiled, InferenceSession, VermilionError
from vermilion.export import CompiledGraph, torch_backend


def compiled(path: Path) -> Compiled:
    proto: onnx.ModelProto = onnx.load(path)
    first = vermilion.compile_model(proto, target="cpu", dims={"batch": 1}, inputs={})
    second = vermilion.compile_model(path.read_bytes(), precision="bf16", output="out.rai")
    assert first.digest != second.digest
    return second


def run(path: Path) -> None:
    try:
        session = compiled(path).session(threads=2)
    except VermilionError as error:
        print(error.message, error.where, error.hint)
        raise
    with session:
        reveal_type(session.run(None, {"x": np.zeros((1, 3), np.float32)}))
    opened = InferenceSession(path, compile="now")
    reveal_type(opened.get_inputs()[0].name)


def graphs() -> tuple[CompiledGraph, ...]:
    return torch_backend.graphs()


reveal_type(vermilion.__version__)
reveal_type(compiled(Path("m.onnx")).report.summary.offloaded_gops)
reveal_type(vermilion.inspect_model("m.onnx", target="all").predictions[0].milliseconds)
done = vermilion.quantize_file("m.onnx", "q.onnx", calib="random", scheme="xint8", samples=4)
reveal_type(done.quantized.outputs[0].sqnr_db)
reveal_type(vermilion.export_model("m:f", ["1x3"], "m.onnx").agrees)
reveal_type(graphs()[0].native)
"""

TYPES = [
    "list[numpy.ndarray[tuple[Any, ...], numpy.dtype[Any]]]", "str", "str", "float", "float | None",
    "float", "bool", "int",
]  # fmt: skip

WRONG = """
import vermilion

vermilion.compile_model(7)
vermilion.compile_model("m.onnx", precison="bf16")
vermilion.quantize_file("m.onnx", "q.onnx", calib="random", scheme=8)
vermilion.inspect_model("m.onnx").cost.gops.upper()
"""


def test_a_users_script_is_clean_and_what_is_wrong_is_found(tmp_path: Path) -> None:
    script, wrong = tmp_path / "script.py", tmp_path / "wrong.py"
    script.write_text(SCRIPT)
    wrong.write_text(WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-pretty", str(script), str(wrong)],
        capture_output=True, text=True, cwd=ROOT, env={**os.environ, "MYPYPATH": "src"},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    found = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert [one.replace("builtins.", "") for one in found] == TYPES, done.stdout + done.stderr
    errors = [line for line in lines if ": error: " in line]
    assert not [line for line in errors if "wrong.py" not in line], done.stdout
    assert [re.findall(r"wrong\.py:(\d+):", line)[0] for line in errors] == ["4", "5", "6", "7"]
