"""Every node's place: claims, refusals, the target's limits, and what came of compiling.

Placement has two steps, because only compiling tells which parts compile: `plan` decides what goes
to the device by rule, `settle` takes the compiled parts, gives the failed ones to the CPU and puts
everything in the order in which it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import onnx_ir as ir

from vermilion.backends.base import Backend, ModelFacts, Part
from vermilion.errors import Refusal
from vermilion.hardware.targets.target import Target
from vermilion.ir.cost import ModelCost, node_cost
from vermilion.ir.numbers import number_format
from vermilion.ir.passes.bind_dimensions import dimension_name, dimension_options
from vermilion.partition.cut import Extractor, connected_parts, schedule

Fate = Literal[
    "offloaded", "unsupported", "below_gops_threshold", "above_max_parts", "compile_error"
]

PART_NAME = "vaiml_par_{}"
CPU_PART_NAME = "cpu_par_{}"


@dataclass(frozen=True)
class NodePlace:
    """Where one node runs. `reason` says why that is not the target's device, if it is not."""

    name: str
    op_type: str
    operations: int
    supported: bool
    device: str
    part: str
    backend: str = ""
    reason: str = ""
    hint: str = ""

    def as_json(self) -> dict[str, object]:
        """Return the keys that `compile --json` promises for a node."""
        return {
            "name": self.name,
            "op_type": self.op_type,
            "operations": self.operations,
            "supported": self.supported,
            "device": self.device,
            "part": self.part,
            "backend": self.backend,
            "reason": self.reason,
            "hint": self.hint,
        }


@dataclass(frozen=True)
class DevicePart:
    """A candidate for the device: its nodes by position, and what the limits said."""

    name: str
    positions: tuple[int, ...]
    operations: int
    fate: Fate
    refusal: Refusal | None = None


@dataclass(frozen=True)
class Plan:
    """What the rules say, before anything is compiled."""

    model: ir.Model
    target: Target
    facts: ModelFacts
    cost: ModelCost
    refusals: tuple[Refusal | None, ...]  # per node; None where the backend claims it
    candidates: tuple[DevicePart, ...]
    extractor: Extractor
    backend: str
    cpu_backend: str

    def positions(self, name: str) -> tuple[int, ...]:
        """Return the nodes of a candidate."""
        return next(c.positions for c in self.candidates if c.name == name)

    def device_parts(self) -> list[Part]:
        """Return the candidates that are to be compiled, as models of their own."""
        return [
            self._part(c.name, self.target.kind, self.backend, c.positions)
            for c in self.candidates
            if c.fate == "offloaded"
        ]

    def _part(self, name: str, device: str, backend: str, positions: tuple[int, ...]) -> Part:
        return Part(
            name=name,
            device=device,
            backend=backend,
            model=self.extractor.extract(name, positions),
            node_names=tuple(self.cost.nodes[p].name for p in positions),
            gops=sum(self.cost.nodes[p].operations for p in positions) / 1e9,
        )


@dataclass(frozen=True)
class Placement:
    """Where everything runs: parts in the order in which they run, and every node's place."""

    target: Target
    parts: tuple[Part, ...]
    nodes: tuple[NodePlace, ...]
    candidates: tuple[DevicePart, ...]
    cost: ModelCost

    def count(self, fate: Fate) -> int:
        """Return the number of supported regions with this fate."""
        return sum(c.fate == fate for c in self.candidates)

    def on_device(self, part: str) -> list[NodePlace]:
        """Return the nodes of a part that are on its device."""
        return [n for n in self.nodes if n.part == part and n.device == self.target.kind]


def model_facts(model: ir.Model) -> ModelFacts:
    """Collect what the rules want to know of the whole model."""
    symbolic: dict[str, None] = {}
    for value in model.graph.inputs:
        for axis, dimension in enumerate(value.shape or ()):
            if not isinstance(dimension, int):
                symbolic[dimension_name(dimension) or f"{value.name}[{axis}]"] = None
        if value.shape is None:
            symbolic[f"{value.name}[...]"] = None
    leading = {v.shape[0] for v in model.graph.inputs if v.shape is not None and len(v.shape) > 1}
    batch = leading.pop() if len(leading) == 1 else None
    return ModelFacts(
        number_format=number_format(model),
        opset=model.opset_imports.get("", 0),
        convolutions=sum(n.op_type in ("Conv", "QLinearConv") for n in model.graph),
        symbolic_dimensions=tuple(symbolic),
        batch=batch if isinstance(batch, int) else None,
        bind=dimension_options(model) if symbolic else "",
        model=model,
    )


@dataclass(frozen=True)
class Known:
    """What is the same for every target, for who asks for many: see `known_of`."""

    facts: ModelFacts
    cost: ModelCost
    extractor: Extractor


def known_of(model: ir.Model) -> Known:
    """Return what `plan` finds out about a model, whatever the target."""
    cost = ModelCost(tuple(node_cost(node) for node in model.graph))  # one for each, in order
    return Known(model_facts(model), cost, Extractor(model))


