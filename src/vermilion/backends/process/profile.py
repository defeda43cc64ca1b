"""Node runs by provider, from the profile that ONNX Runtime writes."""

from __future__ import annotations

import json
from collections import Counter

from vermilion.errors import ArtifactError

CPU = "CPUExecutionProvider"


def count_events(profile: str) -> dict[str, int]:
    """Count node runs by provider in an ONNX Runtime profile.

    Raises: ArtifactError where the text is no profile.
    """
    try:
        events = json.loads(profile)
    except ValueError as error:
        raise ArtifactError(f"this is no profile: {error}") from error
    counts: Counter[str] = Counter()
    for event in events if isinstance(events, list) else []:
        arguments = event.get("args") if isinstance(event, dict) else None
        if not isinstance(arguments, dict) or event.get("cat") != "Node":
            continue
        provider = arguments.get("provider")
        if isinstance(provider, str) and str(event.get("name", "")).endswith("_kernel_time"):
            counts[provider] += 1
    return dict(counts)
