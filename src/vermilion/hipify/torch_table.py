"""PyTorch's own table of names, where torch is installed: it widens ours, and is never needed."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import types
from pathlib import Path

from vermilion.errors import UnsupportedError

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
