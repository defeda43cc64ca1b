"""Which nodes of a part were seen on its device: what several sources say, held together.

A node that one source has on a processor counts as there, whatever the others say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from vermilion.backends.provider.contract import Closed, Opened
from vermilion.ir.cost import node_cost


@dataclass(frozen=True)
class PartNode:
    """What is to be told of a node: its name, its outputs, its operations."""

    name: str
    outputs: tuple[str, ...]
    operations: int


def part_nodes(model: ir.Model) -> tuple[PartNode, ...]:
    """Return the nodes of a part in order."""
    return tuple(
        PartNode(
            node.name or "",
            tuple(value.name or "" for value in node.outputs),
            node_cost(node).operations,
        )
        for node in model.graph
    )


@dataclass(frozen=True)
class Sighting:
    """What one source has of the part: nodes on a processor, and nodes that it does not mention."""

    who: str
    on_processor: int
    not_mentioned: int
    named: Mapping[int, str]  # position → the device that the source names


def runtime_sightings(
    nodes: Sequence[PartNode], mine: str, opened: Opened, closed: Closed
) -> Iterator[Sighting]:
    """Yield what ONNX Runtime has seen: its assignment, and the node runs of its profile.

    All that is not the provider `mine` is a processor's.
    """
    named_by = {node.name: position for position, node in enumerate(nodes) if node.name}
    for who, by_provider, names in (
        ("ONNX Runtime's assignment", opened.assigned, opened.assigned_nodes),
        ("ONNX Runtime's profile", closed.events, closed.nodes),
    ):
        others = [name for name in by_provider if name != mine]
        found = [name for other in others for name in names.get(other, ())]
        named = {named_by[name]: "the CPU" for name in found if name in named_by}
        left = len(found) if found else sum(by_provider[other] for other in others)
        if by_provider:
            yield Sighting(who, min(left, len(nodes)), 0, named)


def nodes_elsewhere(nodes: Sequence[PartNode], sightings: Sequence[Sighting]) -> dict[int, str]:
    """Return the nodes that do not count as run on the device, by position, with the reason.

    Where a source says how many and not which, the largest do: no share of the work is claimed
    that may not have run there. What no source mentions may have been fused into others: the
    smallest.
    """
    found: dict[int, str] = {}
    for sighting in sightings:
        for position, device in sighting.named.items():
            found.setdefault(position, f"{sighting.who} has it on {device}")
    by_size = sorted(range(len(nodes)), key=lambda at: (-nodes[at].operations, at))
    if not sightings:
        return found
    most = max(sightings, key=lambda one: one.on_processor)
    which = f"{most.who} has {most.on_processor} of {len(nodes)} operators on a processor"
    for position in by_size:
        if len(found) >= most.on_processor:
            break
        found.setdefault(position, f"{which}, and does not say which: the largest count as those")
    silent = max(sightings, key=lambda one: one.not_mentioned)
    wanted = min(len(found) + silent.not_mentioned, len(nodes))
    for position in reversed(by_size):
        if len(found) >= wanted:
            break
        found.setdefault(position, f"{silent.who} does not mention it")
    return dict(sorted(found.items()))


def sighting_notes(
    nodes: Sequence[PartNode],
    sightings: Sequence[Sighting],
    elsewhere: Mapping[int, str],
    device: str,
) -> tuple[str, ...]:
    """Return what to tell of sources that do not agree, and of nodes that are elsewhere."""
    notes = []
    counts = {one.who: one.on_processor for one in sightings}
    if len(set(counts.values())) > 1:
        words = ", ".join(f"{who} {count}" for who, count in counts.items())
        notes.append(
            f"what is said of its {len(nodes)} operators does not agree; on a processor has"
            f" {words}: the most counts"
        )
    if elsewhere:
        operations = sum(node.operations for node in nodes)
        here = sum(nodes[at].operations for at in elsewhere)
        share = f" ({here / operations:.1%} of the operations)" if operations else ""
        notes.append(
            f"{len(elsewhere)} of {len(nodes)} operators{share} were not seen on the {device}"
        )
    return tuple(notes)
