"""The scripts that put load on a server: what they hold, and what they find."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pages import ROOT
from served import network

pytestmark = pytest.mark.needs("starlette", "uvicorn", "prometheus_client", "tokenizers")
BENCH = ROOT / "bench"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("serve_soak")


def ran(script: str, *words: str | Path) -> list[dict[str, Any]]:
    line = [sys.executable, str(BENCH / script), *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(text) for text in done.stdout.splitlines()]


def test_a_server_under_all_that_happens() -> None:
    (found,) = ran("serve_soak.py", "--requests", "900", "--kills", "2", "--connections", "16")
    assert found["broken"] == []
    assert found["kills"] == 2
    assert sum(found["counts"][kind] for kind in ("bytes 200", "json 200", "text 200")) > 450
    assert found["counts"]["malformed 400"] > 40
    assert found["counts"]["bytes 429"] > 0


def test_what_grows_is_found(soak: Any) -> None:
    tally = soak.Tally(weights=None)
    tally.readings = {
        1: [(100_000_000 + at, 5, 9) for at in range(100)],
        2: [(100_000_000 + at * 1_000_000, 5, 9) for at in range(100)],
        3: [(100_000_000, 5 + at, 9) for at in range(100)],
        4: [(1_000_000 * at, 5, 9 + at) for at in range(9)],  # too short a life
    }
    soak.check_growth(tally)
    assert len(tally.broken) == 2
    assert "memory of 2 grew" in tally.broken[0]
    assert "threads of 3" in tally.broken[1]


def test_both_servers_are_measured(tmp_path: Path) -> None:
    file = network(tmp_path, "layer")
    words = ["--models", file, "--connections", "2", "--seconds", "0.3", "--rounds", "2"]
    rows = ran("serve_bench.py", *words, "--chats", "")
    assert rows[0]["apart"] < 1e-3
    found = {(row["server"], row["connections"]): row for row in rows if "server" in row}
    assert len(found) == 2
    for row in found.values():
        assert row["requests_per_s"] > 0
        assert row["p50_ms"] <= row["p99_ms"]
    assert found["onnxruntime", 2]["times_the_peer"] == [1, 1, 1]
