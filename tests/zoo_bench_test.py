"""The zoo: its networks, what is measured when, its page; one cell measured whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pages import ROOT
from vermilion.version import code_digest

BENCH = ROOT / "bench"


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the script as a module, whose path goes again with the test."""
    monkeypatch.syspath_prepend(str(BENCH))
    import zoo

    return zoo


def options(zoo: ModuleType, folder: Path, *words: str) -> Any:
    return zoo.parse_options(["--out", str(folder), *words])


def test_sixty_networks_at_the_least_of_every_kind(zoo: ModuleType) -> None:
    assert len(zoo.NETWORKS) >= 60
    kinds = {network.kind for network in zoo.NETWORKS.values()}
    assert kinds == {"vision", "map", "generation", "text", "recurrent", "speech", "table"}
    inputs = zoo.NETWORKS["recommender"].inputs_of(8)
    assert inputs == ["numbers:8x13", "places:8x16:int64"]
    assert zoo.NETWORKS["bert"].inputs_of(8) == ["8x128:int64"]


def test_a_sample_is_the_begin_of_the_whole_in_the_order_of_the_seed(
    zoo: ModuleType, tmp_path: Path
) -> None:
    whole = zoo.cells(options(zoo, tmp_path))
    assert len(whole) == len(zoo.NETWORKS) * 4 * 2 * 2
    assert zoo.cells(options(zoo, tmp_path, "--sample", "9")) == whole[:9]
    assert zoo.cells(options(zoo, tmp_path, "--seed", "1", "--sample", "9")) != whole[:9]


def cell(ratio: float, **changed: Any) -> dict[str, Any]:
    """Return a cell as it is stored, with ours at `ratio` of the peer."""
    found = {"median": ratio, "q1": ratio - 0.01, "q3": ratio + 0.02, "pairs": 10}
    report = {
        "cases": [{"best_peer": "ort", "ratios": {"ort": found}}],
        "results": [{"engine": "vermilion", "latency_ms": {"p50": 2.5}}],
    }
    return {
        "network": "tabular", "format": "fp32", "batch": 1, "threads": 1, "kind": "table",
        "code": code_digest(), "machine": {"cpu": "A CPU", "core": "core"},
        "time": "2026-01-02T03:04:05", "report": report, **changed,
    }  # fmt: skip


def test_what_was_measured_with_this_code_is_not_measured_again(
    zoo: ModuleType, tmp_path: Path
) -> None:
    wanted = [zoo.Cell("tabular", "fp32", 1, 1), zoo.Cell("tabular", "fp32", 1, 2)]
    now, before = cell(0.8), cell(0.8, code="of before")
    assert list(zoo.missing(wanted, [now], keep=False)) == wanted[1:]
    assert list(zoo.missing(wanted, [before], keep=False)) == wanted
    assert list(zoo.missing(wanted, [before], keep=True)) == wanted[1:]


def test_the_page_has_the_distribution_the_slowest_and_every_cell(zoo: ModuleType) -> None:
    steps = [{"kind": "Conv", "ms": 1.0, "share": 0.7, "gops_per_s": 90.0}]
    cells = [
        cell(0.5), cell(0.8, threads=2), cell(1.25, batch=8, steps=steps),
        {**cell(1.0, network="vgg16"), "report": None} | {"error": "it <failed>\nlast words"},
    ]  # fmt: skip
    cells[-1].pop("report")
    count, mean, ahead, largest = zoo.zoo_page.figures(cells)
    assert (count, largest) == (3, 1.25)
    assert mean == pytest.approx((0.5 * 0.8 * 1.25) ** (1 / 3))
    assert ahead == pytest.approx(2 / 3)
    page = zoo.zoo_page.page(cells)
    for words in ("A CPU (core)", "Conv 70%", "1.25 (1.24–1.27) of ort", "failed: it &lt;failed>"):
        assert words.replace(">", "&gt;") in page or words in page
    assert zoo.zoo_page.summary(cells).splitlines()[1].split()[:2] == ["fp32", "3"]


@pytest.mark.long
@pytest.mark.needs("torch")
def test_one_cell_from_the_module_to_the_page(zoo: ModuleType, tmp_path: Path) -> None:
    words = ["--only", "tabular", "--formats", "int8", "--batch", "1", "--threads", "1"]
    words += ["--pairs", "1", "--against", "ort", "--cache", str(tmp_path / "cache")]
    words += ["--out", str(tmp_path)]
    # A process of its own, which PyTorch is loaded into: it exports, quantizes and measures.
    command = [sys.executable, BENCH / "zoo.py", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "tabular int8 1 1: " in done.stderr
    written = (tmp_path / "zoo.json").read_bytes()
    assert zoo.main(words) == 0
    assert (tmp_path / "zoo.json").read_bytes() == written  # there was nothing left to do
    (stored,) = json.loads((tmp_path / "zoo.json").read_text("utf-8"))["cells"]
    assert stored["report"]["cases"][0]["ratios"]["ort"]["median"] > 0
    assert "tabular" in (tmp_path / "zoo.html").read_text("utf-8")
