"""Put thousands of mutated model files through the whole path: `python tools/fuzz_files.py`.

Small networks and random graphs are changed in bytes, fields, shapes, attributes, types, names and
in what they say of themselves, then loaded, compiled, opened and run, each in a process of its own
with a limit of time and memory. Each is to run, or to end in an error in words.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / name) for name in ("tests", "src")]

from mutated_files.files import FAULTS, Mutated, table, try_files  # noqa: E402


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> int:
    """Try the files, print the table; return 1 where something is wrong."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--count", type=int, default=5000)
    words.add_argument("--seed", type=int, default=None, help="of the first file; fresh if absent")
    words.add_argument("--jobs", type=int, default=2)
    chosen = words.parse_args()
    seed = secrets.randbelow(10**9) if chosen.seed is None else chosen.seed
    _print(f"{chosen.count} files from seed {seed} on")

    def told(one: Mutated) -> None:
        if one.kind in FAULTS:
            _print(f"{one.seed} ({one.changes}): {one.kind}: {one.detail}")

    found = try_files(range(seed, seed + chosen.count), chosen.jobs, told)
    _print(table(found))
    wrong = [one for one in found if one.kind in FAULTS]
    if wrong:
        _print(f"the first again, from the folder `tests`: {wrong[0].line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
