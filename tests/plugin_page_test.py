"""The page about the plugin for ONNX Runtime: its commands, its Python, its C."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from pages import ROOT, Reader, steps
from vermilion.clib.build import compiler
from vermilion.clib.library import plugin_library

pytestmark = pytest.mark.needs("c compiler")
PAGE = ROOT / "docs" / "onnxruntime-plugin.md"
HEADER = "onnxruntime_c_api.h"
# Where ONNX Runtime's headers may lie: no package of PyPI has them.
INCLUDES = (os.environ.get("ONNXRUNTIME_INCLUDE", ""), "/usr/include/onnxruntime", "/usr/include")


def test_the_page(tmp_path: Path) -> None:
    reader = Reader()
    try:
        taken = list(steps(PAGE.read_text(encoding="utf-8"), tmp_path))
        assert len(taken) == 3
        for step in taken:
            reader.carry_out(step, tmp_path)
    finally:
        reader.close()
    found = [folder for folder in INCLUDES if folder and Path(folder, HEADER).is_file()]
    if not found:
        pytest.skip(f"this machine has no {HEADER}: the program in C was not built")
    run_program(tmp_path, found[0])


def run_program(folder: Path, include: str) -> None:
    """Build the page's program in C, and hold what it prints against ONNX Runtime's own."""
    (program,) = re.findall(r"^```c\n([\s\S]*?)^```$", PAGE.read_text(encoding="utf-8"), re.M)
    (folder / "plugin.c").write_text(program, encoding="utf-8")
    (library,) = (Path(ort.__file__).parent / "capi").glob("libonnxruntime.so.*")
    (folder / "libonnxruntime.so.1").symlink_to(library)
    words = [str(folder / "plugin.c"), f"-I{include}", str(library), f"-Wl,-rpath,{folder}"]
    compiler().run("linux", [*words, "-o", str(folder / "plugin")])
    done = subprocess.run(
        [str(folder / "plugin"), str(plugin_library()), str(folder / "model_ctx.onnx")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    x = (np.arange(2 * 64) % 7 - 3).astype(np.float32).reshape(2, 64)
    wanted = ort.InferenceSession(str(folder / "model.onnx")).run(None, {"x": x})[0]
    got = np.array(done.stdout.split(), np.float32).reshape(2, 10)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-3)
