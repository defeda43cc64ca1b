from __future__ import annotations

import pytest

from vermilion.backends.iree.found import Device, choose, find_devices, paired
from vermilion.errors import Refusal

MIXED = (Device("hip://0", "gfx1036"), Device("hip://1", "gfx1100"), Device("hip://2", "gfx1100"))


@pytest.mark.parametrize(
    ("programs", "uri"),
    [
        (("gfx942", "gfx1100", "gfx1151"), "hip://1"),
        (("gfx1100",), "hip://1"),
        (("gfx1100", "gfx1036"), "hip://0"),
    ],
)
def test_the_first_device_that_has_a_program(programs: tuple[str, ...], uri: str) -> None:
    chosen = choose(programs, MIXED)
    assert isinstance(chosen, Device)
    assert chosen.uri == uri


def test_no_device_has_a_program() -> None:
    chosen = choose(("gfx942", "gfx950"), MIXED)
    assert isinstance(chosen, Refusal)
    assert chosen.reason == (
        "this machine has gfx1036, gfx1100, and the program is for gfx942, gfx950"
    )
    assert "--target gfx1036,gfx1100" in chosen.hint


def test_numbers_of_hip_and_names_of_the_driver() -> None:
    assert paired(2, ["gfx90a", "gfx942"]) == (
        Device("hip://0", "gfx90a"),
        Device("hip://1", "gfx942"),
    )
    hidden = paired(1, ["gfx90a", "gfx942"])
    assert isinstance(hidden, Refusal)
    assert "HIP_VISIBLE_DEVICES" in hidden.hint
    none = paired(0, [])
    assert isinstance(none, Refusal)
    assert none.reason == "HIP finds no GPU"


@pytest.mark.needs("iree")
def test_this_machine_is_asked_and_not_believed() -> None:
    found = find_devices()
    if isinstance(found, Refusal):
        assert "HIP" in found.reason
        assert "vermilion doctor" in found.hint or "unset" in found.hint
    else:
        assert all(device.gfx.startswith("gfx") for device in found)
