"""One CUDA name → its HIP name, by rule where the name is the same word, else by table.

`words/*.txt` are the names that HIP's headers (7.1) and AMD's bindings of its libraries (10.0)
declare; `tests/hipify/word_lists.py` makes them. `renames/*.txt` are CUDA names whose AMD name is
another word: `CUDA HIP`, with ` !` where the parameters differ too, or `CUDA - what to do instead`.
`renames/macros.txt` are the names of CUDA's macros and enumerators that begin with `CU`: many
projects begin their own so, and only a list tells which is which.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
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
def cuda_macros() -> frozenset[str]:
    """Return the macros, enumerators and structures of CUDA that begin with `CU`."""
    return frozenset((_HERE / "renames" / "macros.txt").read_text("utf-8").split())


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


@dataclass(frozen=True)
class Form:
    """A call of HIP's; `added` is a further argument: which one, and its text."""

    hip: str
    added: tuple[int, str] | None = None


@cache
def forms() -> Mapping[str, Mapping[int, Form]]:
    """Return the calls of which CUDA has several forms: name → number of arguments → HIP's."""
    rows: dict[str, dict[int, Form]] = {}
    for line in (_HERE / "renames" / "forms.txt").read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        name, count, hip, *added = line.split(" ", 4)
        extra = (int(added[0].removeprefix("+")) - 1, added[1]) if added else None
        rows.setdefault(name, {})[int(count)] = Form(hip, extra)
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
            Family("make_cuda", "make_hip", "HIP"),
            Family("CUDART_", "HIP_", "HIP"),
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
# how many a project begins its own macros, so only what stands in a list is taken there.
_FOREIGN = re.compile(
    r"(?:cuda|cublas|cublasLt|cublasXt|cufft|cudnn|cusparse|cusolver|curand|nvrtc|nvtx|nvml|cutensor)"
    r"[A-Z]\w*|curand_\w+|cu[A-Z][a-z]\w*|CU[a-z]\w+"
    r"|(?:CUBLAS|CUBLASLT|CUFFT|CURAND|CUDNN|CUSPARSE|CUSOLVER|NVRTC)_[A-Z]\w*"
    r"|CUDA_[RC]_\d\w*|CUDA_ERROR_\w+|make_cuda[A-Z]\w*|__cuda[A-Z_]\w*"
    r"|cu(?:GL|WGL|EGL|VDPAU|D3D\d+)[A-Z]\w+|CU_(?:GL|EGL|D3D\d+)_\w+|PFN_cu(?:da)?[A-Z]\w+"
    r"|(?:NVTX|NVML)_[A-Z]\w+|__nv_(?:fp|cvt)\w+|__NV_E\dM\d"
)
# Endings that a CUDA header gives to a later form of a function; lengths of 64 bits (`_64`) are
# another function, and keep their ending.
_VERSIONED = re.compile(r"(\w+?)(?:_v\d+|_ptsz|_ptds)(_64)?$")

# Enumerators of the driver are HIP's by their letters, after these changes of what they begin with.
_BEGINNINGS = (
    ("CU_DEVICE_ATTRIBUTE_", "deviceattribute"),
    ("CU_DEVICE_P2P_ATTRIBUTE_", "devp2pattr"),
    ("CU_JIT_INPUT_", "jitinput"),
    ("CU_JIT_CACHE_OPTION_", "jitcacheoption"),
    ("CU_JIT_", "jitoption"),
    ("CU_PREFER_", "jitprefer"),
    ("CU_MEM_ALLOC_GRANULARITY_", "memallocationgranularity"),
    ("CU_MEMHOSTREGISTER_", "hostregister"),
    ("CU_MEMHOSTALLOC_", "hostmalloc"),
    ("CUDA_ARRAY3D_", "array"),
    ("CUDA_ERROR_", "error"),
    ("CUDA_", ""),
    ("CU_", ""),
)


def is_cuda_name(name: str) -> bool:
    """Say whether a name looks like one of CUDA's."""
    return _FOREIGN.fullmatch(name) is not None or name in cuda_macros()


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

    def beginning(self, name: str) -> str:
        """Return the beginning of HIP's names that stands for the beginning of CUDA's.

        A macro that pastes names together has only the beginning: `cudaMemcpy##kind`.
        """
        for family in FAMILIES:
            if name.startswith(family.prefix):
                hip = family.apply(name)
                if any(word.startswith(hip) for word in hip_words()):
                    return hip
        return ""

    def _find(self, name: str) -> Rename | Unknown | None:
        known = renames().get(name)
        if known is None and (by_rule := _by_rule(name)):
            return Rename(by_rule)
        if known is None and (versioned := _VERSIONED.match(name)):
            stem = versioned[1] + (versioned[2] or "")
            known = renames().get(stem)
            if known is None and (by_rule := _by_rule(stem)):
                return Rename(by_rule)
        if known is not None:
            return known if known.hip else Unknown(_library(name), known.hint)
        if name in self.extra:
            return Rename(self.extra[name])
        if not is_cuda_name(name):
            return None
        return Unknown(_library(name), "")


def _by_rule(name: str) -> str:
    """Return the name that a rule makes, if AMD's headers declare it."""
    for family in FAMILIES:
        if name.startswith(family.prefix) and family.apply(name) in hip_words():
            return family.apply(name)
    return _by_letters(name) if name.startswith("CU") else ""


def _by_letters(name: str) -> str:
    """Return HIP's name of an enumerator or a type: other capitals and `_` make no difference."""
    if re.match(r"CU[a-z]", name):
        return _without_case().get(name.removeprefix("CU").replace("_", "").lower(), "")
    if name not in cuda_macros() and not name.startswith(("CUDA_ERROR_", "CU_DEVICE_ATTRIBUTE_")):
        return ""
    for cuda, hip in _BEGINNINGS:
        if name.startswith(cuda):
            letters = hip + name.removeprefix(cuda).replace("_", "").lower()
            return _without_case().get(letters, "")
    return ""


@cache
def _without_case() -> Mapping[str, str]:
    """Return HIP's names by their letters, without what they begin with.

    Where two have the same, `HIP_X` is the driver's and `hipX` the runtime's: the driver's counts.
    """
    words = sorted(hip_words(), reverse=True)
    return {
        re.sub(r"^(?:hip|HIP)", "", word).replace("_", "").lower(): word
        for word in words
        if re.match(r"hip[A-Z]|HIP_(?!INCLUDE|ERROR)", word)
    }


def _library(name: str) -> str:
    fitting = (family.library for family in FAMILIES if name.startswith(family.prefix))
    return next(fitting, "HIP")
