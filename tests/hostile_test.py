"""Whatever is handed in, there is one clear error, nothing half written, and no memory filled."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import hostile_bundles
import hostile_files
import hostile_graphs
import hostile_samples
import hostile_weights
from hostile import Hostile

CASES: Sequence[Hostile] = (
    *hostile_files.CASES,
    *hostile_graphs.CASES,
    *hostile_weights.CASES,
    *hostile_bundles.CASES,
    *hostile_samples.CASES,
)

MAX_PEAK_BYTES = 1_000_000_000
# A process in between, because Linux counts the memory of the one that starts a process as the
# peak of the one that is started, and these tests may have grown. 0 where nobody counts (Windows).
STARTER = """
import pathlib, subprocess, sys
code = subprocess.call(sys.argv[2:])
try:
    import resource
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
except ImportError:
    peak = 0
pathlib.Path(sys.argv[1]).write_text(str(peak))
sys.exit(code)
"""
MAX_SECONDS = 10.0
MAX_ERROR_CHARACTERS = 4000
SOURCE = Path(__file__).parent.parent / "src"


@dataclass(frozen=True)
class Outcome:
    exit_code: int
    seconds: float
    peak_bytes: int
    stdout: str
    stderr: str
    left_over: tuple[str, ...]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Build every case, run them all in as few processes as survive, and collect what came."""
    root = tmp_path_factory.mktemp("hostile")
    plan = [_planned(case, root) for case in CASES]
    results = root / "results.jsonl"
    results.touch()
    waiting = plan
    while waiting:
        code = _run_child(waiting, root, results)
        finished = {row["name"] for row in _rows(results)}
        waiting = [row for row in waiting if row["name"] not in finished]
        if waiting:  # the first of these ended the process
            row = {"name": waiting[0]["name"], "exit_code": code, "peak_bytes": 0, "seconds": 0.0}
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            waiting = waiting[1:]
    return {str(row["name"]): _outcome(row, root) for row in _rows(results)}


def _rows(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]


def _planned(case: Hostile, root: Path) -> dict[str, Any]:
    given, out = root / case.name / "in", root / case.name / "out"
    given.mkdir(parents=True)
    out.mkdir()
    words = [
        word.replace("{in}", str(given)).replace("{out}", str(out)) for word in case.build(given)
    ]
    return {"name": case.name, "words": words, "out": str(root / case.name)}


def _run_child(waiting: list[dict[str, Any]], root: Path, results: Path) -> int:
    plan = root / "plan.json"
    plan.write_text(json.dumps(waiting), encoding="utf-8")
    child = Path(__file__).with_name("hostile_child.py")
    done = subprocess.run(
        [sys.executable, child, plan, results],
        env={**_environment(), "PYTHONPATH": str(SOURCE)},
        cwd=root,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUTF8": "1", "NO_COLOR": "1"}


def _outcome(row: dict[str, Any], root: Path) -> Outcome:
    folder = root / str(row["name"])
    texts = [folder / "stdout.txt", folder / "stderr.txt"]
    stdout, stderr = (t.read_text(errors="replace") if t.is_file() else "" for t in texts)
    left = _left_over(folder / "out")
    return Outcome(row["exit_code"], row["seconds"], row["peak_bytes"], stdout, stderr, left)


def _left_over(out: Path) -> tuple[str, ...]:
    """Return what a failed run left where its results go; a lock may stay."""
    left = [path for path in out.rglob("*") if not path.is_dir() and path.suffix != ".lock"]
    return tuple(str(path.relative_to(out)) for path in left)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_clear_error(case: Hostile, outcomes: dict[str, Outcome]) -> None:
    found = outcomes[case.name]
    told = found.stdout + found.stderr
    assert found.exit_code == case.exit_code, told
    assert re.search(case.says, found.stderr), told
    assert "Traceback" not in told
    assert "fault in vermilion" not in told, told
    lines = [line for line in found.stderr.splitlines() if not line.startswith("warning:")]
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"], told
    assert len(found.stderr) <= MAX_ERROR_CHARACTERS
    assert found.stdout == ""
    assert all(c.isprintable() or c == "\n" for c in told), ascii(told)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nothing_left_and_nothing_filled(case: Hostile, outcomes: dict[str, Outcome]) -> None:
    found = outcomes[case.name]
    assert found.left_over == ()
    assert found.peak_bytes < MAX_PEAK_BYTES
    assert found.seconds < MAX_SECONDS


def test_there_are_enough() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    assert len(names) >= 60


# One or two of each kind also go through a process of their own, as a user starts it.
WHOLE_PROCESS = (
    "no-file",
    "cut-after-50-percent",
    "pickle",
    "bomb-of-nodes",
    "cycle",
    "name-with-escape-codes",
    "functions-without-end",
    "weight-shape-too-large",
    "external-parent",
    "terabytes-hidden-constant-of-shape",
    "bundle-traversal",
    "bundle-part-asks-for-terabytes",
    "input-zip-bomb",
)


@pytest.mark.parametrize("name", WHOLE_PROCESS)
def test_as_a_user_starts_it(name: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == name)
    plan = _planned(case, tmp_path)
    stdout, stderr = tmp_path / name / "stdout.txt", tmp_path / name / "stderr.txt"
    peak = tmp_path / name / "peak.txt"
    command = [sys.executable, "-m", "vermilion", *plan["words"], "--json"]
    with stdout.open("wb") as out, stderr.open("wb") as err:
        exit_code = subprocess.call(
            [sys.executable, "-c", STARTER, peak, *command],
            env={**_environment(), "PYTHONPATH": str(SOURCE)},
            stdout=out,
            stderr=err,
            timeout=60,
        )
    told = json.loads(stdout.read_text(encoding="utf-8"))
    assert exit_code == case.exit_code
    assert int(peak.read_text()) < MAX_PEAK_BYTES
    assert told["ok"] is False
    assert re.search(case.says, f"{told['error']['message']} ({told['error']['where']})")
    assert told["error"]["hint"]
    assert "Traceback" not in stderr.read_text(encoding="utf-8")
    assert _left_over(tmp_path / name / "out") == ()
