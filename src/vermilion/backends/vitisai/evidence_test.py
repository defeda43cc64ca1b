from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from vermilion.backends.provider.contract import CPU
from vermilion.backends.vitisai.evidence import (
    NPU,
    Evidence,
    find_xrt_smi,
    judge,
    read_console,
    read_ep_report,
    read_partitions,
    read_summary_counts,
    submitted_commands,
)
from vermilion.errors import ArtifactError

BOTH = (NPU, CPU)


def test_a_plan_of_100_percent_of_which_nothing_ran_is_caught() -> None:
    # https://github.com/amd/RyzenAI-SW/issues/374: 1346 CPU events, the provider in the list.
    verdict = judge(Evidence(1346, 1346, 1346, providers=BOTH, events={CPU: 1346}))
    assert (verdict.supported, verdict.offloaded, verdict.ran_on_npu) == (1346, 1346, False)
    assert verdict.cpu_share == 1.0
    assert "1346 of 1346 operators are on the NPU, and every node" in verdict.contradictions[0]


def test_what_is_seen_counts_more_than_what_is_said() -> None:
    verdict = judge(Evidence(400, providers=BOTH, events={NPU: 2, CPU: 8}, report={"NPU": 392}))
    assert verdict.ran_on_npu is True
    assert verdict.offloaded == 392
    assert verdict.cpu_share == pytest.approx(0.8)
    assert verdict.contradictions == ()


@pytest.mark.parametrize(
    ("evidence", "ran", "words"),
    [
        (Evidence(9, providers=(CPU,)), False, "has no `VitisAI"),
        (Evidence(9, 0, 9, providers=BOTH, events={NPU: 1}), True, "preliminary summary supports"),
        (Evidence(9, None, 9, providers=BOTH, submitted=0), False, "not one command"),
        (Evidence(9, providers=BOTH, events={CPU: 9}), False, "the session lists"),
        (
            Evidence(9, None, 9, providers=BOTH, assigned={NPU: 0, CPU: 9}, events={NPU: 1}),
            True,
            "assigned no node",
        ),
    ],
)
def test_each_contradiction_is_named(evidence: Evidence, ran: bool, words: str) -> None:
    verdict = judge(evidence)
    assert verdict.ran_on_npu is ran
    assert any(words in text for text in verdict.contradictions)


def test_what_nobody_saw_is_unknown() -> None:
    verdict = judge(Evidence(9, 9, 9, providers=BOTH, speedup=1.02))
    assert verdict.ran_on_npu is None
    assert verdict.contradictions == ()
    assert any("it may be the CPU" in note for note in verdict.notes)
    assert judge(Evidence(9, providers=BOTH, submitted=40)).ran_on_npu is True


@pytest.mark.parametrize(("device", "release"), [("DPU", "1.3"), ("NPU", "1.8")])
def test_the_providers_report(device: str, release: str) -> None:
    rows = [
        {"name": "all", "nodeNum": 402, "supportedOpType": ["::Add"]},
        {"name": "CPU", "nodeNum": 2, "supportedOpType": ["::DequantizeLinear"]},
        {"name": device, "nodeNum": 400, "supportedOpType": ["::Add"]},
    ]
    assert read_ep_report(json.dumps({"deviceStat": rows})) == {"CPU": 2, device: 400}


@pytest.mark.parametrize(
    "text", ["", "{}", '{"deviceStat": [{"name": "CPU"}]}', '{"deviceStat": 3}']
)
def test_a_report_that_is_none(text: str) -> None:
    with pytest.raises(ArtifactError, match="no `vitisai_ep_report"):
        read_ep_report(text)


def test_console_lines() -> None:
    log = """
    INFO: [VAIP-VAIML-PASS] No. of Operators : VAIML 49
    [Vitis AI EP] No. of Operators : CPU 8 NPU 2356 VITIS_EP_CPU 13
    [Vitis AI EP] No. of Subgraphs : NPU 2 Actually running on NPU 2
    """
    found = read_console(log)
    assert found["operators"] == {"VAIML": 49, "CPU": 8, "NPU": 2356, "VITIS_EP_CPU": 13}
    assert found["subgraphs"] == {"NPU": 2, "Actually running on NPU": 2}
    assert read_console("No. of Operators : CPU 400")["operators"] == {"CPU": 400}
    assert read_console("No. of Operators :") == {}


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


def test_hardware_contexts() -> None:
    assert read_partitions(PARTITIONS) == {20696: 60, 4711: 0}
    assert read_partitions("No hardware contexts running on device") == {}


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


def test_summary_counts() -> None:
    text = "Number of operators supported by VAIML: 0(0.000%)\nGOPs supported by VAIML: 1"
    assert read_summary_counts(text) == {"supported": 0}
