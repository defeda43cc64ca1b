"""`vermilion-runtime`: built as pip builds it, and run with numpy alone."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import c_library
import models
from vermilion.api import compile_model

pytestmark = pytest.mark.needs("hatchling", "c compiler")
RUNTIME = Path(__file__).parent.parent / "runtime"

PROGRAM = """
import sys
for name in ("onnx", "onnx_ir", "onnxruntime", "llvmlite", "vermilion", "ml_dtypes"):
    sys.modules[name] = None
sys.path.insert(0, sys.argv[1])
import numpy as np
from vermilion_runtime import Session
with Session(sys.argv[2]) as session:
    x = np.load(sys.argv[3])
    np.save(sys.argv[4], session.run(None, {"input": x})[0])
foreign = {name.partition(".")[0] for name, module in sys.modules.items() if module is not None}
print(sorted(foreign & {"onnx", "onnx_ir", "onnxruntime", "llvmlite", "vermilion", "google"}))
"""


def test_the_wheel_runs_a_model_with_numpy_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = importlib.import_module("hatchling.build")
    monkeypatch.chdir(RUNTIME)
    wheel = tmp_path / build.build_wheel(str(tmp_path))
    assert wheel.stat().st_size < 5_000_000
    assert wheel.name.endswith("-py3-none-manylinux_2_28_x86_64.whl")
    with zipfile.ZipFile(wheel) as file:
        (about,) = [name for name in file.namelist() if name.endswith("METADATA")]
        text = file.read(about).decode()
        file.extractall(tmp_path / "installed")
    assert [line for line in text.splitlines() if line.startswith("Requires-Dist")] == [
        "Requires-Dist: numpy>=1.26"
    ]
    model, x = tmp_path / "m.rai", np.ones((1, 3, 16, 16), np.float32)
    ir.save(models.small_cnn(), tmp_path / "m.onnx")
    compile_model(tmp_path / "m.onnx", cache_dir=tmp_path / "cache", output=model)
    np.save(tmp_path / "x.npy", x)
    words = [str(tmp_path / "installed"), str(model), str(tmp_path / "x.npy")]
    clean = {name: value for name, value in os.environ.items() if name != "VERMILION_LIBRARY"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words, str(tmp_path / "y.npy")],
        env=clean, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    given = [np.load(tmp_path / "y.npy")]
    assert c_library.same_bits(given, c_library.wanted(model, {"input": x}))
