"""The processor of this machine and its memory."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vermilion.hardware.targets.x86 import amd_core, features_by_core

# Names in /proc/cpuinfo where they differ from LLVM's.
# Source: Linux, arch/x86/include/asm/cpufeatures.h.
_LINUX_NAMES = {
    "abm": "lzcnt",
    "avx512_bf16": "avx512bf16",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_vnni": "avx512vnni",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx_vnni": "avxvnni",
    "bmi1": "bmi",
    "pclmulqdq": "pclmul",
    "pni": "sse3",
    "sha_ni": "sha",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
}

_CORES = features_by_core()
_KNOWN_FEATURES = frozenset().union(*_CORES.values())


@dataclass(frozen=True)
class CpuInfo:
    """The processor: who made it, which core it is, what it can do.

    `core` is `zen` … `zen6`, or empty where family and model are in no table. `features` has
    LLVM's names. Zero stands for a count that this system does not tell.
    """

    brand: str
    vendor: str
    family: int
    model: int
    core: str
    features: frozenset[str]
    physical_cores: int
    logical_cores: int
    memory_bytes: int
    available_memory_bytes: int

    def as_json(self) -> dict[str, object]:
        """Return the keys that `vermilion devices --json` prints."""
        return {
            "brand": self.brand,
            "vendor": self.vendor,
            "family": self.family,
            "model": self.model,
            "core": self.core,
            "features": sorted(self.features),
            "physical_cores": self.physical_cores,
            "logical_cores": self.logical_cores,
            "memory_bytes": self.memory_bytes,
            "available_memory_bytes": self.available_memory_bytes,
        }


def detect_cpu(proc_root: Path = Path("/proc")) -> CpuInfo:
    """Describe this machine's processor, from /proc or, on Windows, the registry."""
    if sys.platform == "win32":
        return _windows_cpu()
    cpuinfo, meminfo = proc_root / "cpuinfo", proc_root / "meminfo"
    if cpuinfo.is_file():
        memory = meminfo.read_text() if meminfo.is_file() else ""
        return parse_proc(cpuinfo.read_text(), memory)
    return _plain_cpu()


def parse_proc(cpuinfo: str, meminfo: str) -> CpuInfo:
    """Read the texts of /proc/cpuinfo and /proc/meminfo."""
    processors = [_colon_lines(block) for block in cpuinfo.split("\n\n") if block.strip()]
    # A processor that lacks the model name is a board's summary block, as on ARM.
    first = processors[0] if processors else {}
    vendor = first.get("vendor_id", "")
    family, model = _number(first.get("cpu family")), _number(first.get("model"))
    cores = {
        (p.get("physical id", "0"), p.get("core id", p.get("processor", ""))) for p in processors
    }
    memory = _colon_lines(meminfo)
    return CpuInfo(
        brand=first.get("model name", platform.machine()),
        vendor=vendor,
        family=family,
        model=model,
        core=amd_core(family, model) if vendor == "AuthenticAMD" else "",
        features=features_from_linux(first.get("flags", "").split()),
        physical_cores=len(cores),
        logical_cores=sum("processor" in p for p in processors),
        memory_bytes=_kibibytes(memory.get("MemTotal")),
        available_memory_bytes=_kibibytes(memory.get("MemAvailable")),
    )


def features_from_linux(flags: Iterable[str]) -> frozenset[str]:
    """Translate the flags of /proc/cpuinfo; those that no core of ours asks for are dropped."""
    return frozenset(_LINUX_NAMES.get(flag, flag) for flag in flags) & _KNOWN_FEATURES


def parse_processor_identifier(identifier: str) -> tuple[str, int, int]:
    """Read Windows' `AMD64 Family 25 Model 116 Stepping 1, AuthenticAMD` → vendor, family, model.

    Zeros and an empty vendor where the text has another form.
    """
    found = re.search(r"Family (\d+) Model (\d+)", identifier)
    vendor = identifier.rpartition(",")[2].strip() if "," in identifier else ""
    return (vendor, int(found[1]), int(found[2])) if found else (vendor, 0, 0)


def features_on_windows(core: str, has_avx2: bool, has_avx512: bool) -> frozenset[str]:
    """Return the features of `core` as far as the system says that they are switched on.

    Windows tells of AVX2 and AVX-512 but not of each extension, so what the core is known to
    have stands for the rest.
    """
    if not has_avx2:
        return frozenset()
    features = _CORES.get(core, _CORES["zen5"] if core == "zen6" else _CORES["x86-64-v3"])
    if has_avx512:
        return features
    return frozenset(name for name in features if not name.startswith("avx512"))


def count_physical_cores(records: bytes) -> int:
    """Count the records of GetLogicalProcessorInformationEx(RelationProcessorCore).

    Each begins with two 32-bit words, the relation and the record's own size in bytes.
    """
    offset = count = 0
    while offset + 8 <= len(records):
        _, size_bytes = struct.unpack_from("<II", records, offset)
        if size_bytes < 8:
            break
        count += 1
        offset += size_bytes
    return count


def _colon_lines(text: str) -> dict[str, str]:
    rows = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in rows if colon}


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0


def _kibibytes(text: str | None) -> int:
    return _number(text.split()[0]) * 1024 if text else 0


def _plain_cpu() -> CpuInfo:
    cores = os.cpu_count() or 0
    brand = platform.processor() or platform.machine()
    return CpuInfo(brand, "", 0, 0, "", frozenset(), 0, cores, 0, 0)


if sys.platform == "win32":
    import winreg

    # Source: winnt.h, PF_AVX2_INSTRUCTIONS_AVAILABLE, PF_AVX512F_INSTRUCTIONS_AVAILABLE.
    _PF_AVX2 = 40
    _PF_AVX512F = 41
    _CPU_KEY = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"

    class _MemoryStatus(ctypes.Structure):
        # Source: sysinfoapi.h, MEMORYSTATUSEX.
        _fields_ = [
            ("length", ctypes.c_uint32),
            ("load_percent", ctypes.c_uint32),
            ("total", ctypes.c_uint64),
            ("available", ctypes.c_uint64),
            ("rest", ctypes.c_uint64 * 5),
        ]

    def _windows_cpu() -> CpuInfo:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, _CPU_KEY) as key:
            brand = str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()
            vendor = str(winreg.QueryValueEx(key, "VendorIdentifier")[0])
            identifier = str(winreg.QueryValueEx(key, "Identifier")[0])
        _, family, model = parse_processor_identifier(identifier)
        core = amd_core(family, model) if vendor == "AuthenticAMD" else ""
        kernel = ctypes.windll.kernel32
        memory = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
        kernel.GlobalMemoryStatusEx(ctypes.byref(memory))
        return CpuInfo(
            brand=brand,
            vendor=vendor,
            family=family,
            model=model,
            core=core,
            features=features_on_windows(
                core,
                bool(kernel.IsProcessorFeaturePresent(_PF_AVX2)),
                bool(kernel.IsProcessorFeaturePresent(_PF_AVX512F)),
            ),
            physical_cores=_windows_physical_cores(),
            logical_cores=os.cpu_count() or 0,
            memory_bytes=memory.total,
            available_memory_bytes=memory.available,
        )

    def _windows_physical_cores() -> int:
        size = ctypes.c_uint32(0)
        ask = ctypes.windll.kernel32.GetLogicalProcessorInformationEx
        ask(0, None, ctypes.byref(size))  # 0: RelationProcessorCore
        records = ctypes.create_string_buffer(size.value)
        if not ask(0, records, ctypes.byref(size)):
            return 0
        return count_physical_cores(records.raw[: size.value])
