"""PyTorch's headers for HIP, from an installed torch of any kind.

A torch for ROCm brings `ATen/hip` and `c10/hip`; others bring the same headers for CUDA, from which
ROCm's are translated when PyTorch is built for it, as they are here.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from vermilion.hipify.headers import torch_header
from vermilion.hipify.translate import translate

_TREES = ("ATen", "c10")
_WANTS = re.compile(r'#[ \t]*include[ \t]*[<"](?:torch|ATen|c10)/')

# What PyTorch's build of extensions for ROCm defines (torch.utils.cpp_extension).
DEFINES = (
    "USE_ROCM=1", "HIPBLAS_V2=1", "CUDA_HAS_FP16=1", "HIP_ENABLE_WARP_SYNC_BUILTINS=1",
    "TORCH_API_INCLUDE_EXTENSION_H=1", "TORCH_EXTENSION_NAME=extension",
)  # fmt: skip


def wants_torch(texts: Sequence[str]) -> bool:
    """Say whether a source includes PyTorch's headers."""
    return any(_WANTS.search(text) for text in texts)


def torch_include() -> Path | None:
    """Return the folder of an installed torch's headers, without importing it."""
    spec = find_spec("torch")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folder = Path(places[0]) / "include" if places else None
    return folder if folder is not None and (folder / "ATen").is_dir() else None


def write_torch_headers(folder: Path) -> tuple[Path, ...]:
    """Write the headers for HIP, and return all folders that an extension includes from."""
    include = torch_include()
    if include is None:
        return ()
    for tree in _TREES:
        source = include / tree / "cuda"
        for path in sorted(source.rglob("*")) if source.is_dir() else ():
            if path.suffix not in {".h", ".cuh"}:
                continue
            name = torch_header(path.relative_to(include).as_posix())
            text = translate(path.read_text("utf-8", errors="surrogateescape")).text
            _write(folder / name, text)
            # Headers of torch name each other by CUDA's names.
            forward = f"#pragma once\n#include <{name}>\n"
            _write(folder / path.relative_to(include), forward)
    # A build of torch without CUDA has made no such file.
    for name in ("c10/hip/impl/hip_cmake_macros.h", "c10/cuda/impl/cuda_cmake_macros.h"):
        if not (folder / name).exists():
            _write(folder / name, "#pragma once\n")
    python = sysconfig.get_path("include")
    return (folder, include, include / "torch" / "csrc" / "api" / "include", Path(python))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8", errors="surrogateescape")
