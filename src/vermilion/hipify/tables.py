"""The names of both worlds, as files beside this one: `words/` and `renames/`.

`words/*.txt` are the names that HIP's headers (7.1) and AMD's bindings of its libraries (10.0)
declare; `tests/hipify/word_lists.py` makes them. `renames/*.txt` are CUDA names whose AMD name is
another word: `CUDA HIP`, with ` !` where the parameters differ too, or `CUDA - what to do instead`.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vermilion.errors import UnsupportedError

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


_NAME = re.compile(r"[A-Za-z_]\w*")


def torch_names() -> dict[str, str]:
    """Return torch's CUDA → HIP names, read from its files without importing torch.

    Raises: UnsupportedError where torch is missing, or keeps its table elsewhere.
    """
    spec = importlib.util.find_spec("torch")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folder = Path(places[0]) / "utils" / "hipify" if places else None
    if folder is None or not (folder / "cuda_to_hip_mappings.py").is_file():
        raise UnsupportedError(
            "`--with-torch-table` needs torch, and it is not installed",
            hint="pip install torch, or leave the option out: our own tables are complete alone",
        )
    table = _load(folder)
    names: dict[str, str] = {}
    for group in ("CUDA_IDENTIFIER_MAP", "CUDA_TYPE_NAME_MAP", "CUDA_SPECIAL_MAP"):
        for cuda, row in getattr(table, group, {}).items():
            hip = row[0] if isinstance(row, tuple) else row
            supported = "HIP_UNSUPPORTED" not in map(str, row)
            if supported and _NAME.fullmatch(cuda) and _NAME.fullmatch(str(hip)):
                names[cuda] = str(hip)
    return names


def _load(folder: Path) -> types.ModuleType:
    """Load the table as a module of a package that holds nothing but its folder."""
    package = types.ModuleType("_vermilion_torch_hipify")
    package.__path__ = [str(folder)]
    sys.modules[package.__name__] = package
    try:
        return importlib.import_module(f"{package.__name__}.cuda_to_hip_mappings")
    finally:
        for name in [name for name in sys.modules if name.startswith(package.__name__)]:
            del sys.modules[name]
