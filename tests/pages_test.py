"""The documentation tells the truth: its commands and programs run, and end as it says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from pages import ROOT, Reader, Step, steps
from taken_tour import taken_tour
from vermilion.bench.profile import GPU_LINE

# It compiles for two targets, from nothing each time: once is enough for all pages and its test.
TOUR = Step("vermilion hello --folder tour", ("hello", "--folder", "tour"))
GUIDE = ("verify", "basic", "transformers", "precision", "memory", "shapes")
HOW_TO = ("cpu", "npu", "int8", "ci", "one-file")
pytestmark = pytest.mark.needs("torch", "iree", "sympy")
Carry = Callable[..., int]


@pytest.fixture(scope="module")
def reader() -> Iterator[Reader]:
    reader = Reader()
    yield reader
    reader.close()


@pytest.fixture(scope="module")
def toured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the command was carried out with which most pages begin."""
    taken = taken_tour(tmp_path_factory)
    printed = taken.for_people
    assert printed.code == TOUR.code, printed.err
    assert "Traceback" not in printed.err
    assert taken.folder.name == TOUR.words[-1]
    return taken.folder


@pytest.fixture
def carry_out(reader: Reader, toured: Path, tmp_path: Path) -> Carry:
    """Return what carries out a page in an empty folder, and counts its steps."""

    def carried_out(page: str, *, programs: bool = True) -> int:
        count = 0
        for step in steps((ROOT / page).read_text(encoding="utf-8"), tmp_path):
            if step == TOUR:
                shutil.copytree(toured, tmp_path / toured.name)
            elif step.words or programs:
                reader.carry_out(step, tmp_path)
            else:
                continue
            count += 1
        return count

    return carried_out


def test_the_tour_of_the_commands(carry_out: Carry) -> None:
    assert carry_out("docs/tour.md") >= 10


def test_the_tutorial(carry_out: Carry, tmp_path: Path) -> None:
    assert carry_out("docs/tutorial.md") >= 10
    assert (tmp_path / "resnet.html").stat().st_size < 1_000_000
    assert set(np.load(tmp_path / "outputs.npz"))


def test_how_to(carry_out: Carry, tmp_path: Path) -> None:
    """In one folder: what one page has made, another finds."""
    counts = {page: carry_out(f"docs/howto-{page}.md") for page in HOW_TO}
    assert min(counts.values()) >= 3, counts
    assert (tmp_path / "signed.rai").exists()


def test_the_code_generator(carry_out: Carry) -> None:
    assert carry_out("docs/code-generator.md", programs=False) >= 2  # it shows some of ours


def test_scripts_for_onnx_runtime(carry_out: Carry) -> None:
    assert carry_out("docs/onnxruntime.md") == 2


def test_gpus(carry_out: Carry) -> None:
    assert carry_out("docs/gpu.md") >= 3


@pytest.mark.parametrize("page", GUIDE)
def test_the_guide_to_gpus(carry_out: Carry, page: str) -> None:
    assert carry_out(f"docs/gpu-{page}.md") >= 3


def test_pytorch(carry_out: Carry) -> None:
    assert carry_out("docs/pytorch.md") == 3


def test_quantizing(carry_out: Carry) -> None:
    assert carry_out("docs/quantize.md") == 4  # the tour, a promise, a front and a point of it


@pytest.mark.slow
def test_benchmarks(carry_out: Carry, tmp_path: Path) -> None:
    assert carry_out("docs/benchmarks.md") == 4
    written = {path.name for path in (tmp_path / "suite").iterdir()}
    assert written == {"cases", "suite.csv", "suite.html", "suite.json", "suite.md"}
    suite = json.loads((tmp_path / "suite" / "suite.json").read_text(encoding="utf-8"))
    ours = suite["results"][0]
    assert (ours["engine"], ours["model"], ours["agrees"]) == ("vermilion", "resnet50", True)
    assert ours["runs_on"].startswith("CPU (native code")
    # The second time it was there already, so that nothing has changed.
    assert {delta["engine"] for delta in suite["compared"]} >= {"vermilion", "ort"}
    assert {delta["change_percent"] for delta in suite["compared"]} == {0.0}


def test_profiles(carry_out: Carry, tmp_path: Path) -> None:
    assert carry_out("docs/profiling.md") == 3
    trace = json.loads((tmp_path / "tour" / "trace.json").read_text(encoding="utf-8"))
    assert len(trace["traceEvents"]) > 10
    assert GPU_LINE in (ROOT / "docs" / "profiling.md").read_text(encoding="utf-8")


def test_pages_of_models(carry_out: Carry, tmp_path: Path) -> None:
    assert carry_out("docs/view.md") == 6
    for name in ("strix", "kernels", "difference"):
        assert (tmp_path / "tour" / f"{name}.html").stat().st_size < 1_000_000


def test_batches(carry_out: Carry, tmp_path: Path) -> None:
    assert carry_out("docs/batch.md") == 8
    assert len(list((tmp_path / "each").iterdir())) == 50
    assert "What each worker did" in (tmp_path / "job.html").read_text(encoding="utf-8")
    assert (tmp_path / "means.npz.failed.json").exists()


def test_steps_of_a_page(tmp_path: Path) -> None:
    page = (
        "```python\n# x.py\nprint(1)\n```\n"
        "```sh\nvermilion doctor --options x.py   # exits 1\n```\n"
        "```sh exit=2\nvermilion cache\n```\n"
    )
    assert list(steps(page, tmp_path)) == [
        Step("vermilion doctor --options x.py   # exits 1", ("doctor", "--options", "x.py"), 1),
        Step("vermilion cache", ("cache",), 2),
    ]
    assert (tmp_path / "x.py").read_text() == "print(1)\n"


def test_a_step_that_ends_otherwise_is_shown(reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="vermilion nothing"):
        reader.carry_out(Step("vermilion nothing", ("nothing",)), tmp_path)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        reader.carry_out(Step("print(1 // 0)"), tmp_path)
    with pytest.raises(AssertionError, match="as if it were ill"):
        reader.carry_out(Step("print('as if it were ill')", code=3), tmp_path)
    reader.carry_out(Step("raise SystemExit(3)", code=3), tmp_path)
