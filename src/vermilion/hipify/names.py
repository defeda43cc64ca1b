"""One CUDA name → its HIP name, by rule where the name is the same word, else by table."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache

from vermilion.hipify.tables import Rename, hip_words, renames


@dataclass(frozen=True)
class Family:
    """The names of one CUDA library, and the rule that most of them follow."""

    prefix: str
    replacement: str
    library: str

    def apply(self, name: str) -> str:
        """Return the name that the rule makes."""
        return self.replacement + name.removeprefix(self.prefix)


# The longest prefix that fits a name decides.
FAMILIES = tuple(
    sorted(
        (
            Family("cudaDevAttr", "hipDeviceAttribute", "HIP"),
            Family("cuda", "hip", "HIP"),
            Family("CUDA_R_", "HIP_R_", "HIP"),
            Family("CUDA_C_", "HIP_C_", "HIP"),
            Family("CUDA_ERROR_", "hipError", "HIP"),
            Family("CU_DEVICE_ATTRIBUTE_", "hipDeviceAttribute", "HIP"),
            Family("cu", "hip", "HIP"),
            Family("CU_", "HIP_", "HIP"),
            Family("cublas", "hipblas", "hipBLAS"),
            Family("CUBLAS_", "HIPBLAS_", "hipBLAS"),
            Family("cublasLt", "hipblasLt", "hipBLASLt"),
            Family("CUBLASLT_", "HIPBLASLT_", "hipBLASLt"),
            Family("cufft", "hipfft", "hipFFT"),
            Family("CUFFT_", "HIPFFT_", "hipFFT"),
            Family("curand", "hiprand", "hipRAND"),
            Family("CURAND_", "HIPRAND_", "hipRAND"),
            Family("cusparse", "hipsparse", "hipSPARSE"),
            Family("CUSPARSE_", "HIPSPARSE_", "hipSPARSE"),
            Family("cusolver", "hipsolver", "hipSOLVER"),
            Family("CUSOLVER_", "HIPSOLVER_", "hipSOLVER"),
            Family("nvrtc", "hiprtc", "hipRTC"),
            Family("NVRTC_", "HIPRTC_", "hipRTC"),
            Family("cudnn", "miopen", "MIOpen"),
            Family("CUDNN_", "miopen", "MIOpen"),
            Family("nvtx", "roctx", "rocTX"),
            Family("nvml", "rsmi", "ROCm SMI"),
            Family("cutensor", "hiptensor", "hipTensor"),
        ),
        key=lambda family: -len(family.prefix),
    )
)

# A name of CUDA goes on with a capital letter after its prefix. `CU_...` and `CUDA_...` are also
# how many a project begins its own macros, so only what stands in a table is taken there.
_FOREIGN = re.compile(
    r"(?:cuda|cublas|cublasLt|cublasXt|cufft|cudnn|cusparse|cusolver|curand|nvrtc|nvtx|nvml|cutensor)"
    r"[A-Z]\w*|curand_\w+|cu[A-Z][a-z]\w*|CU[a-z]\w+"
    r"|(?:CUBLAS|CUBLASLT|CUFFT|CURAND|CUDNN|CUSPARSE|CUSOLVER|NVRTC)_[A-Z]\w*"
    r"|CUDA_[RC]_\d\w*|CUDA_ERROR_\w+"
)
# Endings that a CUDA header gives to the newest form of a function.
_VERSIONED = re.compile(r"(\w+?)(?:_v\d(?:_\d+)?|_ptsz|_ptds)$")


def is_cuda_name(name: str) -> bool:
    """Say whether a name looks like one of CUDA's."""
    return _FOREIGN.fullmatch(name) is not None


@dataclass(frozen=True)
class Unknown:
    """A CUDA name that has no HIP name, as far as this package knows."""

    library: str
    hint: str


@dataclass
class Names:
    """The translation of names; remembers what it looked up."""

    extra: Mapping[str, str] = field(default_factory=dict)
    _seen: dict[str, Rename | Unknown | None] = field(default_factory=dict, repr=False)

    def look_up(self, name: str) -> Rename | Unknown | None:
        """Return what becomes of a name, None if it is not CUDA's."""
        if name not in self._seen:
            self._seen[name] = self._find(name)
        return self._seen[name]

    def _find(self, name: str) -> Rename | Unknown | None:
        known = renames().get(name)
        if known is None and (versioned := _VERSIONED.match(name)):
            known = renames().get(versioned[1])
        if known is not None:
            return known if known.hip else Unknown(_library(name), known.hint)
        if by_rule := _by_rule(name):
            return Rename(by_rule)
        if name in self.extra:
            return Rename(self.extra[name])
        if not is_cuda_name(name):
            return None
        return Unknown(_library(name), "")


def _by_rule(name: str) -> str:
    """Return the name that a rule makes, if AMD's headers declare it."""
    stem = _VERSIONED.match(name)
    for spelling in (name, *([stem[1]] if stem else [])):
        for family in FAMILIES:
            if spelling.startswith(family.prefix) and family.apply(spelling) in hip_words():
                return family.apply(spelling)
    fitting = [family for family in FAMILIES if name.startswith(family.prefix)]
    if not fitting or not fitting[0].prefix.endswith("_"):
        return ""
    return _without_case().get(fitting[0].apply(name).replace("_", "").lower(), "")


@cache
def _without_case() -> Mapping[str, str]:
    """Return HIP's enumerators by their letters: CUDA writes some with other capitals and `_`."""
    kinds = ("hipError", "hipDeviceAttribute")
    return {word.lower(): word for word in sorted(hip_words()) if word.startswith(kinds)}


def _library(name: str) -> str:
    fitting = (family.library for family in FAMILIES if name.startswith(family.prefix))
    return next(fitting, "HIP")


def libraries_of(words: Iterable[str]) -> set[str]:
    """Return the AMD libraries whose names are among some HIP words."""
    pairs = [(family.replacement, family.library) for family in FAMILIES]
    pairs.sort(key=lambda pair: -len(pair[0]))
    return {
        next((library for prefix, library in pairs if word.startswith(prefix)), "")
        for word in words
    } - {""}
