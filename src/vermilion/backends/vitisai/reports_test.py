from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from vermilion.backends.vitisai.reports import (
    SummaryCounts,
    read_console,
    read_ep_report,
    read_plain_file,
    read_summary_counts,
)
from vermilion.errors import ArtifactError


@pytest.mark.parametrize(("device", "release"), [("DPU", "1.3"), ("NPU", "1.8")])
def test_the_providers_report(device: str, release: str) -> None:
    rows = [
        {"name": "all", "nodeNum": 402, "supportedOpType": ["::Add"]},
        {"name": "CPU", "nodeNum": 2, "supportedOpType": ["::DequantizeLinear"]},
        {"name": device, "nodeNum": 400, "supportedOpType": ["::Add"]},
    ]
    nodes = [
        {"input": ["x"], "output": ["q"], "opType": "QuantizeLinear", "device": "CPU"},
        {"input": ["q"], "output": ["a"], "opType": "Conv", "device": device},
    ]
    regions = [
        {"device": device, "count": 2},
        {"device": "Actually running on NPU", "count": 1},
    ]
    data = {"deviceStat": rows, "nodeStat": nodes, "subgraphStat": regions}
    found = read_ep_report(json.dumps(data))
    assert found.devices == {"CPU": 2, device: 400}
    assert (found.on_npu, found.left, found.total) == (400, 2, 402)
    assert found.elsewhere == {"q": "CPU"}
    assert (found.regions, found.running) == (2, 1)


def test_what_the_total_has_more_is_not_on_the_npu() -> None:
    rows = [{"name": "all", "nodeNum": 9}, {"name": "NPU", "nodeNum": 4}]
    assert read_ep_report(json.dumps({"deviceStat": rows})).left == 5
    rows = [{"name": "VITIS_EP_CPU", "nodeNum": 3}, {"name": "NPU", "nodeNum": 4}]
    assert read_ep_report(json.dumps({"deviceStat": rows})).left == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"deviceStat": [{"name": "CPU"}]}',
        '{"deviceStat": 3}',
        '{"deviceStat": [{"name": "NPU", "nodeNum": -4}]}',
        '{"deviceStat": [{"name": "NPU", "nodeNum": true}]}',
        '{"deviceStat": [{"name": "NPU", "nodeNum": 1e99}]}',
        '{"deviceStat": [], "nodeStat": 7}',
        '{"deviceStat": [], "nodeStat": [["NPU"]]}',
        "[" * 100_000,
    ],
)
def test_a_report_that_is_none(text: str) -> None:
    with pytest.raises(ArtifactError, match="no `vitisai_ep_report"):
        read_ep_report(text)


ONE_LINE = """
    INFO: [VAIP-VAIML-PASS] No. of Operators : VAIML 49
    [Vitis AI EP] No. of Operators :   CPU     8    NPU  2356 VITIS_EP_CPU    13
    [Vitis AI EP] No. of Subgraphs :   NPU     2 Actually running on NPU      2
"""
# Written from what the documentation of 1.7 shows of a run with `log_severity_level` 1.
SEVERAL_LINES = """
\x1b[0;93m2026-02-28 22:16:13.48 [I:onnxruntime:, stat.cpp:198 stat.cpp] [Vitis AI EP] No. of Operators :\x1b[m
[I:onnxruntime:, stat.cpp:198 stat.cpp]    NPU   398
[I:onnxruntime:, stat.cpp:198 stat.cpp] VITIS_EP_CPU     2
[I:onnxruntime:, stat.cpp:198 stat.cpp] [Vitis AI EP] No. of Subgraphs :
[I:onnxruntime:, stat.cpp:198 stat.cpp]    NPU     1
[I:onnxruntime:, stat.cpp:198 stat.cpp] Actually running on NPU      1
[I:onnxruntime:, vitisai_compile_model.cpp:1488 vitisai_compile_model.cpp] AVG CPU Usage 4.93969%
[V:onnxruntime:, session_state.cc:1350 onnxruntime] CPU 77
"""  # noqa: E501


def test_console_lines() -> None:
    found = read_console(ONE_LINE)
    assert found.devices == {"CPU": 8, "NPU": 2356, "VITIS_EP_CPU": 13}
    assert read_console(ONE_LINE.splitlines()[1]).devices == {"VAIML": 49}
    assert (found.regions, found.running) == (2, 2)
    assert read_console("No. of Operators : CPU 400").left == 400
    older = read_console("[Vitis AI EP] No. of Operators :   CPU     2    IPU   398  99.50%")
    assert older.devices == {"CPU": 2, "IPU": 398}
    assert read_console("No. of Operators :").devices == {}


def test_a_console_of_several_lines() -> None:
    found = read_console(SEVERAL_LINES)
    assert found.devices == {"NPU": 398, "VITIS_EP_CPU": 2}
    assert (found.on_npu, found.left, found.running) == (398, 2, 1)
    plain = (
        "[Vitis AI EP] No. of Operators :\n VAIML   122\n[Vitis AI EP] No. of Subgraphs :\n  NPU 1"
    )
    assert read_console(plain).devices == {"VAIML": 122}


def test_what_is_said_twice_counts_as_the_worse() -> None:
    # A node may be called `No. of Operators : NPU 400`, and be printed by its name.
    twice = "No. of Operators : NPU 3 CPU 397\nnode No. of Operators : NPU 400\n"
    assert read_console(twice).devices == {"NPU": 3, "CPU": 397}


def test_summary_counts() -> None:
    text = "Number of operators supported by VAIML: 0(0.000%)\nGOPs supported by VAIML: 1"
    assert read_summary_counts(text) == SummaryCounts(None, 0, None)
    final = (
        "Number of operators in the model: 493\n"
        "Number of operators offloaded by VAIML: 491 (99.594%)\n"
    )
    assert read_summary_counts(final) == SummaryCounts(493, None, 491)


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no pipes in folders")
def test_a_pipe_and_a_link_are_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "plain").write_bytes(b"a\xff")
    assert read_plain_file(tmp_path / "pipe") is None
    assert read_plain_file(tmp_path / "link") is None
    assert read_plain_file(tmp_path / "plain") == "a\ufffd"
    assert read_plain_file(tmp_path / "missing") is None
