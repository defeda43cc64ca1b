"""Drawing where nodes run: three columns, never one, and the reasons of what stays behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.inspection import Prediction
    from vermilion.runtime.summary import Summary

_GROUPS = 12


def placement_view(prediction: Prediction, *, every_node: bool) -> Sequence[RenderableType]:
    """Return the predicted placement for people."""
    rows = [node.as_json() for node in prediction.placement.nodes]
    title = f"placement on {prediction.target.name}, by rule: nothing was compiled"
    views: list[RenderableType] = [title, summary_view(prediction.summary, ran="not compiled")]
    if prediction.milliseconds is not None:
        views.append(f"modelled latency on the device: {prediction.milliseconds:.2f} ms")
    views += nodes_view(rows, prediction.target.kind, every_node=every_node)
    return views


def summary_view(summary: Summary, *, ran: str) -> RenderableType:
    """Return supported, offloaded and ran beside each other."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "model", "supported", "offloaded", "ran"):
        table.add_column(column, justify="left" if column in ("", "ran") else "right")
    table.add_row(
        "operators",
        str(summary.operators),
        _share(summary.supported_operators, summary.operators, "d"),
        _share(summary.offloaded_operators, summary.operators, "d"),
        ran,
    )
    table.add_row(
        "GOPs",
        f"{summary.gops:.4g}",
        _share(summary.supported_gops, summary.gops, ".4g"),
        _share(summary.offloaded_gops, summary.gops, ".4g"),
        "",
    )
    table.add_row(
        "regions", "", str(summary.subgraphs_supported), str(summary.subgraphs_offloaded), ""
    )
    fallback = summary.fallback
    lost = {
        "failed to compile": fallback.compile_error,
        f"below {summary.threshold_gops_percent:g}% of GOPs": fallback.below_gops_threshold,
        f"above {summary.max_subgraphs} regions": fallback.above_max_subgraphs,
    }
    for words, count in lost.items():
        if count:
            table.add_row("", "", "", f"-{count}", words)
    return table


def nodes_view(
    nodes: Sequence[Mapping[str, object]], device: str, *, every_node: bool
) -> Sequence[RenderableType]:
    """Return the nodes that are not on the device, by reason; or every node."""
    from rich.table import Table

    # A reason stands where a node is not with what was compiled for the target.
    away = [node for node in nodes if node["device"] != device or node["reason"]]
    if every_node:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for column in ("node", "operator", "device", "part", "reason"):
            table.add_column(column, overflow="fold")
        for node in nodes:
            table.add_row(
                *(str(node[key]) for key in ("name", "op_type", "device", "part", "reason"))
            )
        return [table]
    if not away:
        # On a CPU target what stays behind is on the CPU too, in ONNX Runtime.
        verb = "compiled for" if device == "cpu" else "placed on"
        return [f"every node is {verb} the {device.upper()}"]
    groups: dict[tuple[str, str], list[Mapping[str, object]]] = {}
    for node in away:
        groups.setdefault((str(node["reason"]), str(node["hint"])), []).append(node)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("in ONNX Runtime" if device == "cpu" else "on the CPU", justify="right")
    table.add_column("why", overflow="fold")
    table.add_column("what to do", overflow="fold")
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    for (reason, hint), members in ordered[:_GROUPS]:
        table.add_row(str(len(members)), reason, hint)
    if len(ordered) > _GROUPS:
        rest = sum(len(members) for _, members in ordered[_GROUPS:])
        table.add_row(str(rest), f"{len(ordered) - _GROUPS} more reasons", "see `--nodes`")
    return [table]


def _share(part: float, whole: float, form: str) -> str:
    return f"{part:{form}} ({100.0 * part / whole if whole else 0.0:.1f}%)"
