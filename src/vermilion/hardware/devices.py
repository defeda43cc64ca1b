"""What is in this machine: processor, NPUs, GPUs, and ONNX Runtime's providers for them."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from vermilion.hardware import providers as execution_providers
from vermilion.hardware.cpu import CpuInfo, detect_cpu
from vermilion.hardware.gpu import GpuInfo, find_gpus
from vermilion.hardware.npu import NpuInfo, find_npus, npu_target
from vermilion.hardware.pci import PciDevice, linux_devices, run_pnputil, windows_devices
from vermilion.hardware.providers import ProviderInfo

__all__ = [
    "CpuInfo",
    "GpuInfo",
    "Machine",
    "NpuInfo",
    "ProviderInfo",
    "detect_machine",
    "npu_target",
]


@dataclass(frozen=True)
class Machine:
    """This machine.

    `problems` are the places that could not be looked at, so that "no NPU" is never said of a
    machine that was not searched. `looked_at` names those that were.
    """

    system: str  # `Linux`, `Windows`
    system_version: str  # Linux: the kernel's release; Windows: 10.0.22631
    python_version: str
    cpu: CpuInfo
    npus: tuple[NpuInfo, ...] = ()
    gpus: tuple[GpuInfo, ...] = ()
    providers: tuple[ProviderInfo, ...] = ()
    looked_at: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return the keys that `vermilion devices --json` prints."""
        return {
            "system": self.system,
            "system_version": self.system_version,
            "python_version": self.python_version,
            "cpu": self.cpu.as_json(),
            "npus": [npu.as_json() for npu in self.npus],
            "gpus": [gpu.as_json() for gpu in self.gpus],
            "providers": [provider.as_json() for provider in self.providers],
            "looked_at": list(self.looked_at),
            "problems": list(self.problems),
        }


@dataclass(frozen=True)
class _Bus:
    devices: tuple[PciDevice, ...]
    looked_at: tuple[str, ...]
    problems: tuple[str, ...] = ()


def detect_machine(
    *,
    probe_providers: bool = True,
    sysfs_root: Path = Path("/sys"),
    proc_root: Path = Path("/proc"),
) -> Machine:
    """Look at this machine.

    `probe_providers` loads each of AMD's providers in a child process, which takes seconds where
    there are any; without it nothing is loaded and the call takes milliseconds.
    """
    on_windows = sys.platform == "win32"
    bus = _windows_bus() if on_windows else _linux_bus(sysfs_root)
    return Machine(
        system=platform.system(),
        system_version=platform.version() if on_windows else platform.release(),
        python_version=platform.python_version(),
        cpu=detect_cpu(proc_root),
        npus=find_npus(bus.devices),
        gpus=find_gpus(bus.devices, None if on_windows else sysfs_root),
        providers=_providers(probe_providers),
        looked_at=bus.looked_at,
        problems=bus.problems,
    )


def _providers(probe: bool) -> tuple[ProviderInfo, ...]:
    found = execution_providers.find_providers()
    return execution_providers.probe_providers(found) if probe else found


def _linux_bus(sysfs_root: Path) -> _Bus:
    places = (sysfs_root / "bus" / "pci" / "devices", sysfs_root / "class" / "accel")
    looked_at = tuple(f"`{place}`" for place in places if place.is_dir())
    problems = () if looked_at else (f"there is no PCI bus to look at below `{sysfs_root}`",)
    return _Bus(linux_devices(sysfs_root), looked_at, problems)


def _windows_bus() -> _Bus:
    command = ("/enum-devices", "/bus", "PCI", "/deviceids")
    place = "`pnputil " + " ".join(command) + "`"
    try:
        devices, drivers = run_pnputil(*command), run_pnputil("/enum-drivers")
    except (OSError, subprocess.SubprocessError) as error:
        return _Bus((), (), (f"{place} could not be run: {error}",))
    return _Bus(windows_devices(devices, drivers), (place,))
