"""Where every node would run on every target: computed once, so that a page can switch.

And where it was settled before: in a compiled bundle, and in saved results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from vermilion.backends.npu_cost import Latency, predict
from vermilion.backends.npu_rules import CAUTIONS
from vermilion.errors import Refusal, UnsupportedError
from vermilion.hardware.targets.find import all_targets, find_target
from vermilion.hardware.targets.target import Target
from vermilion.partition.place import Known, Plan, known_of, plan
from vermilion.progress import Progress
from vermilion.runtime.block_numbers import settled_numbers
from vermilion.runtime.build import backends_for
from vermilion.view.graph import Graph, shorter
from vermilion.view.opened import Opened
from vermilion.view.overlay import Saved, number, rows_of

Found = dict[str, Any]


def targets_shown() -> tuple[Target, ...]:
    """Return this machine's processor and every NPU and GPU; other processors place alike."""
    others = (target for target in all_targets() if target.kind != "cpu")
    return (find_target("cpu"), *others)


class Places:
    """Rows of places, each kept once: thousands of nodes have the same few."""

    def __init__(self, graph: Graph) -> None:
        self.rows: list[Found] = []
        self._known: dict[tuple[object, ...], int] = {}
        self._names = [node.name for node in graph.nodes]

    def of(self, nodes: Sequence[Mapping[str, Any]], device: str) -> list[int]:
        """Return the number of each node's place, -1 where nothing is said of it."""
        by_name = {shorter(str(node.get("name") or "")): node for node in nodes}
        alike = len(nodes) == len(self._names)
        found = []
        for position, name in enumerate(self._names):
            node = nodes[position] if alike else None
            if node is None or shorter(str(node.get("name") or "")) != name:
                node = by_name.get(name)
            found.append(-1 if node is None else self._number(node, device))
        return found

    def _number(self, node: Mapping[str, Any], device: str) -> int:
        reason, hint = str(node.get("reason") or ""), str(node.get("hint") or "")
        where = str(node.get("device") or "")
        row: Found = {
            "on": where == device and not reason,
            "device": where,
            "backend": str(node.get("backend") or ""),
            "part": str(node.get("part") or ""),
            "supported": bool(node.get("supported", not reason)),
            "reason": reason,
            "hint": hint,
        }
        key = tuple(row.values())
        if key not in self._known:
            self._known[key] = len(self.rows)
            self.rows.append(row)
        return self._known[key]


def placed_by_rule(
    model: ir.Model, known: Known, targets: Sequence[Target], places: Places, progress: Progress
) -> tuple[list[Found], dict[str, Plan]]:
    """Return a row a target: what would be offloaded, how long it would take, every node's place.

    And the plans, by the target's name. It is what `inspect` says of one target; `known` is what
    is the same for all. A target that nothing here compiles for is a row with its reason.
    """
    rows: list[Found] = []
    plans: dict[str, Plan] = {}
    alike: dict[object, Found] = {}
    for at, target in enumerate(targets):
        progress("place", at, len(targets))
        try:
            device_backend, cpu_backend, _ = backends_for(target)
        except UnsupportedError as error:
            rows.append(_row(target, refusal=[error.message, error.hint]))
            continue
        # GPUs are told apart when a part is compiled, not by any rule.
        key = (device_backend.name, target.limits) if target.kind == "gpu" else target.name
        if key in alike:
            same = ("summary", "at", "cautions")
            rows.append(_row(target, **{name: alike[key][name] for name in same}))
            continue
        placed = settled_numbers(model, target, "auto")[0]
        mine = known if placed is model else known_of(placed)
        found = plan(placed, target, device_backend, cpu_backend, known=mine)
        plans[target.name] = found
        rows.append(_of_plan(found, places))
        alike[key] = rows[-1]
    progress("place", len(targets), len(targets))
    return rows, plans


def _of_plan(found: Plan, places: Places) -> Found:
    target = found.target
    offloaded = [one for one in found.candidates if one.fate == "offloaded"]
    mine = {position: one for one in found.candidates for position in one.positions}
    nodes = []
    for position, cost in enumerate(found.cost.nodes):
        refused = found.refusals[position]
        candidate = mine.get(position)
        refusal = refused or (candidate.refusal if candidate else None)
        on_it = candidate is not None and candidate.fate == "offloaded"
        nodes.append(
            {"name": cost.name, "device": target.kind if on_it else "cpu",
             "supported": refused is None, "part": candidate.name if candidate and on_it else "",
             "reason": refusal.reason if refusal else "", "hint": refusal.hint if refusal else ""}
        )  # fmt: skip
    graph = list(found.model.graph)
    inside = [graph[position] for one in offloaded for position in sorted(one.positions)]
    latency = (
        predict(target, found.facts.number_format, inside, parts=len(offloaded))
        if inside and target.kind == "npu"
        else None
    )
    kinds = {node.op_type for node in inside}
    claimed = [
        cost for position, cost in enumerate(found.cost.nodes) if found.refusals[position] is None
    ]
    row = _row(
        target,
        ms=latency.total_ms if isinstance(latency, Latency) else None,
        interval=[latency.low_ms, latency.high_ms] if isinstance(latency, Latency) else None,
        no_ms=latency.reason if isinstance(latency, Refusal) else "",
        cautions=[text for op_type, text in CAUTIONS.items() if op_type in kinds],
        summary={
            "operators": len(found.cost.nodes), "gops": found.cost.gops,
            "supported_operators": len(claimed),
            "supported_gops": sum(cost.operations for cost in claimed) / 1e9,
            "offloaded_operators": sum(len(one.positions) for one in offloaded),
            "offloaded_gops": sum(one.operations for one in offloaded) / 1e9,
            "subgraphs_offloaded": len(offloaded),
        },
    )  # fmt: skip
    return {**row, "at": places.of(nodes, target.kind)}


def _row(target: Target, **said: object) -> Found:
    return target_row(target.name, target.title, target.kind, **said)


def target_row(name: str, title: str, kind: str, **said: object) -> Found:
    """Return what the page has of a target; what is not said is not known."""
    return {
        "name": name, "title": title, "kind": kind, "is": "modelled", "ms": None,
        "interval": None, "no_ms": "", "refusal": None, "summary": None, "cautions": [], "at": [],
        **said,
    }  # fmt: skip


_COUNTS = (
    "operators", "gops", "supported_operators", "supported_gops", "offloaded_operators",
    "offloaded_gops", "subgraphs_offloaded",
)  # fmt: skip


def summary_row(summary: Mapping[str, Any]) -> Found:
    """Return the counts of a summary, 0 for what a foreign file lacks."""
    found: Found = {}
    for key in _COUNTS:
        value = summary.get(key)
        found[key] = value if isinstance(value, int | float) else 0
    return found


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
