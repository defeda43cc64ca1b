"""Children that take turns on one core, and what their times come to."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import psutil

Record = dict[str, Any]


def on_one_core() -> None:
    """Keep this process, and the threads that it will have, on one core, where the system can."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):  # macOS has none
        process.cpu_affinity(process.cpu_affinity()[-1:])


def in_turns(script: str, commands: Sequence[Sequence[str]], turns: int) -> Iterator[Record]:
    """Run each command in a process of its own, all of them in each turn; give what they print.

    What is read for the first time or compiled is not measured: a turn before the first is left
    out.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for turn in range(-1, turns):
        for words in commands:
            done = subprocess.run(
                [sys.executable, script, *words],
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                check=False,
            )
            if done.returncode:
                raise SystemExit(f"`{' '.join([script, *words])}` failed")
            if turn >= 0:
                yield {**json.loads(done.stdout.splitlines()[-1]), "turn": turn}


def spread(values: Sequence[float]) -> str:
    """Say the median, and the least and the most."""
    return f"{statistics.median(values):.1f} ({min(values):.1f}–{max(values):.1f})"


def rows(records: Sequence[Record], keys: Sequence[str], measured: Sequence[str]) -> Iterator[str]:
    """Yield a line for each combination of `keys`: medians and spread of what was measured."""
    for key in dict.fromkeys(tuple(str(one[name]) for name in keys) for one in records):
        same = [one for one in records if tuple(str(one[name]) for name in keys) == key]
        found = (spread([one[name] for one in same]) for name in measured)
        yield "".join(f"{word:<16}" for word in key) + "".join(f"{word:>24}" for word in found)


def head(keys: Sequence[str], measured: Sequence[str]) -> str:
    """Return the line above `rows`."""
    return "".join(f"{word:<16}" for word in keys) + "".join(f"{word:>24}" for word in measured)
