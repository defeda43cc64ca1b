"""Every command and every piece of Python in the guide to AMD GPUs, as a reader would type them."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from readme_test import environment

DOCS = Path(__file__).parent.parent / "docs"
BLOCK = re.compile(r"```(sh|python)\n(.*?)```", re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
EXITS = re.compile(r"# exits (\d)")
GPU_NEEDED = "without ROCm and such a GPU"

PAGES = (
    pytest.param("gpu-verify.md", marks=pytest.mark.needs("torch", "iree")),
    pytest.param("gpu-basic.md", marks=pytest.mark.needs("torch", "iree")),
    pytest.param("gpu-transformers.md", marks=pytest.mark.needs("torch", "iree", "sympy")),
    pytest.param("gpu-precision.md", marks=pytest.mark.needs("torch", "iree")),
    pytest.param("gpu-memory.md", marks=pytest.mark.needs("torch", "iree")),
    "gpu-shapes.md",
)


def steps(page: str, folder: Path) -> Iterator[tuple[list[str], str, int]]:
    """Yield each command with its text and exit code; blocks that begin with a name become files.

    A comment behind a command that says `exits 1` is held to.
    """
    for kind, block in BLOCK.findall(page):
        if named := FILE.match(block):
            (folder / named[1]).write_text(block[named.end() :])
        elif kind == "python":
            yield [sys.executable, "-c", block], block, 0
        else:
            for line in filter(str.strip, block.splitlines()):
                words = shlex.split(line, comments=True)
                assert words[0] == "vermilion", f"a command that no test can run: {line}"
                if GPU_NEEDED in line and Path("/dev/kfd").exists():
                    continue
                said = EXITS.search(line)
                code = int(said[1]) if said else 0
                yield [sys.executable, "-m", "vermilion", *words[1:]], line, code


@pytest.mark.parametrize("page", PAGES)
def test_the_page_tells_the_truth(page: str, tmp_path: Path) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    count = 0
    for words, shown, code in steps(text, tmp_path):
        done = subprocess.run(
            words,
            cwd=tmp_path,
            env=environment(tmp_path / "cache"),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, f"{shown}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr, f"{shown}\n{done.stderr}"
        count += 1
    assert count >= 3


def test_a_file_block_is_written_and_a_comment_gives_the_code(tmp_path: Path) -> None:
    page = (
        "```python\n# x.py\nprint(1)\n```\n```sh\nvermilion doctor --options x.py   # exits 1\n```"
    )
    ((words, shown, code),) = steps(page, tmp_path)
    assert (tmp_path / "x.py").read_text() == "print(1)\n"
    assert words[3:] == ["doctor", "--options", "x.py"]
    assert shown.startswith("vermilion doctor")
    assert code == 1
