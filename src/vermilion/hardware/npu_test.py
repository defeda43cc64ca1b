import pytest

from vermilion.hardware.npu import find_npus, npu_target
from vermilion.hardware.pci import linux_devices, windows_devices
from vermilion.hardware.targets.find import find_target

# machine → (ids, revision, recognition, target), as PCI ids and the vendor's tables have it
MACHINES = {
    "phoenix": ("1022:1502", 0x00, "known", "phoenix"),
    "strix_00": ("1022:17f0", 0x00, "known", "strix"),
    "strix_10": ("1022:17f0", 0x10, "known", "strix"),
    "strix_halo": ("1022:17f0", 0x11, "known", "strix"),
    "krackan": ("1022:17f0", 0x20, "known", "krackan"),
    "newer": ("1022:17f1", 0x10, "newer", None),
    "unknown": ("1022:1c42", 0x00, "unknown", None),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_windows(machine, recorded_text):
    devices = windows_devices(
        recorded_text(f"windows_{machine}.txt"), recorded_text("windows_drivers.txt")
    )
    (npu,) = find_npus(devices)
    assert (npu.ids, npu.revision, npu.recognition, npu_target(npu)) == MACHINES[machine]
    assert npu.driver_version == "32.0.203.280"
    assert npu.address.startswith("PCI\\VEN_1022&DEV_")


@pytest.mark.parametrize("machine", MACHINES)
def test_linux(machine, recorded_sysfs):
    (npu,) = find_npus(linux_devices(recorded_sysfs(machine)))
    assert (npu.ids, npu.revision, npu.recognition, npu_target(npu)) == MACHINES[machine]
    assert npu.address == "0000:c5:00.1"


def test_linux_says_what_the_driver_says(recorded_sysfs):
    (npu,) = find_npus(linux_devices(recorded_sysfs("strix_10")))
    assert npu.title == "Strix Point NPU (XDNA 2), `NPU Strix`"
    assert (npu.driver, npu.driver_version) == ("amdxdna", "0.1")
    assert npu.firmware_version == "1.5.2.380"
    assert npu.device_node == "/dev/accel/accel0"


def test_an_npu_without_a_driver_is_still_found(recorded_sysfs):
    (npu,) = find_npus(linux_devices(recorded_sysfs("strix_00")))
    assert (npu.driver, npu.driver_version, npu.device_node) == ("", "", "")


@pytest.mark.parametrize("machine", ["newer", "unknown"])
def test_unknown_ones_are_named_with_their_ids(machine, recorded_sysfs):
    (npu,) = find_npus(linux_devices(recorded_sysfs(machine)))
    ids, revision, _, _ = MACHINES[machine]
    row = npu.as_json()
    assert (row["pci_ids"], row["pci_revision"]) == (ids, f"{revision:02x}")
    assert row["target"] is None


def test_a_known_device_of_an_unknown_revision_is_unknown(recorded_text):
    text = recorded_text("windows_strix_10.txt").replace(
        "DEV_17F0&SUBSYS_88301022&REV_10", "DEV_17F0&SUBSYS_88301022&REV_3A"
    )
    (npu,) = find_npus(windows_devices(text, ""))
    assert (npu.recognition, npu.revision, npu.target) == ("unknown", 0x3A, None)
    assert "1022:17f0, revision 3a" in npu.title


def test_none(recorded_text, recorded_sysfs):
    devices = windows_devices(recorded_text("windows_none.txt"), "")
    assert find_npus(devices) == ()
    # The sensor hub has the same PCI class and is no accelerator.
    linux = linux_devices(recorded_sysfs("none"))
    assert "1022:164a" in {device.ids for device in linux}
    assert find_npus(linux) == ()


def test_windows_in_german_without_a_driver(recorded_text):
    devices = windows_devices(
        recorded_text("windows_german_no_driver.txt"), recorded_text("windows_drivers.txt")
    )
    (npu,) = find_npus(devices)
    assert (npu.target, npu.driver, npu.driver_version) == ("strix", "", "")


def test_lines_may_end_as_windows_ends_them(recorded_text):
    text = recorded_text("windows_krackan.txt").replace("\n", "\r\n")
    (npu,) = find_npus(windows_devices(text, ""))
    assert npu.target == "krackan"


def test_every_target_exists():
    for _, _, _, target in MACHINES.values():
        assert target is None or find_target(target).kind == "npu"
