"""The page of names: what each row says is there is looked up where the row says."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from taken_tour import Taken, taken_tour
from vermilion.cli import main
from vermilion.hardware.recipes.recipe import Wanted, make_recipe

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "guides.md"
ROW = re.compile(r"^\| (command|option|file|field|variable) \| (.+?) \| (.+?) \| (.+?) \|$", re.M)

# What the guide to AMD GPUs gives the ROCm provider.
OPTIONS = """
import onnxruntime as ort
rocm_options = {
    'device_id': 0,
    'arena_extend_strategy': 'kNextPowerOfTwo',
    'gpu_mem_limit': 2 * 1024 * 1024 * 1024,
    'cudnn_conv_algo_search': 'EXHAUSTIVE',
    'do_copy_in_default_stream': True,
}
session = ort.InferenceSession("m.onnx", providers=[("ROCMExecutionProvider", rocm_options)])
"""


def rows() -> list[tuple[str, ...]]:
    return ROW.findall(PAGE.read_text("utf-8"))


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Taken:
    return taken_tour(tmp_path_factory)


@cache
def printed(*words: str) -> str:
    """Return what a command line prints, with every run of spaces as one."""
    out = io.StringIO()
    with redirect_stdout(out), redirect_stderr(out):
        main(list(words))
    return " ".join(re.sub(r"[│╭╮╰╯─]", " ", out.getvalue()).split())


@cache
def scripts() -> str:
    found = [make_recipe(Wanted("genai", "7.0", ("gfx1100",), p)) for p in ("migraphx", "rocm")]
    needs = [need.check for recipe in found for need in recipe.needs]
    return "\n".join([*needs, *(text for recipe in found for text in recipe.files.values())])


def surface(module: str, name: str) -> bool:
    found: object = import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def places(tour: Taken, folder: Path) -> dict[str, Callable[[str, str], bool]]:
    """Return, for each kind of place, how a word is looked up there."""
    options = folder / "rocm.py"
    options.write_text(OPTIONS, "utf-8")
    summary = folder / "summary.txt"
    printed("inspect", str(tour.folder / "hello_xint8.onnx"), "--target", "strix",
            "--summary", str(summary))  # fmt: skip

    def suggest(place: str, word: str) -> bool:
        device, release = place.split()
        return word in printed("doctor", "--suggest", "--device", device, "--release", release)

    return {
        "help": lambda place, word: word in printed(*place.split(), "--help"),
        "page": lambda place, word: word in (ROOT / place).read_text("utf-8"),
        "surface": surface,
        "suggest": suggest,
        "recipe": lambda _, word: word in scripts(),
        "lint": lambda _, word: word in printed("doctor", "--options", str(options)),
        "summary": lambda _, word: word in summary.read_text("utf-8"),
        "tour": lambda place, word: (
            any(tour.folder.rglob(word)) if place else word in tour.for_people.out
        ),
    }


def test_every_name_has_one_here(
    tour: Taken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("NO_COLOR", "1")
    look = places(tour, tmp_path)
    found = rows()
    assert len(found) > 140
    missing = []
    for _, name, _, shown in found:
        where, _, word = shown.partition(": ")
        kind, _, place = where.partition(" ")
        if not look[kind](place, word):
            missing.append(f"{name}: {shown}")
    assert not missing, "\n".join(missing)
