"""PCI devices as Linux' sysfs and Windows' `pnputil` list them.

Windows prints its labels in the user's language, so nothing here reads a label: device ids, class
identifiers, `.inf` names and version numbers are the same everywhere.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

AMD = 0x1022
ATI = 0x1002

# Source: Microsoft, "System-defined device setup classes available to vendors".
ACCELERATOR_CLASS = "{f01a9d53-3ff6-48d2-9f97-c8a7004be10c}"
DISPLAY_CLASS = "{4d36e968-e325-11ce-bfc1-08002be10318}"

_TIME_LIMIT_S = 20


@dataclass(frozen=True)
class PciDevice:
    """One device on the bus.

    `class_code` has three bytes: class, subclass, interface; -1 stands for a number that the
    system does not tell. `setup_class` is Windows' identifier, `path` Linux' folder.
    """

    vendor: int
    device: int
    revision: int
    class_code: int
    address: str
    driver: str = ""
    driver_version: str = ""
    setup_class: str = ""
    path: Path | None = None

    @property
    def ids(self) -> str:
        """Return `1022:17f0`, as `lspci -nn` prints it."""
        return f"{self.vendor:04x}:{self.device:04x}"

    def fact(self, name: str) -> str:
        """Return the first line of a sysfs file of the device, empty where there is none."""
        return read_line(self.path / name) if self.path is not None else ""


def read_line(path: Path) -> str:
    """Return the first line of a small system file, empty where it is missing or unreadable."""
    try:
        text = path.read_text(errors="replace")
    except OSError:  # sysfs refuses some attributes while a device sleeps
        return ""
    return text.strip().partition("\n")[0]


def read_hex(path: Path) -> int:
    """Return a number that sysfs writes as `0x1022`, -1 where there is none."""
    text = read_line(path)
    try:
        return int(text, 16)
    except ValueError:
        return -1


def linux_devices(sysfs_root: Path) -> tuple[PciDevice, ...]:
    """List AMD's devices on the bus, and accelerators that are not on a visible bus."""
    folders = {path.name: path for path in _children(sysfs_root / "bus" / "pci" / "devices")}
    for accelerator in _children(sysfs_root / "class" / "accel"):
        folder = (accelerator / "device").resolve()
        folders.setdefault(folder.name, folder)
    found = (linux_device(path, name, sysfs_root) for name, path in sorted(folders.items()))
    return tuple(device for device in found if device.vendor in (AMD, ATI))


def linux_device(folder: Path, address: str, sysfs_root: Path) -> PciDevice:
    """Read one device's folder."""
    driver_link = folder / "driver"
    driver = driver_link.resolve().name if driver_link.exists() else ""
    version = read_line(sysfs_root / "module" / driver / "version") if driver else ""
    return PciDevice(
        vendor=read_hex(folder / "vendor"),
        device=read_hex(folder / "device"),
        revision=read_hex(folder / "revision"),
        class_code=read_hex(folder / "class"),
        address=address,
        driver=driver,
        driver_version=version,
        path=folder,
    )


def _children(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def run_pnputil(*arguments: str) -> str:
    """Return what `pnputil` prints.

    Raises: OSError or subprocess.SubprocessError where it cannot be run.
    """
    done = subprocess.run(
        ["pnputil", *arguments],
        capture_output=True,
        timeout=_TIME_LIMIT_S,
        check=True,
        text=True,
        errors="replace",
    )
    return done.stdout


_HARDWARE_ID = re.compile(r"PCI\\VEN_([0-9A-F]{4})&DEV_([0-9A-F]{4})", re.IGNORECASE)
_REVISION = re.compile(r"&REV_([0-9A-F]{2})", re.IGNORECASE)
_CLASS_CODE = re.compile(r"&CC_([0-9A-F]{4,6})\b", re.IGNORECASE)
_SETUP_CLASS = re.compile(r"\{[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\}", re.IGNORECASE)
_INSTANCE = re.compile(r"PCI\\VEN_\S+\\\S+", re.IGNORECASE)
_INF = re.compile(r"\b\w+\.inf\b", re.IGNORECASE)
_FOUR_FIELDS = re.compile(r"\b\d+\.\d+\.\d+\.\d+\b")


def windows_devices(devices_text: str, drivers_text: str) -> tuple[PciDevice, ...]:
    """Read `pnputil /enum-devices /bus PCI /deviceids` and `pnputil /enum-drivers`."""
    versions = driver_versions(drivers_text)
    blocks = (_windows_device(block, versions) for block in _blocks(devices_text))
    return tuple(device for device in blocks if device and device.vendor in (AMD, ATI))


def driver_versions(drivers_text: str) -> dict[str, str]:
    """Return the version of each installed driver package by its published name, `oem46.inf`.

    Windows publishes a package under a new name with every update; the first name of a block is
    the published one, and the version is the only number with four fields.
    """
    found: dict[str, str] = {}
    for block in _blocks(drivers_text):
        name, version = _INF.search(block), _FOUR_FIELDS.search(block)
        if name and version:
            found[name.group().lower()] = version.group()
    return found


def _windows_device(block: str, versions: Mapping[str, str]) -> PciDevice | None:
    ids = _HARDWARE_ID.search(block)
    if not ids:
        return None
    revision, class_code = _REVISION.search(block), _CLASS_CODE.search(block)
    setup_class, inf, instance = (
        _SETUP_CLASS.search(block),
        _INF.search(block),
        _INSTANCE.search(block),
    )
    driver = inf.group().lower() if inf else ""
    return PciDevice(
        vendor=int(ids[1], 16),
        device=int(ids[2], 16),
        revision=int(revision[1], 16) if revision else -1,
        class_code=int(class_code[1].ljust(6, "0"), 16) if class_code else -1,
        address=instance.group() if instance else "",
        driver=driver,
        driver_version=versions.get(driver, ""),
        setup_class=setup_class.group().lower() if setup_class else "",
    )


def _blocks(text: str) -> list[str]:
    return [block for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n")) if block.strip()]
