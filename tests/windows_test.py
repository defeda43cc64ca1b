"""The DLL for Windows, cross-compiled and run by wine: the bits of the session."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import c_library
from c_runtime_test import CASES
from vermilion.api import compile_model
from vermilion.clib.build import INCLUDE, compiler
from vermilion.clib.library import library

# Of the first build: ziglang makes Windows' C library, minutes of a processor.
pytestmark = [pytest.mark.long, pytest.mark.needs("ziglang")]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program, with the DLL beside it."""
    if shutil.which("wine64") is None:
        pytest.skip("this system has no wine64")
    folder = tmp_path_factory.mktemp("windows")
    shutil.copy(library("windows"), folder / "vermilion.dll")
    source = str(c_library.PROGRAMS / "portable.c")
    words = ["-std=c11", "-O1", f"-I{INCLUDE}", source, str(folder / "vermilion.dll")]
    compiler("windows").run("windows", [*words, "-o", str(folder / "portable.exe")])
    return folder / "portable.exe"


@pytest.mark.parametrize("name", ["cnn", "large", "int8", "cnn-bf16", "lookup", "pictures"])
def test_the_bits_are_those_of_the_session(name: str, program: Path, tmp_path: Path) -> None:
    (case,) = [one for one in CASES if one.name == name]
    model = tmp_path / "m.rai"
    compile_model(case.make(), precision=case.precision, cache_dir=tmp_path / "c", output=model)
    for feeds in case.feeds[:2]:
        words = []
        for number, array in enumerate(feeds.values()):
            (tmp_path / f"in{number}.bin").write_bytes(array.tobytes())
            words.append(f"in{number}.bin:{'x'.join(map(str, np.shape(array)))}")
        done = subprocess.run(
            ["wine64", str(program), "m.rai", *words], cwd=tmp_path, capture_output=True,
            text=True, check=False, env={**os.environ, "VERMILION_TRUST": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        wanted = c_library.wanted(model, feeds)
        assert c_library.same_bits(c_library.written(tmp_path, wanted), wanted)
