"""Makes `hipify/words/*.txt`: the names that HIP's headers and AMD's bindings declare.

`hip_math.txt` alone is not made here: no package brings `hip_math_constants.h`, whose names are
those of CUDA's `math_constants.h` with `HIP_` for `CUDART_`.

`python tests/hipify/word_lists.py` writes them; a test holds that they are up to date.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

WORDS = Path(__file__).parents[2] / "src" / "vermilion" / "hipify" / "words"

# The public headers: those in amd_detail/ hold what is not for users, with these exceptions.
_HIP_HEADERS = (
    "hip_runtime_api.h", "driver_types.h", "channel_descriptor.h", "hip_texture_types.h",
    "texture_types.h", "surface_types.h", "linker_types.h", "library_types.h", "hip_common.h",
    "amd_detail/amd_channel_descriptor.h", "amd_detail/amd_hip_runtime.h",
    "amd_detail/amd_hip_gl_interop.h",
)  # fmt: skip
_HIP = r"(?:i|make_)?hip[A-Z]\w+|hip_[A-Z]\w+|HIP_[A-Z]\w+|HIP[a-z]\w+"
_BINDINGS = {
    "hipblas": r"hipblas[A-Z]\w+|HIPBLAS_\w+",
    "hipblaslt": r"hipblasLt\w+|HIPBLASLT_\w+",
    "hipfft": r"hipfft\w+|HIPFFT_\w+",
    "hiprand": r"hiprand\w+|HIPRAND_\w+",
    "hipsparse": r"hipsparse\w+|HIPSPARSE_\w+",
    "hipsolver": r"hipsolver\w+|HIPSOLVER_\w+",
    "hiprtc": r"hiprtc\w+|HIPRTC_\w+",
}


def folder_of(module: str) -> Path:
    """Return the folder of an installed package without importing it."""
    spec = find_spec(module)
    assert spec is not None, f"{module} is not installed"
    assert spec.submodule_search_locations, f"{module} is no package"
    return Path(spec.submodule_search_locations[0])


def word_lists() -> dict[Path, str]:
    """Return each file's text."""
    include = folder_of("triton") / "backends" / "amd" / "include" / "hip"
    text = "\n".join((include / name).read_text(encoding="utf-8") for name in _HIP_HEADERS)
    text = re.sub(r"//.*|/\*[\s\S]*?\*/", "", text)
    lists = {"hip": sorted(set(re.findall(rf"\b(?:{_HIP})\b", text)))}
    bindings = folder_of("rocm") / "bindings"
    for library, pattern in _BINDINGS.items():
        text = (bindings / f"cy{library}.pxd").read_text(encoding="utf-8")
        names = set(re.findall(rf"\b(?:{pattern})\b", re.sub(r"#.*", "", text)))
        lists[library] = sorted(name for name in names if "__" not in name)
    return {WORDS / f"{name}.txt": "\n".join(words) + "\n" for name, words in lists.items()}


if __name__ == "__main__":
    for path, content in word_lists().items():
        path.write_text(content, encoding="utf-8")
