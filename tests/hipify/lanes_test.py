"""Warp kernels after `--fix`, lane by lane on the CPU: waves of 32 and 64 compute as CUDA does."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from vermilion.hipify.files import SourceFile
from vermilion.hipify.process import process_text

HERE = Path(__file__).parent / "lanes"
KERNELS = sorted(HERE.glob("*.cu"))

# One program runs every kernel: compiling takes most of the time.
MAIN = """
#include <cstdio>
#include "lanes.h"
{kernels}
int main() {{
  static float in[256], out[256];
  for (int i = 0; i < 256; ++i) in[i] = (float)((i * 37 + 11) % 101) / 101.0f;
{calls}
}}
"""
CALL = """  for (float& v : out) v = -1.0f;
  run_block({block}, [] {{ {name}::kernel(in, out); }});
  printf("{name}");
  for (float v : out) printf(" %.6g", v);
  printf("\\n");
"""


def results(sources: dict[str, str], wave: int, folder: Path) -> dict[str, list[float]]:
    """Return what each kernel writes, on waves of so many lanes."""
    kernels = "\n".join(f"namespace {name} {{\n{text}\n}}" for name, text in sources.items())
    calls = "".join(
        CALL.format(name=name, block=re.findall(r"// block: (.*)", text)[0])
        for name, text in sources.items()
    )
    program = folder / f"lanes{wave}.cpp"
    program.write_text(MAIN.format(kernels=kernels, calls=calls), "utf-8")
    subprocess.run(
        ["g++", "-std=c++20", "-O1", "-pthread", f"-DWAVE={wave}", f"-I{HERE}", str(program),
         "-o", str(program.with_suffix(""))],
        check=True, capture_output=True,
    )  # fmt: skip
    done = subprocess.run(
        [str(program.with_suffix(""))], check=True, capture_output=True, text=True, timeout=60
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    return {name: [float(value) for value in values] for name, *values in lines}


@pytest.mark.skipif(shutil.which("g++") is None, reason="this system has no C++ compiler")
def test_translated_kernels_compute_what_cuda_does(tmp_path: Path) -> None:
    assert len(KERNELS) >= 10
    cuda = {path.stem: path.read_text("utf-8") for path in KERNELS}
    hip = {
        name: process_text(text, SourceFile(Path(f"{name}.cu"), f"{name}.cu"), fix=True).text
        for name, text in cuda.items()
    }
    expected = results(cuda, 32, tmp_path)
    wrong = [
        f"{name} on waves of {wave}"
        for wave in (32, 64)
        for name, values in results(hip, wave, tmp_path).items()
        if values != pytest.approx(expected[name], rel=1e-5)
    ]
    assert not wrong
    # Untranslated, a broadcast from lane 0 reaches the whole wave: the test can tell.
    other = results({"broadcast": cuda["broadcast"]}, 64, tmp_path)
    assert other["broadcast"] != pytest.approx(expected["broadcast"], rel=1e-5)
