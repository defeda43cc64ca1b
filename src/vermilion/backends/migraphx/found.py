"""Which MIGraphX provider is here, with which libraries, and whether HIP gives it a GPU.

In this order, cheapest first, and nothing is believed that can be tried: a provider's file; the
libraries that it needs; the compute driver's GPUs; HIP's count of them, in a child process; the
provider's library, in a child process.
"""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from vermilion.backends.base import Availability
from vermilion.backends.iree.found import choose, paired
from vermilion.backends.migraphx.hip import Hip, ask_hip
from vermilion.errors import Refusal
from vermilion.hardware.devices import detect_machine
from vermilion.hardware.environment import missing_libraries
from vermilion.hardware.gpu import find_gpus
from vermilion.hardware.options.gpu import AMDGPU, BUILT_IN, MIGRAPHX, PLUGIN, TABLES
from vermilion.hardware.options.option import OptionTable
from vermilion.hardware.providers import ProviderInfo, find_providers, probe_providers
from vermilion.hardware.targets.target import Target

# What a provider's file asks for: a name in ONNX Runtime's list says how it was built, and a
# session without the libraries silently runs on the CPU.
# Format: System V ABI, chapter 5, `Dynamic Section`.
_STRINGS, _NEEDED = 5, 1  # DT_STRTAB, DT_NEEDED
_LOAD, _DYNAMIC = 1, 2  # program headers

# The package of ROCm's repository that a library lies in.
# Source: rocm.docs.amd.com, "ROCm package structure", and MIGraphX's installation page.
_PACKAGES: Mapping[str, str] = {
    "libamdhip64": "hip-runtime-amd",
    "libhipblas": "hipblas",
    "libhipblaslt": "hipblaslt",
    "libhipfft": "hipfft",
    "libhsa-runtime64": "hsa-rocr",
    "libMIOpen": "miopen-hip",
    "libmigraphx": "migraphx",
    "libmigraphx_c": "migraphx",
    "librocblas": "rocblas",
    "librocm_smi64": "rocm-smi-lib",
    "libroctracer64": "roctracer",
}
_ROCM_FOLDER = "/opt/rocm/lib"


def needed_libraries(library: Path) -> tuple[str, ...]:
    """Return the names that the dynamic loader will look for; none for a file that is no ELF-64."""
    data = library.read_bytes()
    if data[:6] != b"\x7fELF\x02\x01":
        return ()
    try:
        return tuple(_needed(data))
    except (struct.error, ValueError, OverflowError):
        return ()


def _needed(data: bytes) -> Iterable[str]:
    (table,) = struct.unpack_from("<Q", data, 0x20)
    entry, count = struct.unpack_from("<HH", data, 0x36)
    segments = [struct.unpack_from("<IIQQQQQQ", data, table + i * entry) for i in range(count)]
    loads = [(s[3], s[2], s[5]) for s in segments if s[0] == _LOAD]  # address, offset, bytes
    rows = [
        struct.unpack_from("<QQ", data, at)
        for kind, _, offset, _, _, size, *_ in segments
        if kind == _DYNAMIC
        for at in range(offset, offset + size - 15, 16)
    ]
    strings = next((_offset(value, loads) for tag, value in rows if tag == _STRINGS), None)
    if strings is None:
        return
    for tag, value in rows:
        if tag == _NEEDED:
            start = strings + value
            yield data[start : data.index(b"\0", start)].decode("ascii", "replace")


def _offset(address: int, loads: list[tuple[int, int, int]]) -> int | None:
    return next((o + address - a for a, o, size in loads if a <= address < a + size), None)


