"""Places that were settled before: in a compiled bundle, and in saved results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vermilion.hardware.targets.find import find_target
from vermilion.view.graph import shorter
from vermilion.view.opened import Opened
from vermilion.view.overlay import Saved, number, rows_of
from vermilion.view.places import Places, summary_row, target_row, targets_shown


def compiled_row(opened: Opened, places: Places) -> dict[str, Any]:
    """Return the row of what a bundle was compiled for."""
    assert opened.reader is not None, "a report is a bundle's"
    assert opened.report is not None, "a bundle has a report"
    manifest, report = opened.reader.manifest, opened.report
    target = find_target(manifest.target)
    interval = report.predicted_interval_ms
    return target_row(
        f"{target.name} (compiled)",
        target.title,
        target.kind,
        **{"is": "modelled" if any(part.modelled for part in manifest.parts) else "measured"},
        ms=report.predicted_ms,
        interval=None if interval is None else list(interval),
        no_ms=report.predicted_reason,
        summary=summary_row(report.summary.as_json()),
        at=places.of(report.nodes, target.kind),
    )


def saved_rows(results: Sequence[Saved], places: Places) -> list[dict[str, Any]]:
    """Return a row for each saved result that has every node's place."""
    rows: list[dict[str, Any]] = []
    for one in results:
        nodes = rows_of(one.data.get("nodes"))
        name = str(one.data.get("target") or "")
        if not nodes or not name:
            continue
        kind = next((t.kind for t in targets_shown() if t.name == name), "cpu")
        summary, interval = one.data.get("summary"), one.data.get("predicted_interval_ms")
        ends = interval if isinstance(interval, list) else []
        is_interval = len(ends) == 2 and all(isinstance(end, int | float) for end in ends)
        rows.append(
            target_row(
                f"{shorter(name)} ({one.path.name})",
                shorter(name),
                kind,
                ms=number(one.data, "predicted_ms"),
                interval=ends if is_interval else None,
                no_ms=shorter(str(one.data.get("predicted_reason") or "")),
                summary=summary_row(summary if isinstance(summary, dict) else {}),
                at=places.of(nodes, kind),
            )
        )
    return rows
