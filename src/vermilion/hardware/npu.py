"""The NPUs of this machine, recognised by PCI id and revision, never by the processor's name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vermilion.hardware.pci import ACCELERATOR_CLASS, AMD, PciDevice
from vermilion.hardware.targets.npu import TARGETS

Recognition = Literal["known", "newer", "unknown"]


@dataclass(frozen=True)
class NpuInfo:
    """One NPU.

    `recognition`: `known` has a target; `newer` is in AMD's Linux driver but in no Ryzen AI
    release; `unknown` is an AMD accelerator that no public table holds.
    """

    title: str
    recognition: Recognition
    target: str | None
    ids: str
    revision: int
    address: str
    driver: str = ""
    driver_version: str = ""
    firmware_version: str = ""
    device_node: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the keys that `vermilion devices --json` prints."""
        return {
            "title": self.title,
            "recognition": self.recognition,
            "target": self.target,
            "pci_ids": self.ids,
            "pci_revision": f"{self.revision:02x}" if self.revision >= 0 else None,
            "address": self.address,
            "driver": self.driver,
            "driver_version": self.driver_version,
            "firmware_version": self.firmware_version,
            "device_node": self.device_node,
        }


# (device, revision) → title, target.
_KNOWN: Mapping[tuple[int, int], tuple[str, str]] = {
    key: (title, target.name)
    for target in TARGETS
    if target.npu is not None
    for key, title in target.npu.pci.items()
}

# (device, revision) → the driver's name for it. Source: amd/xdna-driver 856409c,
# amdxdna_pci_drv.c. No Ryzen AI release names them.
_NEWER: Mapping[tuple[int, int], str] = {
    **{(device, 0x10): "npu3" for device in (0x17F1, 0x17F2, 0x17F3)},
    **{(device, 0x00): "npu3" for device in (0x1B0A, 0x1B0B, 0x1B0C)},
    **{(device, 0x13): "npu9" for device in (0x17F1, 0x17F2, 0x17F3)},
    **{(device, 0x14): "npu10" for device in (0x17F1, 0x17F2, 0x17F3)},
    **{(device, 0x15): "npu11" for device in (0x17F1, 0x17F2, 0x17F3)},
}

_NPU_DEVICES = frozenset(device for device, _ in (*_KNOWN, *_NEWER))

# PCI classes of accelerators: 11 80 other signal processing (all NPUs so far), 12 00 processing
# accelerator. The sensor hubs have the class 11 80 too. Source: pci.ids, vendor 1022.
_ACCELERATOR_CLASSES = (0x1180, 0x1200)
_SENSOR_HUBS = frozenset((0x15E4, 0x15E6, 0x164A, 0x164B))


def is_npu(device: PciDevice) -> bool:
    """Say whether the device is an AMD NPU, or an AMD accelerator that may be one."""
    if device.vendor != AMD or device.device in _SENSOR_HUBS:
        return False
    return (
        device.device in _NPU_DEVICES
        or device.class_code >> 8 in _ACCELERATOR_CLASSES
        or device.setup_class == ACCELERATOR_CLASS
        or device.driver == "amdxdna"
    )


def find_npus(devices: Iterable[PciDevice]) -> tuple[NpuInfo, ...]:
    """Pick the NPUs out of the devices on the bus."""
    return tuple(_describe(device) for device in devices if is_npu(device))


def npu_target(npu: NpuInfo) -> str | None:
    """Name the target that models for this NPU are compiled for, None where there is none yet."""
    return npu.target


def _describe(device: PciDevice) -> NpuInfo:
    title, recognition, target = _recognise(device)
    return NpuInfo(
        title=title,
        recognition=recognition,
        target=target,
        ids=device.ids,
        revision=device.revision,
        address=device.address,
        driver=device.driver,
        driver_version=device.driver_version,
        firmware_version=device.fact("fw_version"),
        device_node=_device_node(device.path),
    )


def _recognise(device: PciDevice) -> tuple[str, Recognition, str | None]:
    key = (device.device, device.revision)
    if key in _KNOWN:
        title, target = _KNOWN[key]
        return _with_board(title, device), "known", target
    if key in _NEWER:
        title = f"AMD NPU newer than this version of Vermilion ({_NEWER[key]})"
        return _with_board(title, device), "newer", None
    revision = f"revision {device.revision:02x}" if device.revision >= 0 else "no revision given"
    title = f"unknown AMD accelerator {device.ids}, {revision}"
    return _with_board(title, device), "unknown", None


def _with_board(title: str, device: PciDevice) -> str:
    # The driver asks the firmware and so knows more than the ids tell: `NPU Krackan 2`.
    board = device.fact("vbnv")
    return f"{title}, `{board}`" if board else title


def _device_node(folder: Path | None) -> str:
    if folder is None:
        return ""
    nodes = sorted((folder / "accel").glob("accel*"))
    return f"/dev/accel/{nodes[0].name}" if nodes else ""
