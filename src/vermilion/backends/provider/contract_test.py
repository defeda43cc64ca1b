from __future__ import annotations

import json
from typing import Any

import pytest

from vermilion.backends.provider.contract import (
    CPU,
    Closed,
    Opened,
    count_events,
    nodes_that_ran,
)
from vermilion.errors import ArtifactError

NPU = "VitisAIExecutionProvider"


def event(name: str, provider: str) -> dict[str, object]:
    return {"cat": "Node", "name": name, "args": {"provider": provider}, "dur": 3}


def test_profile_events_are_counted_by_provider() -> None:
    events = [
        event("a_kernel_time", CPU),
        event("b_kernel_time", NPU),
        event("a_fence_before", CPU),
        {"cat": "Session", "name": "model_run"},
    ]
    events.append(event("a_kernel_time", CPU))
    assert count_events(json.dumps(events)) == {CPU: 2, NPU: 1}
    assert nodes_that_ran(json.dumps(events)) == {CPU: ["a"], NPU: ["b"]}
    with pytest.raises(ArtifactError, match="no profile"):
        count_events("[{")


def test_what_a_worker_says_is_read_as_what_it_is() -> None:
    said = {"providers": [NPU], "assigned": {NPU: 3}, "assigned_nodes": {NPU: ["a", "b"]}}
    assert Opened.of_message(said) == Opened((NPU,), {NPU: 3}, {NPU: ("a", "b")})
    assert Opened.of_message({"providers": [], "assigned": {}}) == Opened((), {})
    assert Closed.of_message({"events": {CPU: 2}}) == Closed({CPU: 2})


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"providers": None, "assigned": None},
        {"providers": NPU, "assigned": {}},
        {"providers": [1], "assigned": {}},
        {"providers": [], "assigned": {NPU: "many"}},
        {"providers": [], "assigned": {NPU: -1}},
        {"providers": [], "assigned": {NPU: True}},
        {"providers": [], "assigned": {NPU: float("nan")}},
        {"providers": [], "assigned": [NPU]},
        {"providers": [], "assigned": {}, "assigned_nodes": {NPU: "a"}},
        {"providers": [], "assigned": {}, "assigned_nodes": {NPU: [3]}},
    ],
)
def test_what_is_of_another_type_is_not_believed(said: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is no"):
        Opened.of_message(said)
    with pytest.raises(ValueError, match="is no"):
        Closed.of_message({"events": said.get("assigned", 0), "nodes": said.get("assigned_nodes")})
