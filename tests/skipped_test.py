"""The list of skipped tests at the end of a run, and when it fails the run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT

# What `conftest.py` imports, as `pyproject.toml` has it.
PATHS = (str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", ""))

TEXT = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_hardware(n): pytest.skip("this machine has no AVX-1024")

@pytest.mark.needs("no_such_package")
def test_package(): pass
"""
LINES = (
    "   2  this machine has no AVX-1024\n",
    "   1  COULD RUN: the package `no_such_package` is not installed\n",
)


def run(folder: Path, *words: str) -> tuple[int, list[bool]]:
    """Run the tests with plugins that this project asks for alone; say which lines were listed."""
    shutil.copy(ROOT / "conftest.py", folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = needs(thing): here\n")
    (folder / "one_test.py").write_text(TEXT)
    ours = {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "xdist.plugin",
         *words, "one_test.py"],
        cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, **ours, "PYTHONPATH": os.pathsep.join(PATHS)},
    )  # fmt: skip
    return done.returncode, [line in done.stdout for line in LINES]


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_package_may_not_be_missing(tmp_path: Path, workers: tuple[str, ...]) -> None:
    assert run(tmp_path, "--complete", *workers) == (1, [True, True])


def test_hardware_may_be_missing(tmp_path: Path) -> None:
    assert run(tmp_path, "--complete", "-k", "hardware") == (0, [True, False])


def test_a_package_may_be_missing_where_nobody_asked_for_all(tmp_path: Path) -> None:
    assert run(tmp_path, "-n", "1") == (0, [True, True])
