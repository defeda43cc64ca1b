"""The names of both worlds, as files beside this one: `words/` and `renames/`.

`words/*.txt` are the names that HIP's headers (7.1) and AMD's bindings of its libraries (10.0)
declare; `tests/hipify/word_lists.py` makes them. `renames/*.txt` are CUDA names whose AMD name is
another word: `CUDA HIP`, with ` !` where the parameters differ too, or `CUDA - what to do instead`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent

RENAME_FILES = ("runtime", "driver", "libraries", "miopen")


@dataclass(frozen=True)
class Rename:
    """What a CUDA name becomes; without a HIP name, what to do instead."""

    hip: str
    hint: str = ""
    parameters_differ: bool = False


@cache
def hip_words() -> frozenset[str]:
    """Return every name that AMD's headers and bindings declare."""
    files = sorted((_HERE / "words").glob("*.txt"))
    return frozenset(word for file in files for word in file.read_text("utf-8").split())


@cache
def renames() -> Mapping[str, Rename]:
    """Return the CUDA names whose AMD name does not follow a rule."""
    return {
        name: rename
        for file in RENAME_FILES
        for name, rename in _read(_HERE / "renames" / f"{file}.txt").items()
    }


@cache
def includes() -> Mapping[str, Rename]:
    """Return the CUDA headers and their HIP headers."""
    return _read(_HERE / "renames" / "includes.txt")


def _read(path: Path) -> dict[str, Rename]:
    rows: dict[str, Rename] = {}
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        cuda, hip, *rest = line.split(" ", 2)
        assert cuda not in rows, f"{path.name}:{number} names `{cuda}` twice"
        if hip == "-":
            rows[cuda] = Rename("", hint=rest[0])
        else:
            rows[cuda] = Rename(hip, parameters_differ=rest == ["!"])
    return rows
