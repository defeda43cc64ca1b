"""Drawing where nodes run and why the rest does not; what a plan for an NPU says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vermilion.cli.fitted import Column, Facts, FittedTable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from vermilion.backends.npu_cost import Latency
    from vermilion.inspection import Crossings, Inspection, Prediction
    from vermilion.runtime.summary import Summary


_GROUPS = 12


def placement_view(prediction: Prediction, *, every_node: bool) -> Sequence[RenderableType]:
    """Return the predicted placement for people."""
    rows = [node.as_json() for node in prediction.placement.nodes]
    title = f"placement on {prediction.target.name}, by rule: nothing was compiled"
    views: list[RenderableType] = [title, summary_view(prediction.summary, ran="not compiled")]
    views += latency_view(prediction.latency, prediction.no_latency)
    views += nodes_view(rows, prediction.target.kind, every_node=every_node)
    return views


def latency_view(latency: Latency | None, reason: str) -> list[RenderableType]:
    """Return the line of a modelled latency: with its interval, or why there is none."""
    if latency is not None:
        return [f"modelled latency on the device: {latency.words}"]
    return [f"no latency is modelled: {reason}"] if reason else []


def summary_view(summary: Summary, *, ran: str) -> RenderableType:
    """Return supported, offloaded and ran beside each other."""
    columns = (
        Column("", 0, "name"), Column("model", 1), Column("supported", 0), Column("offloaded", 0),
        Column("ran", 0, "words"),
    )  # fmt: skip
    rows = [
        (
            "operators",
            str(summary.operators),
            _share(summary.supported_operators, summary.operators, "d"),
            _share(summary.offloaded_operators, summary.operators, "d"),
            ran,
        ),
        (
            "GOPs",
            f"{summary.gops:.4g}",
            _share(summary.supported_gops, summary.gops, ".4g"),
            _share(summary.offloaded_gops, summary.gops, ".4g"),
        ),
        ("subgraphs", "", str(summary.subgraphs_supported), str(summary.subgraphs_offloaded)),
    ]
    fallback = summary.fallback
    lost = {
        "failed to compile": fallback.compile_error,
        f"below {summary.threshold_gops_percent:g}% of GOPs": fallback.below_gops_threshold,
        f"above {summary.max_subgraphs} subgraphs": fallback.above_max_subgraphs,
    }
    rows += [("", "", "", f"-{count}", words) for words, count in lost.items() if count]
    return FittedTable(columns, rows)


def nodes_view(
    nodes: Sequence[Mapping[str, object]], device: str, *, every_node: bool
) -> Sequence[RenderableType]:
    """Return the nodes that are not on the device, by reason; or every node."""
    # A reason stands where a node is not with what was compiled for the target.
    away = [node for node in nodes if node["device"] != device or node["reason"]]
    if every_node:
        keys = ("name", "op_type", "device", "part", "reason")
        return [FittedTable(_NODE_COLUMNS, [[str(node[key]) for key in keys] for node in nodes])]
    if not nodes:
        return ["the graph has no nodes"]
    if not away:
        # On a CPU target what stays behind is on the CPU too, in ONNX Runtime.
        verb = "compiled for" if device == "cpu" else "placed on"
        return [f"every node is {verb} the {device.upper()}"]
    groups: dict[tuple[str, str], list[Mapping[str, object]]] = {}
    for node in away:
        groups.setdefault((str(node["reason"]), str(node["hint"])), []).append(node)
    where = "in ONNX\nRuntime" if device == "cpu" else "on the\nCPU"
    columns = (Column(where), Column("why", 0, "words"), Column("what to do", 1, "words"))
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    rows = [(str(len(members)), reason, hint) for (reason, hint), members in ordered[:_GROUPS]]
    if len(ordered) > _GROUPS:
        rest = sum(len(members) for _, members in ordered[_GROUPS:])
        rows.append((str(rest), f"{len(ordered) - _GROUPS} more reasons", "see `--nodes`"))
    return [FittedTable(columns, rows)]


_NODE_COLUMNS = (
    Column("node", 0, "name"), Column("operator", 2, "name"), Column("device", 0, "name"),
    Column("part", 3, "name"), Column("reason", 1, "words"),
)  # fmt: skip


def _share(part: float, whole: float, form: str) -> str:
    return f"{part:{form}} ({100.0 * part / whole if whole else 0.0:.1f}%)"


def planning_view(prediction: Prediction, cpu_ms: float | None) -> Sequence[RenderableType]:
    """Return what stands below the placement on one target."""
    facts = [] if prediction.latency is None else _latency_rows(prediction.latency)
    crossings = prediction.crossings
    if crossings is not None:
        facts.append(("transfers", _transfer_words(prediction, crossings)))
    if cpu_ms is not None:
        facts.append(("this CPU", f"{cpu_ms:.2f} ms for the whole model, measured now"))
        advice = _advice(prediction, cpu_ms)
        if advice:
            facts.append(("so", advice))
    facts += [("careful", caution) for caution in prediction.cautions]
    fix = prediction.fix
    if fix is not None:
        before = prediction.summary.offloaded_operators
        gain = f"{before} → {fix.offloaded_operators} of {fix.operators} operators offloaded"
        facts.append(("--fix", f"{', '.join(fix.fixes)}: {gain}"))
    return [Facts(facts)] if facts else []


def _transfer_words(prediction: Prediction, crossings: Crossings) -> str:
    parts = sum(part.device == prediction.target.kind for part in prediction.placement.parts)
    count = crossings.tensors
    between = f"{count} tensor{'' if count == 1 else 's'}, {crossings.bytes / 1e6:.2f} MB"
    return (
        f"{parts} part{'' if parts == 1 else 's'} on the device; {between} between it and the CPU "
        "in a run"
    )


def _latency_rows(latency: Latency) -> list[tuple[str, str]]:
    shares = (
        ("dense arithmetic", latency.dense_ms),
        ("depthwise arithmetic", latency.depthwise_ms),
        ("memory traffic", latency.traffic_ms),
        ("dispatch", latency.dispatch_ms),
    )
    total = latency.total_ms or 1.0
    spent = ", ".join(f"{name} {100 * ms / total:.0f}%" for name, ms in shares if ms > 0)
    rows = [
        ("modelled", f"{latency.words} on the device: {spent}"),
        ("its error", f"{latency.basis}. Networks left out of the fit came out {_errors(latency)}"),
        ("interval", f"holds another such network with a probability of {latency.coverage:.0%}"),
    ]
    if latency.layers_beyond_memory:
        text = f"{latency.layers_beyond_memory} of {latency.layers} layers do not fit in it"
        rows.append(("array memory", text))
    return rows


def _errors(latency: Latency) -> str:
    worst, by = latency.worst_error
    return f"±{100 * latency.median_error:.0f}% in the middle, {worst} {100 * by:+.0f}% at worst"


def _advice(prediction: Prediction, cpu_ms: float) -> str:
    """Say which is faster, if the whole of the interval says so."""
    latency, summary = prediction.latency, prediction.summary
    if latency is None:
        return ""
    left = 1.0 - (summary.offloaded_gops / summary.gops if summary.gops else 0.0)
    rest_ms = left * cpu_ms
    rest = f" and {rest_ms:.2f} ms of it on the CPU" if left > 0.005 else ""
    if latency.low_ms + rest_ms > cpu_ms:
        return f"the CPU of this machine is faster than the modelled {latency.words}{rest}"
    if latency.high_ms + rest_ms < cpu_ms:
        low, high = (cpu_ms / (ms + rest_ms) for ms in (latency.high_ms, latency.low_ms))
        return f"the device should be {low:.2f} to {high:.2f} × as fast as this CPU{rest}"
    return "the interval has this CPU's time in it: which is faster cannot be said"


def targets_view(found: Inspection) -> Sequence[RenderableType]:
    """Return one row a chip, for the target `all`."""
    table = FittedTable(_TARGET_COLUMNS, [_target_row(one) for one in found.predictions])
    views: list[RenderableType] = ["by rule, for each NPU: nothing was compiled", table]
    if found.cpu_ms is not None:
        views.append(f"the CPU of this machine takes {found.cpu_ms:.2f} ms, measured now")
    return views + [
        f"{one.target.name}: no latency is modelled: {one.no_latency}"
        for one in found.predictions
        if one.no_latency
    ]


_TARGET_COLUMNS = (
    Column("target", 0, "name"), Column("offloaded", 1), Column("GOPs", 2), Column("parts", 7),
    Column("transfers", 8), Column("with --fix", 5), Column("modelled", 3),
    Column("first reason", 6, "words"),
)  # fmt: skip


def _target_row(prediction: Prediction) -> list[str]:
    summary, latency, fix = prediction.summary, prediction.latency, prediction.fix
    share = 100 * summary.offloaded_gops / summary.gops if summary.gops else 0.0
    reasons = [node.reason for node in prediction.placement.nodes if node.reason]
    return [
        prediction.target.name,
        f"{summary.offloaded_operators} of {summary.operators}",
        f"{share:.1f}%",
        str(summary.subgraphs_offloaded),
        str(prediction.crossings.tensors) if prediction.crossings else "",
        str(fix.offloaded_operators) if fix else "",
        latency.words if latency else "not known",
        reasons[0] if reasons else "",
    ]
