"""What every test of this project shares: a test that needs what is not here is skipped."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

# Devices, by the file that the Linux driver makes for them.
DEVICE_FILES = {"hip": Path("/dev/kfd"), "npu": Path("/dev/accel/accel0")}


def missing(thing: str) -> str:
    """Say what is missing for `thing` to be used, empty if nothing is."""
    if thing in DEVICE_FILES:
        file = DEVICE_FILES[thing]
        return "" if file.exists() else f"this machine has no {file}"
    return "" if find_spec(thing) is not None else f"the package `{thing}` is not installed"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test marked `needs(thing)` where the thing is missing, and say what was."""
    for mark in item.iter_markers("needs"):
        for thing in mark.args:
            if reason := missing(thing):
                pytest.skip(f"needs {thing}: {reason}")