def plan(
    model: ir.Model,
    target: Target,
    backend: Backend,
    cpu_backend: Backend,
    failing: Mapping[int, Refusal] | None = None,
    *,
    numbers: str = "",
    known: Known | None = None,
) -> Plan:
    """Decide by rule which nodes go to the device, and in which parts.

    `model` is simplified and in topological order. Its graph outputs are all made by nodes.
    `failing` are nodes that were seen to fail, by position: no rule gives them to the device.
    `numbers` is a number format that the model is taken to have, its own by default.
    """
    given = known or known_of(model)
    cost, extractor = given.cost, given.extractor
    facts = replace(given.facts, number_format=numbers or given.facts.number_format)
    seen = failing or {}
    refusals = tuple(
        verdict if isinstance(verdict, Refusal) else seen.get(position)
        for position, verdict in enumerate(backend.claim(n, facts, target) for n in model.graph)
    )
    supported = [refusal is None for refusal in refusals]
    if target.kind == "cpu" and all(supported):
        # Nothing stays behind, so there is no border to cross: one part, connected or not.
        regions = [list(range(len(supported)))] if supported else []
    else:
        regions = connected_parts(extractor.reads, supported)
    candidates = _apply_limits([tuple(sorted(r)) for r in regions], cost, target)
    return Plan(
        model, target, facts, cost, refusals, candidates, extractor, backend.name, cpu_backend.name
    )


def _apply_limits(
    regions: list[tuple[int, ...]], cost: ModelCost, target: Target
) -> tuple[DevicePart, ...]:
    limits = target.limits
    total = cost.operations
    found = [
        DevicePart("", region, sum(cost.nodes[p].operations for p in region), "offloaded")
        for region in regions
    ]
    for index, candidate in enumerate(found):
        percent = 100.0 * candidate.operations / total if total else 100.0
        if percent < limits.min_gops_percent:
            found[index] = replace(
                candidate,
                fate="below_gops_threshold",
                refusal=Refusal(
                    f"its region has {percent:.3f}% of the model's GOPs; "
                    f"{target.name} takes regions from {limits.min_gops_percent:g}%",
                    "crossing over costs more than so little work; make the operators that cut the "
                    "graph here supported, and the regions join",
                ),
            )
    kept = sorted(
        (i for i, c in enumerate(found) if c.fate == "offloaded"),
        key=lambda i: (-found[i].operations, i),
    )
    for index in kept[limits.max_parts :] if limits.max_parts is not None else []:
        found[index] = replace(
            found[index],
            fate="above_max_parts",
            refusal=Refusal(
                f"{target.name} takes at most {limits.max_parts} regions, and {len(kept)} qualify; "
                "the smallest stay on the CPU",
                "make the operators that cut the graph supported, and regions join",
            ),
        )
    numbers = iter(range(len(found)))
    return tuple(
        replace(c, name=PART_NAME.format(next(numbers))) if c.fate == "offloaded" else c
        for c in found
    )


def settle(plan: Plan, failed: Mapping[str, Refusal]) -> Placement:
    """Return failed parts to the CPU and order everything; `failed` is by the part's name."""
    candidates = tuple(
        replace(c, fate="compile_error", refusal=failed[c.name]) if c.name in failed else c
        for c in plan.candidates
    )
    offloaded = [c for c in candidates if c.fate == "offloaded"]
    steps = schedule(plan.extractor.reads, [c.positions for c in offloaded])
    places: dict[int, NodePlace] = {}
    parts: list[Part] = []
    for step in steps:
        if step.part is None:
            name = CPU_PART_NAME.format(sum(p.backend == plan.cpu_backend for p in parts))
            parts.append(plan._part(name, "cpu", plan.cpu_backend, step.nodes))
        else:
            name = offloaded[step.part].name
            parts.append(plan._part(name, plan.target.kind, plan.backend, step.nodes))
        for position in step.nodes:
            places[position] = _node_place(plan, candidates, position, parts[-1])
    nodes = tuple(places[p] for p in range(len(plan.cost.nodes)))
    return Placement(plan.target, tuple(parts), nodes, candidates, plan.cost)


def not_seen(placement: Placement, elsewhere: Mapping[str, Mapping[int, str]]) -> Placement:
    """Return the placement with nodes on the CPU that were not seen to run on their part's device.

    `elsewhere` has them by part and by position in it, with the reason.
    """
    nodes = list(placement.nodes)
    for name, reasons in elsewhere.items():
        mine = [at for at, node in enumerate(nodes) if node.part == name]
        for position, reason in reasons.items():
            at = mine[position]
            nodes[at] = replace(nodes[at], device="cpu", reason=reason, hint=_NOT_SEEN_HINT)
    return replace(placement, nodes=tuple(nodes))


_NOT_SEEN_HINT = "the provider ran it itself, and its numbers were checked; it counts as the CPU's"


def _node_place(
    plan: Plan, candidates: tuple[DevicePart, ...], position: int, part: Part
) -> NodePlace:
    cost = plan.cost.nodes[position]
    refusal = plan.refusals[position]
    supported = refusal is None
    if supported:
        mine = next(c for c in candidates if position in c.positions)
        refusal = mine.refusal
    return NodePlace(
        name=cost.name,
        op_type=cost.op_type,
        operations=cost.operations,
        supported=supported,
        device=part.device,
        part=part.name,
        backend=part.backend,
        reason=refusal.reason if refusal else "",
        hint=refusal.hint if refusal else "",
    )
