"""Runs command lines one after the other in this process and notes what became of each.

`python hostile_child.py PLAN RESULTS`: PLAN is a JSON list of `{name, words, out}`; a line of JSON
is appended to RESULTS for each, so that a crash shows which one it was.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from vermilion.cli import main

# Far above what is allowed, so that the peak shows it, and below what a test machine has.
MAX_ADDRESS_BYTES = 8 << 30


def _peak_bytes() -> int:
    """Return the highest memory of this process since it was last forgotten."""
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        info = psutil.Process().memory_info()
        return int(getattr(info, "peak_wset", info.rss))
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def _forget_peak() -> None:
    # Where there is no such file peaks only ever grow, and the first case over the limit is it.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _carry_out(words: list[str], out: Path) -> dict[str, object]:
    kept = [os.dup(1), os.dup(2)]
    targets = [out / "stdout.txt", out / "stderr.txt"]
    for number, target in zip((1, 2), targets, strict=True):
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
        os.close(descriptor)
    begin = time.perf_counter()
    try:
        code = main(words)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
    return {"exit_code": code, "seconds": time.perf_counter() - begin}


def _limit_memory() -> None:
    """Keep a case that does fill the memory from taking the machine with it."""
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_BYTES, MAX_ADDRESS_BYTES))


if __name__ == "__main__":
    _limit_memory()
    plan, results = Path(sys.argv[1]), Path(sys.argv[2])
    for case in json.loads(plan.read_text(encoding="utf-8")):
        _forget_peak()
        result = _carry_out(case["words"], Path(case["out"]))
        with results.open("a", encoding="utf-8") as file:
            row = {"name": case["name"], "peak_bytes": _peak_bytes(), **result}
            file.write(json.dumps(row) + "\n")
