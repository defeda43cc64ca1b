"""The page `docs/hipify.md` tells the truth: its sources are written, its commands run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from vermilion.hipify.rules.catalogue import RULES

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "hipify.md"
BLOCK = re.compile(r"^```(\w+)(.*)\n([\s\S]*?)^```$", re.MULTILINE)


def rule_table() -> str:
    rows = [f"| `{r.id}` | {r.level} | {r.title} | {r.why} | {r.fix} |\n" for r in RULES.values()]
    return "| rule | level | what | why | what to do |\n|---|---|---|---|---|\n" + "".join(rows)


def test_the_rules_are_those_of_the_catalogue(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text("utf-8")
    head, rest = text.split("a test holds it -->\n\n")
    table, tail = rest.split("\n<!-- end -->")
    if request.config.getoption("--update-golden", default=False):
        PAGE.write_text(f"{head}a test holds it -->\n\n{rule_table()}\n<!-- end -->{tail}", "utf-8")
        return
    assert table == rule_table(), "run pytest tests/hipify --update-golden"


@pytest.mark.needs("triton", "rocm", "llvmlite")
def test_the_commands_run_in_their_order(tmp_path: Path) -> None:
    ran = 0
    for kind, rest, body in BLOCK.findall(PAGE.read_text("utf-8")):
        if kind == "cuda":
            path = tmp_path / rest.strip()
            path.parent.mkdir(exist_ok=True)
            path.write_text(body, "utf-8")
        elif kind == "sh":
            expected = int(rest.strip().removeprefix("exit=") or 0)
            words = shlex.split(body)
            assert words[0] == "vermilion"
            done = subprocess.run(
                [sys.executable, "-m", "vermilion", *words[1:]],
                cwd=tmp_path,
                env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == expected, f"{body}\n{done.stdout}\n{done.stderr}"
            ran += 1
    assert ran == 4
    assert (tmp_path / "second.patch").read_text("utf-8") == "", "a second run changes nothing"
    assert (tmp_path / "hip" / "rms_norm.hip").exists()
    compile((tmp_path / "hip" / "hip_setup.py").read_text("utf-8"), "hip_setup.py", "exec")
