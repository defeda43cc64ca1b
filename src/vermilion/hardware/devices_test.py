import json
import sys
import time
from pathlib import Path

import pytest

from vermilion.hardware.devices import detect_machine

# A budget for looking without loading; it takes about 5 ms on a quiet machine.
FAST_S = 0.05


def test_this_machine_is_looked_at_quickly():
    detect_machine(probe_providers=False)  # the first call fills Python's file caches
    took_s = []
    for _ in range(5):
        start = time.perf_counter()
        machine = detect_machine(probe_providers=False)
        took_s.append(time.perf_counter() - start)
    assert min(took_s) < FAST_S
    assert machine.cpu.brand
    assert any(provider.name == "CPUExecutionProvider" for provider in machine.providers)


def test_json_has_only_what_json_knows():
    text = json.dumps(detect_machine(probe_providers=False).as_json())
    assert set(json.loads(text)) >= {"system", "cpu", "npus", "gpus", "providers", "looked_at"}


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no sysfs")
def test_a_recorded_machine(recorded_sysfs):
    machine = detect_machine(probe_providers=False, sysfs_root=recorded_sysfs("krackan"))
    assert [npu.target for npu in machine.npus] == ["krackan"]
    assert [gpu.gfx for gpu in machine.gpus] == ["gfx1152"]
    assert len(machine.looked_at) == 2
    assert machine.problems == ()


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no sysfs")
def test_a_machine_that_cannot_be_searched_is_not_called_empty(tmp_path: Path):
    machine = detect_machine(probe_providers=False, sysfs_root=tmp_path)
    assert machine.looked_at == ()
    assert "no PCI bus" in machine.problems[0]
