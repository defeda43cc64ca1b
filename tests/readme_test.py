"""The documentation tells the truth: its commands run, its tables are those of the code."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHELL_BLOCK = re.compile(r"```sh\n(.*?)```", re.DOTALL)
SHELL_BLOCKS = SHELL_BLOCK.findall(README)
PYTHON_BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
# Pages whose commands need nothing but what they make themselves.
PAGES = ("code-generator.md", pytest.param("gpu.md", marks=pytest.mark.needs("iree")))

# The two set-up commands install the package: CI runs them before this test can run at all.
SET_UP = {"pip install . && vermilion hello", "pip install '.[test]' && pytest"}


def environment(cache: Path) -> dict[str, str]:
    return os.environ | {"VERMILION_CACHE": str(cache), "PYTHONPATH": str(ROOT / "src")}


def commands(text: str) -> list[str]:
    blocks = SHELL_BLOCK.findall(text)
    lines = [line.strip() for block in blocks for line in block.splitlines() if line.strip()]
    return [line for line in lines if line not in SET_UP]


def run_all(lines: list[str], folder: Path) -> None:
    for command in lines:
        words = shlex.split(command)
        assert words[0] == "vermilion", f"a command that no test can run: {command}"
        run_one([sys.executable, "-m", "vermilion", *words[1:]], command, folder)


def run_one(words: list[str], shown: str, folder: Path) -> None:
    done = subprocess.run(
        words,
        cwd=folder,
        env=environment(folder / "cache"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{shown}\n{done.stdout}\n{done.stderr}"


def test_the_set_up_commands_are_those_that_ci_runs() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    lines = {line.strip() for block in SHELL_BLOCKS for line in block.splitlines()}
    assert lines >= SET_UP
    assert "pip install --quiet . && vermilion hello" in script
    assert "pip install --quiet '.[test]'" in script
    assert re.search(r"^pytest$", script, re.MULTILINE)


@pytest.mark.needs("torch")
def test_every_command_of_the_readme_runs(tmp_path: Path) -> None:
    run_all(commands(README), tmp_path)
    for block in PYTHON_BLOCKS:
        run_one([sys.executable, "-c", block], block, tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_runs(page: str, tmp_path: Path) -> None:
    run_all(commands((ROOT / "docs" / page).read_text(encoding="utf-8")), tmp_path)


def test_the_tables_are_those_of_the_code() -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from tables import documents
    finally:
        sys.path.remove(str(ROOT / "tools"))
    for path, text in documents().items():
        assert path.read_text(encoding="utf-8") == text, f"run `python tools/tables.py`: {path}"


def test_every_link_of_the_documentation_leads_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"
