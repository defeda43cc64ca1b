"""The AMD GPUs of this machine: from KFD where the compute driver runs, else by PCI id."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vermilion.hardware.pci import ATI, DISPLAY_CLASS, PciDevice
from vermilion.hardware.targets.gpu import BY_DEVICE


@dataclass(frozen=True)
class GpuInfo:
    """One GPU.

    `gfx` is empty where neither the driver nor the id tells. `found_by`: `kfd` means that the
    compute driver has it, so that HIP may use it; `bus` that it is merely there.
    """

    title: str
    gfx: str
    ids: str
    address: str
    found_by: Literal["kfd", "bus"]
    compute_units: int = 0
    memory_bytes: int = 0
    driver: str = ""
    driver_version: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the keys that `vermilion devices --json` prints."""
        return {
            "title": self.title,
            "gfx": self.gfx,
            "pci_ids": self.ids,
            "address": self.address,
            "found_by": self.found_by,
            "compute_units": self.compute_units,
            "memory_bytes": self.memory_bytes,
            "driver": self.driver,
            "driver_version": self.driver_version,
        }


_DISPLAY_CLASSES = (0x03, 0x12)  # display; Instinct cards are `processing accelerator`
_LOCAL_HEAPS = ("1", "2")  # public and private video memory. Source: hsakmttypes.h, HSA_HEAPTYPE


def gfx_name(target_version: int) -> str:
    """Return `gfx90a` for KFD's 90010: major × 10000 + minor × 100 + stepping, the last in hex."""
    major, rest = divmod(target_version, 10000)
    minor, stepping = divmod(rest, 100)
    return f"gfx{major}{minor:x}{stepping:x}"


def find_gpus(devices: Iterable[PciDevice], sysfs_root: Path | None) -> tuple[GpuInfo, ...]:
    """Pick the GPUs out of the devices on the bus, and add those that only KFD shows.

    `sysfs_root` None stands for a system without one.
    """
    by_address = {device.address: device for device in devices if _is_gpu(device)}
    nodes = _kfd_nodes(sysfs_root) if sysfs_root is not None else {}
    found = [_from_bus(device, nodes.pop(address, None)) for address, device in by_address.items()]
    found += [_from_kfd(address, properties) for address, properties in nodes.items()]
    return tuple(found)


def parse_properties(text: str) -> dict[str, int]:
    """Read a KFD `properties` file: a name and a number a line."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


def _is_gpu(device: PciDevice) -> bool:
    if device.vendor != ATI:
        return False
    return device.class_code >> 16 in _DISPLAY_CLASSES or device.setup_class == DISPLAY_CLASS


def _kfd_nodes(sysfs_root: Path) -> dict[str, dict[str, int]]:
    """Return the properties of KFD's GPU nodes by PCI address, with `memory_bytes` added."""
    folder = sysfs_root / "class" / "kfd" / "kfd" / "topology" / "nodes"
    nodes: dict[str, dict[str, int]] = {}
    for node in sorted(folder.glob("*")):
        properties = _read_properties(node / "properties")
        if not properties.get("gfx_target_version"):
            continue  # a processor
        banks = [_read_properties(bank) for bank in sorted(node.glob("mem_banks/*/properties"))]
        properties["memory_bytes"] = sum(
            bank.get("size_in_bytes", 0)
            for bank in banks
            if str(bank.get("heap_type", 0)) in _LOCAL_HEAPS
        )
        nodes[_kfd_address(properties)] = properties
    return nodes


def _read_properties(path: Path) -> dict[str, int]:
    try:
        return parse_properties(path.read_text())
    except OSError:  # inside a container the nodes of GPUs that are not lent cannot be read
        return {}


def _kfd_address(properties: Mapping[str, int]) -> str:
    # location_id: bus in the high byte, then five bits of device and three of function.
    location = properties.get("location_id", 0)
    domain = properties.get("domain", 0)
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _compute_units(properties: Mapping[str, int]) -> int:
    return properties.get("simd_count", 0) // max(properties.get("simd_per_cu", 1), 1)


def _from_bus(device: PciDevice, properties: Mapping[str, int] | None) -> GpuInfo:
    gfx, title = BY_DEVICE.get(device.device, ("", f"AMD GPU {device.ids}"))
    product = device.fact("product_name")
    memory = device.fact("mem_info_vram_total")
    if properties is None:
        properties = {}
    return GpuInfo(
        title=product or title,
        gfx=gfx_name(properties["gfx_target_version"]) if properties else gfx,
        ids=device.ids,
        address=device.address,
        found_by="kfd" if properties else "bus",
        compute_units=_compute_units(properties),
        memory_bytes=properties.get("memory_bytes", 0) or (int(memory) if memory.isdigit() else 0),
        driver=device.driver,
        driver_version=device.driver_version,
    )


def _from_kfd(address: str, properties: Mapping[str, int]) -> GpuInfo:
    device = properties.get("device_id", 0)
    gfx = gfx_name(properties["gfx_target_version"])
    _, title = BY_DEVICE.get(device, (gfx, f"AMD GPU {gfx}"))
    return GpuInfo(
        title=title,
        gfx=gfx,
        ids=f"{properties.get('vendor_id', ATI):04x}:{device:04x}",
        address=address,
        found_by="kfd",
        compute_units=_compute_units(properties),
        memory_bytes=properties.get("memory_bytes", 0),
    )
