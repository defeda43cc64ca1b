from __future__ import annotations

import json

import pytest

from vermilion.backends.provider.contract import CPU, count_events
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
    assert count_events(json.dumps(events)) == {CPU: 1, NPU: 1}
    with pytest.raises(ArtifactError, match="no profile"):
        count_events("[{")
