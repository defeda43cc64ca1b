from __future__ import annotations

import sys
from pathlib import Path

import pytest

from vermilion.backends.vitisai.xrt import find_xrt_smi, read_partitions, submitted_commands

# Written from the documented columns, for Windows and Linux alike.
PARTITIONS = """
AIE Partitions
  Total Column Count: 8
  Partition Index: 0
    Columns: [0, 1, 2, 3]
    HW Contexts:
      |PID   |Ctx ID |Status |Sub  |Compl |Migr |Err |Prio   |GOPS |EGOPS |FPS |Latency |
      |======|=======|=======|=====|======|=====|====|=======|=====|======|====|========|
      |20696 |0      |Active |57   |56    |0    |0   |Normal |0    |0     |0   |0       |
      |20696 |1      |Idle   |3    |3     |0    |0   |Normal |0    |0     |0   |0       |
      |4711  |2      |Idle   |0    |0     |0    |0   |Normal |0    |0     |0   |0       |
"""
OTHER_COLUMNS = """
      |Ctx ID |PID   |Submissions |Completions |
      |=======|======|============|============|
      |0      |77    |12          |12          |
"""


def test_hardware_contexts() -> None:
    assert read_partitions(PARTITIONS) == {20696: 60, 4711: 0}
    assert read_partitions(OTHER_COLUMNS) == {77: 12}
    assert read_partitions("No hardware contexts running on device") == {}


@pytest.mark.parametrize("text", ["", "unknown report 'aie-partitions'", "|a|b|\n|1|2|"])
def test_what_has_no_such_table_says_nothing(text: str) -> None:
    assert read_partitions(text) is None


@pytest.mark.skipif(sys.platform == "win32", reason="this system executes no scripts")
def test_xrt_smi_is_asked(tmp_path: Path) -> None:
    tool = tmp_path / "xrt-smi"
    tool.write_text(f"#!/bin/sh\n[ \"$3\" = aie-partitions ] && cat <<'END'\n{PARTITIONS}\nEND\n")
    tool.chmod(0o755)
    assert submitted_commands(20696, str(tool)) == 60
    assert submitted_commands(1, str(tool)) == 0
    assert submitted_commands(1, str(tmp_path / "missing")) is None
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert submitted_commands(1, str(tool)) is None
    assert find_xrt_smi((str(tool),)) == str(tool)