def missing_for(library: Path, variables: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return the libraries that a provider's file needs and the loader would not find, in order.

    Those that lie beside it count as found.
    """
    names = needed_libraries(library)
    environment = os.environ if variables is None else variables
    missing = missing_libraries(names, environment)
    return tuple(n for n in names if n in missing and not (library.parent / n).is_file())


def installs(names: Iterable[str]) -> str:
    """Return the line that installs libraries, by ROCm's packages.

    Those of no package are named.
    """
    wanted = [(name, _PACKAGES.get(name.partition(".so")[0], "")) for name in names]
    packages = list(dict.fromkeys(package for _, package in wanted if package))
    others = [name for name, package in wanted if not package]
    lines = []
    if packages:
        major = next((n.rpartition(".so.")[2] for n, _ in wanted if "amdhip64.so." in n), "")
        version = f" of ROCm {major}" if major.isdigit() else ""
        lines.append(
            f"sudo apt install {' '.join(packages)} (from AMD's repository{version}:"
            " https://rocm.docs.amd.com/projects/install-on-linux);"
            f" export LD_LIBRARY_PATH={_ROCM_FOLDER} where they are not in the loader's cache"
        )
    if others:
        lines.append(f"install what brings {', '.join(f'`{name}`' for name in others)}")
    return "; ".join(lines)


_DOCTOR = "`vermilion doctor` says what is missing"
_INSTALL_PROVIDER = (
    "pip uninstall -y onnxruntime && pip install onnxruntime-migraphx (built in, needs ROCm 7), or"
    " set AMDGPU_EP_PATH to the plugin library of https://github.com/onnxruntime/onnxruntime-ep-amdgpu"
)
# The umbrella sends gfx11 and gfx12 to MIGraphX, and everything below to DirectML, which Windows
# alone has. Source: onnxruntime/onnxruntime-ep-amdgpu, src/amdgpu/gpu_routing_tables.h.
_UMBRELLA_TAKES = ("gfx11", "gfx12")
_VERSION = re.compile(r"\.so\.(\d[\d.]*)$")


@dataclass(frozen=True)
class Stack:
    """Everything below a compiled part that can make it stale."""

    provider: str  # ONNX Runtime's name of it
    build: str  # which table of options holds
    provider_version: str
    library: str  # of a plugin; empty where the provider is built in
    gfx: str
    device_number: int  # HIP's
    hip: str = ""
    migraphx: str = ""

    def as_details(self) -> dict[str, str]:
        """Return what is kept with a compiled part and compared when it is loaded."""
        return {
            "provider": self.provider,
            "build": self.build,
            "provider_version": self.provider_version,
            "gfx": self.gfx,
            "hip": self.hip,
            "migraphx": self.migraphx,
        }

    @property
    def table(self) -> OptionTable:
        """The options that this build takes."""
        return next(t for t in TABLES if (t.provider, t.build) == (self.provider, self.build))


# What each of them is called for people.
WORDS: Mapping[str, str] = {
    "provider": "the provider",
    "build": "the provider's build",
    "provider_version": "the provider's version",
    "gfx": "the GPU",
    "hip": "HIP",
    "migraphx": "MIGraphX",
}


@dataclass(frozen=True)
class Surroundings:
    """How a machine is looked at; a test takes recorded ones."""

    providers: Callable[[], tuple[ProviderInfo, ...]] = find_providers
    missing: Callable[[Path], tuple[str, ...]] = missing_for
    gpus: Callable[[], Sequence[str]] = field(default=lambda: _driven_gpus())
    hip: Callable[[Sequence[str]], Hip] = ask_hip
    probe: Callable[[tuple[ProviderInfo, ...]], tuple[ProviderInfo, ...]] = probe_providers


def find_stack(target: Target, around: Surroundings | None = None) -> Stack | Availability:
    """Return the provider, its libraries and the GPU for a target, or why there is none."""
    look = around or Surroundings()
    provider = _chosen(look.providers(), target)
    if isinstance(provider, Availability):
        return provider
    file = file_of(provider)
    missing = look.missing(file) if file.is_file() else ()
    if missing:
        return _no(
            f"`{file.name}` of {_origin(provider)} needs "
            + " and ".join(f"`{name}`" for name in missing)
            + ", which the loader does not find here: its sessions would silently run on the CPU",
            installs(missing),
        )
    hip = look.hip(_to_ask(file))
    if hip.error or hip.refused:
        reasons = [hip.error] if hip.error else [f"{n}: {why}" for n, why in hip.refused.items()]
        return _no(f"HIP cannot be used: {'; '.join(reasons)}", _DOCTOR)
    devices = paired(hip.devices, look.gpus())
    if isinstance(devices, Refusal):
        return _no(devices.reason, devices.hint)
    device = choose(target.architectures, devices)
    if isinstance(device, Refusal):
        return _no(device.reason, device.hint)
    probed = look.probe((provider,))[0]
    if not probed.loads:
        return _no(f"the provider of {_origin(provider)} does not load: {probed.reason}", _DOCTOR)
    return Stack(
        provider=provider.name,
        build=build_of(provider),
        provider_version=provider.version,
        library=probed.library if provider.kind == "plugin" else "",
        gfx=device.gfx,
        device_number=int(device.uri.rpartition("/")[2]),
        hip=hip.version,
        migraphx=_library_version(hip.paths, "libmigraphx"),
    )


def file_of(provider: ProviderInfo) -> Path:
    """Return the provider's library.

    Where its package alone is known, it is looked for in there.
    """
    package = None if provider.library or not provider.origin else _spec(provider.origin)
    if package is None or package.origin is None:
        return Path(provider.library)
    found = sorted(Path(package.origin).parent.rglob("lib*-ep.so"))
    return found[0] if found else Path(provider.library)


def _spec(package: str) -> ModuleSpec | None:
    return find_spec(package) if package.isidentifier() else None


def build_of(provider: ProviderInfo) -> str:
    """Return the build whose every option the provider's file names; the largest such.

    What a wheel was built from is not in its version: the names stand in its library as text.
    """
    if provider.kind == "plugin":
        return PLUGIN
    file = file_of(provider)
    data = file.read_bytes() if file.is_file() else b""
    mine = [t for t in TABLES if t.provider == provider.name and t.build != PLUGIN]
    fitting = [t for t in mine if all(o.name.encode() in data for o in t.options)]
    return max(fitting, key=lambda t: len(t.options)).build if fitting else BUILT_IN


def _chosen(providers: Sequence[ProviderInfo], target: Target) -> ProviderInfo | Availability:
    """Return the plugin where there is one, else what is built in, else the umbrella."""
    takes_umbrella = any(gpu.startswith(_UMBRELLA_TAKES) for gpu in target.architectures)
    wanted = [
        *(p for p in providers if p.name == MIGRAPHX and p.kind == "plugin"),
        *(p for p in providers if p.name == MIGRAPHX and p.kind == "built in"),
        *(p for p in providers if p.name == AMDGPU and takes_umbrella),
    ]
    usable = next((p for p in wanted if p.loads is not False), None)
    if usable is not None:
        return usable
    if wanted:
        return _no("; ".join(p.reason for p in wanted), _INSTALL_PROVIDER)
    umbrella = [p for p in providers if p.name == AMDGPU]
    if umbrella:
        return _no(
            f"AMD's umbrella provider sends {target.name} to DirectML, which only Windows has",
            "set up the MIGraphX provider itself: " + _INSTALL_PROVIDER,
        )
    return _no("no MIGraphX provider is installed: this ONNX Runtime has none", _INSTALL_PROVIDER)


def _to_ask(provider: Path) -> tuple[str, ...]:
    """Return the libraries that tell of HIP: those of AMD's that the provider needs."""
    if sys.platform == "win32":
        return ("amdhip64_7.dll",)
    needed = needed_libraries(provider) if provider.is_file() else ()
    mine = [n for n in needed if n.startswith(("libamdhip64", "libmigraphx"))]
    hip_first = sorted(mine, key=lambda name: not name.startswith("libamdhip64"))
    return tuple(hip_first) or ("libamdhip64.so.7",)


def _driven_gpus() -> list[str]:
    """Return the architectures of the GPUs, in HIP's order.

    On Linux that is the compute driver's. On Windows nothing tells it, and several GPUs can be
    told by their number only where they are alike.
    """
    if sys.platform == "win32":
        seen = [gpu.gfx for gpu in detect_machine(probe_providers=False).gpus]
        return seen if len(set(seen)) == 1 else []
    root = Path("/sys")
    return [gpu.gfx for gpu in find_gpus((), root if root.is_dir() else None)]


def _library_version(paths: Mapping[str, str], stem: str) -> str:
    for name, path in paths.items():
        found = _VERSION.search(str(Path(path).resolve()))
        if name.startswith(stem) and found:
            return found[1]
    return ""


def _origin(provider: ProviderInfo) -> str:
    return f"{provider.origin} {provider.version}".strip()


def _no(reason: str, hint: str) -> Availability:
    return Availability(usable=False, reason=reason, hint=hint)
