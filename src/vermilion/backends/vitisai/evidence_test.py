"""What counts as run on the NPU, of everything that a provider may say and that may be seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from vermilion.backends.provider.contract import CPU
from vermilion.backends.provider.seen import PartNode
from vermilion.backends.vitisai.evidence import NPU, Evidence, Verdict, judge
from vermilion.backends.vitisai.reports import DeviceCounts, SummaryCounts

BOTH = (NPU, CPU)
# Three nodes: one has nearly all of the operations.
NODES = (
    PartNode("small", ("a",), 10),
    PartNode("large", ("b",), 1000),
    PartNode("none", ("y",), 0),
)
# Seen to run, and nothing said of it.
SEEN = Evidence(NODES, providers=BOTH, events={NPU: 1})


def many(count: int) -> tuple[PartNode, ...]:
    return tuple(PartNode(f"n{at}", (f"v{at}",), 1) for at in range(count))


def said(**counts: int) -> DeviceCounts:
    return DeviceCounts(counts)


def ran(**more: Any) -> Verdict:
    return judge(replace(SEEN, **more))


def test_a_plan_of_100_percent_of_which_nothing_ran_is_caught() -> None:
    # https://github.com/amd/RyzenAI-SW/issues/374: 1346 CPU events, the provider in the list.
    plan = SummaryCounts(1346, 1346, 1346)
    verdict = judge(Evidence(many(1346), plan, providers=BOTH, events={CPU: 1346}))
    assert (verdict.supported, verdict.offloaded, verdict.ran_on_npu) == (1346, 1346, False)
    assert verdict.cpu_share == 1.0
    assert "1346 of 1346 operators are on the NPU, and every node" in verdict.contradictions[0]


@pytest.mark.parametrize(
    "more",
    [
        {"report": said(NPU=3)},
        {"console": said(VAIML=3), "assigned": {NPU: 3}},
        {"summary": SummaryCounts(3, 3, 3), "submitted": 12},
        {"assigned": {NPU: 2}, "submitted": 1},  # one was folded before nodes were assigned
        {"report": DeviceCounts({"NPU": 3}, 3, {}, 1, 1)},
    ],
)
def test_what_agrees_ran(more: dict[str, Any]) -> None:
    verdict = ran(**more)
    assert verdict.ran_on_npu is True
    assert verdict.elsewhere == {}
    assert verdict.contradictions == ()
    assert verdict.notes == ()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"providers": (CPU,)}, "has no `VitisAI"),
        ({"summary": SummaryCounts(3, 0, 3)}, "preliminary summary supports"),
        ({"summary": SummaryCounts(3, None, 3), "submitted": 0}, "not one command"),
        ({"submitted": 0}, "not one command"),  # whatever the profile says
        ({"events": {CPU: 9}}, "the session lists"),
        ({"events": {CPU: 9}, "report": said(NPU=3)}, "3 of 3 operators are on the NPU, and every"),
        ({"assigned": {NPU: 0, CPU: 3}}, "assigned no node"),
        ({"report": said(CPU=3)}, "has 3 of 3 operators on a processor"),
        ({"report": said(VITIS_EP_CPU=3)}, "has 3 of 3 operators on a processor"),
        ({"console": said(CPU=400)}, "has 3 of 3 operators on a processor"),
        ({"report": DeviceCounts({"NPU": 3}, 3, {}, 2, 0)}, "is actually running there"),
        ({"console": DeviceCounts({"NPU": 3}, 3, {}, 2, 0)}, "is actually running there"),
        ({"events": {}}, "nothing was seen to run on the NPU"),
        ({"summary": SummaryCounts(3, 3, 0)}, "has 3 of 3 operators on a processor"),
    ],
)
def test_each_contradiction_is_named(more: dict[str, Any], words: str) -> None:
    verdict = ran(**more)
    assert any(words in text for text in verdict.contradictions), verdict


def test_without_events_commands_put_to_the_npu_are_seen() -> None:
    verdict = ran(events={}, submitted=40, report=said(NPU=3))
    assert verdict.ran_on_npu is True
    assert verdict.contradictions == ()


@pytest.mark.parametrize(
    ("more", "elsewhere"),
    [
        # How many, and not which: the largest.
        ({"events": {NPU: 1, CPU: 2}}, {0, 1}),
        ({"report": said(NPU=2, CPU=1)}, {1}),
        ({"console": said(NPU=2, VITIS_EP_CPU=1)}, {1}),
        ({"assigned": {NPU: 2, CPU: 1}}, {1}),
        ({"summary": SummaryCounts(3, 3, 2)}, {1}),
        ({"report": DeviceCounts({"NPU": 2}, 3)}, {1}),
        # Which: those.
        ({"events": {NPU: 1, CPU: 1}, "event_nodes": {CPU: ("small",)}}, {0}),
        ({"assigned": {NPU: 2, CPU: 1}, "assigned_nodes": {CPU: ("none",)}}, {2}),
        ({"report": DeviceCounts({"NPU": 2, "CPU": 1}, 3, {"y": "CPU"})}, {2}),
        # One source names one node, another one says that there are two.
        (
            {
                "report": said(NPU=1, CPU=2),
                "events": {NPU: 1, CPU: 1},
                "event_nodes": {CPU: ("none",)},
            },
            {1, 2},
        ),
        # What a report does not mention may be fused into others: the smallest.
        ({"report": said(NPU=2)}, {2}),
        ({"report": said(NPU=1)}, {0, 2}),
    ],
)
def test_nodes_that_any_source_has_on_a_processor_did_not_run_there(
    more: dict[str, Any], elsewhere: set[int]
) -> None:
    verdict = ran(**more)
    assert set(verdict.elsewhere) == elsewhere
    assert all(verdict.elsewhere.values())
    assert verdict.contradictions == ()
    assert any(f"{len(elsewhere)} of 3 operators" in note for note in verdict.notes)


def test_a_single_witness_is_told_of() -> None:
    (note,) = ran(assigned={NPU: 3}).notes
    assert "ONNX Runtime's word alone" in note


def test_sources_that_do_not_agree_are_told_of() -> None:
    verdict = ran(report=said(NPU=3), events={NPU: 1, CPU: 1})
    assert any(
        "does not agree" in note and "report 0" in note and "profile 1" in note
        for note in verdict.notes
    )
