"""`vermilion hipify` from the command line: what it prints, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vermilion.cli import main


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "op.cu"
    path.write_text(
        "#include <cuda_runtime.h>\nint run(int* p) { return cudaFree(p); }\n"
        "__device__ unsigned f(int v) { unsigned m = __ballot(v); return __popc(m); }\n",
        "utf-8",
    )
    return path


def test_something_left_is_one_and_fixed_is_zero(
    source: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["hipify", str(source)]) == 1
    out = capfd.readouterr().out
    assert "op.cu:3:45: error `__ballot` asks a whole wave [vote-width]" in out
    assert "(--fix does it)" in out
    assert main(["hipify", str(source), "--fix"]) == 0
    assert "0 left to do, 1 fixed" in capfd.readouterr().out


def test_json_and_sarif(source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sarif, out = tmp_path / "x.sarif", tmp_path / "out"
    words = ["hipify", str(source), "-o", str(out), "--sarif", str(sarif), "--json"]
    assert main(words) == 1
    data = json.loads(capfd.readouterr().out)
    assert (data["verb"], data["ok"], data["left"]) == ("hipify", False, 1)
    assert data["written"] == [str(out / "op.hip")]
    assert (out / "op.hip").read_text("utf-8").startswith("#include <hip/hip_runtime.h>\n")
    assert len(json.loads(sarif.read_text("utf-8"))["runs"][0]["results"]) == 1


def test_the_patch_applies(source: Path, tmp_path: Path) -> None:
    patch = tmp_path / "x.patch"
    assert main(["hipify", str(source), "--fix", "--patch", str(patch)]) == 0
    text = patch.read_text("utf-8")
    assert text.startswith("--- a/op.cu\n+++ b/op.cu\n@@ -1,3 +1,3 @@\n")
    before = "".join(line[1:] for line in text.splitlines(True)[3:] if line[0] in " -")
    assert before == source.read_text("utf-8")
    assert "+int run(int* p) { return hipFree(p); }\n" in text


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nowhere.cu"],
        ["SOURCE", "--check", "gfx942,,gfx1100"],
        ["SOURCE", "--check", "sm_80"],
        ["SOURCE", "-o", "x", "--in-place"],
        ["SOURCE", "--build-files"],
    ],
)
def test_wrong_use_is_two(words: list[str], source: Path) -> None:
    assert main(["hipify", *[str(source) if word == "SOURCE" else word for word in words]]) == 2
