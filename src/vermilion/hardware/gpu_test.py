import pytest

from vermilion.hardware.gpu import find_gpus, gfx_name, parse_properties
from vermilion.hardware.pci import linux_devices, windows_devices


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (90010, "gfx90a"),
        (90402, "gfx942"),
        (90500, "gfx950"),
        (110000, "gfx1100"),
        (110003, "gfx1103"),
        (110501, "gfx1151"),
        (120001, "gfx1201"),
    ],
)
def test_gfx_name(version, name):
    assert gfx_name(version) == name


@pytest.mark.parametrize(
    ("machine", "gfx", "found_by", "units"),
    [
        ("phoenix", "gfx1103", "kfd", 12),
        ("strix_10", "gfx1150", "kfd", 16),
        ("strix_halo", "gfx1151", "kfd", 40),
        ("krackan", "gfx1152", "kfd", 8),
        ("strix_00", "gfx1150", "bus", 0),  # no KFD: by the table
    ],
)
def test_linux(machine, gfx, found_by, units, recorded_sysfs):
    root = recorded_sysfs(machine)
    (gpu,) = find_gpus(linux_devices(root), root)
    assert (gpu.gfx, gpu.found_by, gpu.compute_units) == (gfx, found_by, units)
    assert gpu.address == "0000:c4:00.0"
    assert gpu.memory_bytes == 512 * 2**20
    assert gpu.driver == "amdgpu"


def test_kfd_alone_is_enough(recorded_sysfs):
    root = recorded_sysfs("strix_halo")
    (gpu,) = find_gpus((), root)
    assert (gpu.gfx, gpu.ids, gpu.found_by) == ("gfx1151", "1002:1586", "kfd")


@pytest.mark.parametrize(
    ("machine", "gfx"), [("phoenix", "gfx1103"), ("strix_halo", "gfx1151"), ("none", "gfx1100")]
)
def test_windows(machine, gfx, recorded_text):
    devices = windows_devices(
        recorded_text(f"windows_{machine}.txt"), recorded_text("windows_drivers.txt")
    )
    (gpu,) = find_gpus(devices, None)
    assert (gpu.gfx, gpu.driver_version) == (gfx, "32.0.21001.9024")


def test_a_gpu_in_no_table_is_named_by_its_ids(recorded_text):
    text = recorded_text("windows_none.txt").replace("744C", "7FFF")
    (gpu,) = find_gpus(windows_devices(text, ""), None)
    assert (gpu.gfx, gpu.title) == ("", "AMD GPU 1002:7fff")
    assert gpu.as_json()["pci_ids"] == "1002:7fff"


def test_none(recorded_sysfs):
    root = recorded_sysfs("none")
    assert find_gpus(linux_devices(root), root) == ()


def test_properties_that_are_no_numbers_are_left_out():
    assert parse_properties("a 1\nb x\nc\n\nd 2 3\n") == {"a": 1}
