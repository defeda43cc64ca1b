"""Every model that packages ship is planned and compiled for a modelled NPU, or refused."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from commands import Command
from model_wheels import package_file
from models import small_cnn
from vermilion.api import Compiled, compile_model
from vermilion.errors import VermilionError
from vermilion.inspection import inspect_model

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
NAMES = sorted(path.relative_to(DATA).as_posix() for path in DATA.rglob("*.onnx"))
# Of the whole networks, whose weights are constants, the smaller ones: the others take long.
NETWORKS = ("light/light_squeezenet.onnx", "light/light_shufflenet.onnx")
FEW = (
    "pytorch-converted/test_Conv2d_groups_thnn/model.onnx",
    "pytorch-converted/test_Conv3d_no_bias/model.onnx",
    "pytorch-converted/test_PReLU_2d_multiparam/model.onnx",
    "pytorch-converted/test_Softmax/model.onnx",
    "pytorch-operator/test_operator_lstm/model.onnx",
    "simple/test_single_relu_model/model.onnx",
)
SWEEP = [
    name
    for name in NAMES
    if name not in FEW and (name in NETWORKS or not name.startswith("light/"))
]
# Source: rapidocr 3.10, the shapes that its pipeline feeds. In every run version 4 of both, and the
# classifier that goes with either, are compiled for the same chip in `path_test.py`.
RAPIDOCR = {
    "PP-OCRv6_det_small.onnx": (1, 3, 320, 320),
    "PP-OCRv6_rec_small.onnx": (1, 3, 48, 320),
}


def compiled(file: Path, cache: Path, **options: object) -> Compiled | VermilionError:
    """Inspect and compile with fixes; give the error where the model is refused."""
    try:
        assert inspect_model(file, target="strix").prediction is not None
        return compile_model(file, target="strix", fix=True, cache_dir=cache, **options)  # type: ignore[arg-type]
    except VermilionError as error:
        return error


def check(file: Path, cache: Path) -> None:
    found = compiled(file, cache)
    if isinstance(found, VermilionError):
        assert found.message
        assert found.hint
        return
    for node in found.report.nodes:
        assert node["device"] == "npu" or node["reason"]
    if found.report.summary.offloaded_operators:
        assert found.offload_is == "modelled"
        assert all("modelled_in" in row for row in found.report.verification)


@pytest.mark.parametrize("name", FEW)
def test_some_models_of_the_onnx_suite(name: str, tmp_path: Path) -> None:
    check(DATA / name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEP)
def test_all_models_of_the_onnx_suite(name: str, tmp_path: Path) -> None:
    check(DATA / name, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", RAPIDOCR)
def test_the_models_of_rapidocr(name: str, tmp_path: Path) -> None:
    file = package_file("rapidocr", f"models/{name}")
    found = compiled(file, tmp_path, dims={"x": RAPIDOCR[name]})
    assert isinstance(found, Compiled), str(found)
    assert found.report.summary.offloaded_operators > 0
    with found.session(threads=1) as session:
        assert any("modelled" in place for place in session.runs_on)


def test_the_commands_of_the_page_run(tmp_path: Path, vermilion: Command) -> None:
    page = (Path(__file__).parent.parent / "docs" / "npu.md").read_text(encoding="utf-8")
    section = page.partition("## Modelled arithmetic")[2].partition("\n## ")[0]
    (block,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    file = tmp_path / "model.onnx"
    ir.save(small_cnn(), file)
    for line in block.splitlines():
        words = shlex.split(line.replace("model.onnx", str(file)), comments=True)
        done = vermilion(*words[1:])
        assert done.code == 0, f"{line}\n{done.out}\n{done.err}"
        assert "modelled" in done.out
