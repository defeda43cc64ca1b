"""The list of skipped tests at the end of a run, and when it fails the run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT

HARDWARE = """
import pytest

@pytest.mark.parametrize("n", [1, 2])
def test_a(n): pytest.skip("this machine has no AVX-1024")
"""
PACKAGE = """
import pytest

@pytest.mark.needs("no_such_package")
def test_b(): pass
"""


def run(folder: Path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "conftest.py", folder)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = needs(thing): here\n")
    (folder / "one_test.py").write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, "one_test.py"],
        cwd=folder, capture_output=True, text=True, check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"},
    )  # fmt: skip


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_hardware_may_be_missing(tmp_path: Path, workers: tuple[str, ...]) -> None:
    done = run(tmp_path, HARDWARE, "--complete", *workers)
    assert done.returncode == 0, done.stdout
    assert "   2  this machine has no AVX-1024\n" in done.stdout


@pytest.mark.parametrize("workers", [(), ("-n", "1")])
def test_a_package_may_not(tmp_path: Path, workers: tuple[str, ...]) -> None:
    words = "   1  COULD RUN: the package `no_such_package` is not installed\n"
    for option, code in ((), 0), (("--complete",), 1):
        done = run(tmp_path, PACKAGE, *option, *workers)
        assert (done.returncode, words in done.stdout) == (code, True), done.stdout
