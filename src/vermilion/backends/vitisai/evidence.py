"""Where nodes really ran: everything that can be known of it, and a verdict.

Three columns, never one. *Supported* is a plan, *offloaded* another: both have said 100 % for
graphs of which nothing ran on the NPU (https://github.com/amd/RyzenAI-SW/issues/374). *Ran* is what
was seen, by ONNX Runtime's profile, `xrt-smi`, and the provider's own report, each held against the
others: a node that one of them has on a processor counts as there, whatever the others say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from vermilion.backends.provider.contract import CPU, Closed, Names, Opened
from vermilion.backends.provider.seen import (
    PartNode,
    Sighting,
    nodes_elsewhere,
    runtime_sightings,
    sighting_notes,
)
from vermilion.backends.vitisai.reports import DeviceCounts, SummaryCounts

NPU = "VitisAIExecutionProvider"


@dataclass(frozen=True)
class Evidence:
    """What is known. None or empty where nobody told.

    `summary`, `report` and `console` are the provider's own words; `assigned` is ONNX Runtime's,
    `events` are node runs by provider, the maps of names say which nodes; `submitted` says how many
    commands our process put to the NPU (`xrt-smi`).
    """

    nodes: Sequence[PartNode]
    summary: SummaryCounts = field(default_factory=SummaryCounts)
    report: DeviceCounts = field(default_factory=DeviceCounts)
    console: DeviceCounts = field(default_factory=DeviceCounts)
    providers: tuple[str, ...] = ()
    assigned: Mapping[str, int] = field(default_factory=dict)
    assigned_nodes: Names = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    event_nodes: Names = field(default_factory=dict)
    submitted: int | None = None


@dataclass(frozen=True)
class Verdict:
    """The three columns, None where unknown, and what does not fit together.

    `elsewhere` has the nodes that were not seen on the NPU, by position, with the reason.
    `contradictions` are such that nothing of the part counts as run.
    """

    supported: int | None
    offloaded: int | None
    ran_on_npu: bool | None
    elsewhere: Mapping[int, str]
    cpu_share: float | None  # of the node runs that were seen
    contradictions: tuple[str, ...]
    notes: tuple[str, ...]


def judge(evidence: Evidence) -> Verdict:
    """Weigh what is known: what was seen counts, what was said is compared with it."""
    ran = _ran(evidence)
    sightings = list(_sightings(evidence))
    elsewhere = nodes_elsewhere(evidence.nodes, sightings)
    total = sum(evidence.events.values())
    contradictions = list(_contradictions(evidence, ran))
    if not contradictions and evidence.nodes and len(elsewhere) == len(evidence.nodes):
        contradictions.append(next(iter(elsewhere.values())))
    return Verdict(
        supported=evidence.summary.supported,
        offloaded=_planned(evidence),
        ran_on_npu=ran,
        elsewhere=elsewhere,
        cpu_share=evidence.events.get(CPU, 0) / total if total else None,
        contradictions=tuple(contradictions),
        notes=(
            *sighting_notes(evidence.nodes, sightings, elsewhere, "NPU"),
            *_only_witness(evidence, ran),
        ),
    )


def _only_witness(evidence: Evidence, ran: bool | None) -> Iterator[str]:
    """Say where ONNX Runtime alone has it on the NPU: it does not see into a provider's node."""
    summary = evidence.summary
    said = (summary.supported, summary.offloaded, evidence.submitted)
    is_reported = bool(evidence.report.devices or evidence.console.devices)
    if ran and not is_reported and all(count is None for count in said):
        yield (
            "that it ran on the NPU is ONNX Runtime's word alone: the provider reported nothing,"
            " and `xrt-smi` is not here"
        )


def _planned(evidence: Evidence) -> int | None:
    """Return how many operators the provider says that it put on the NPU."""
    said = [evidence.summary.offloaded]
    said += [c.on_npu for c in (evidence.report, evidence.console) if c.devices]
    return next((count for count in said if count is not None), None)


def _ran(evidence: Evidence) -> bool | None:
    """Say whether anything was seen on the NPU; what says no is stronger than what says yes."""
    if evidence.providers and NPU not in evidence.providers:
        return False
    if evidence.submitted == 0 or 0 in (evidence.report.running, evidence.console.running):
        return False
    if evidence.events:
        return evidence.events.get(NPU, 0) > 0
    return True if evidence.submitted else None


def _contradictions(evidence: Evidence, ran: bool | None) -> Iterator[str]:
    planned, count = _planned(evidence), len(evidence.nodes)
    if evidence.providers and NPU not in evidence.providers:
        yield f"the session has no `{NPU}`: it has {', '.join(evidence.providers) or 'none'}"
    elif ran is False and planned:
        yield (
            f"the provider says that {planned} of {count} operators are on the NPU, and"
            f" {_seen(evidence)}"
        )
    elif ran is False:
        yield f"the session lists `{NPU}`, and {_seen(evidence)}"
    elif ran is None:
        yield (
            "nothing was seen to run on the NPU: the profile has no node, and `xrt-smi` is not"
            " here or does not know the process"
        )
    if planned and evidence.summary.supported == 0:
        yield f"the preliminary summary supports no operator, the final one offloads {planned}"
    if evidence.assigned and not evidence.assigned.get(NPU):
        yield "ONNX Runtime assigned no node to the provider"


def _seen(evidence: Evidence) -> str:
    if evidence.events and not evidence.events.get(NPU):
        on_cpu = evidence.events.get(CPU, 0)
        return f"every node that was seen to run ran on the CPU ({on_cpu} events)"
    if evidence.submitted == 0:
        return "not one command was put to the NPU (`xrt-smi`)"
    return "none of its regions for the NPU is actually running there"


def _sightings(evidence: Evidence) -> Iterator[Sighting]:
    nodes = evidence.nodes
    made_by = {name: position for position, node in enumerate(nodes) for name in node.outputs}
    for who, counts in (
        ("the provider's report", evidence.report),
        ("the provider's console output", evidence.console),
    ):
        if counts.devices:
            missing = max(0, len(nodes) - counts.on_npu - counts.left)
            named = {
                made_by[name]: device
                for name, device in counts.elsewhere.items()
                if name in made_by
            }
            yield Sighting(who, min(counts.left, len(nodes)), missing, named)
    yield from _of_summary(evidence)
    yield from runtime_sightings(
        nodes,
        NPU,
        Opened(evidence.providers, evidence.assigned, evidence.assigned_nodes),
        Closed(evidence.events, evidence.event_nodes),
    )


def _of_summary(evidence: Evidence) -> Iterator[Sighting]:
    summary = evidence.summary
    said = [n for n in (summary.supported, summary.offloaded) if n is not None]
    if said:
        total = len(evidence.nodes) if summary.operators is None else summary.operators
        left = min(max(0, total - min(said)), len(evidence.nodes))
        yield Sighting("the compiler's summary", left, 0, {})
