"""What scripts that measure have in common: commands that print a record, tables, files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from vermilion.bench.figures import spread
from vermilion.errors import DeviceError
from vermilion.rounds import in_rounds

Record = dict[str, Any]

_LAST_LINES = 3


def printed_record(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Record:
    """Run a command; return the last JSON object that it prints on a line.

    Raises: DeviceError with its last words where it fails.
    """
    done = subprocess.run(
        command, capture_output=True, encoding="utf-8", env=environment, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        words = done.stderr.strip().splitlines()[-_LAST_LINES:]
        raise DeviceError(
            words[-1] if words else f"it ended with code {done.returncode}",
            where=f"`{' '.join(command)}`",
            hint="\n".join(words[:-1]),
        )
    found: Record = json.loads(lines[-1])
    return found


def in_turns(script: str, commands: Sequence[Sequence[str]], turns: int) -> list[Record]:
    """Run a script with each command on one core, in processes that take turns.

    What is read for the first time or compiled is not measured: a round before the first is left
    out. Raises: DeviceError where a command fails.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def turn(words: Sequence[str], number: int) -> Record:
        record = printed_record([sys.executable, script, *words], environment)
        return {**record, "turn": number - 1}

    found = in_rounds(commands, turn, turns, warm_up=1)
    return [record for records in found for record in records]


def on_one_core() -> None:
    """Keep this process, and the threads that it will have, on one core, where the system can."""
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):  # macOS has none
        process.cpu_affinity(process.cpu_affinity()[-1:])


def rows(records: Sequence[Record], keys: Sequence[str], measured: Sequence[str]) -> Iterator[str]:
    """Yield a line for each combination of `keys`: medians and spread of what was measured."""
    for key in dict.fromkeys(tuple(str(one[name]) for name in keys) for one in records):
        same = [one for one in records if tuple(str(one[name]) for name in keys) == key]
        found = (spread([one[name] for one in same]) for name in measured)
        yield "".join(f"{word:<16}" for word in key) + "".join(f"{word:>24}" for word in found)


def head(keys: Sequence[str], measured: Sequence[str]) -> str:
    """Return the line above `rows`."""
    return "".join(f"{word:<16}" for word in keys) + "".join(f"{word:>24}" for word in measured)


def save_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write aside and rename: whoever is stopped here leaves no half of a file."""
    aside = file.with_name(file.name + ".part")
    aside.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    aside.replace(file)
