"""Branches and bodies (If, Loop, Scan): what flows inside of them is seen, to be rounded too.

No session gives inner tensors away, so samples run through a copy that does.

Before → after, for a tensor X in a branch or body:
    If           gives one more: X from its branch, a tensor of no numbers from the other one
    Loop, Scan   give one more: X of all rounds, one after the other
and so on through all that they are in.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from vermilion.errors import UnsupportedError, VermilionError
from vermilion.ir.execute import Array, run_session
from vermilion.quantize.calibrate import TensorFacts, open_fetching, tensor_facts, types_of
from vermilion.quantize.formats import Scheme
from vermilion.quantize.inner import has_inner_weights
from vermilion.quantize.names import Names
from vermilion.quantize.observe import Histogram, Range
from vermilion.quantize.options import Options
from vermilion.quantize.plan import Plan, excluded_nodes, plan_graph

_log = logging.getLogger(__name__)

_ENTERED = frozenset({"If", "Loop", "Scan"})
_FLOAT = ir.TensorType(ir.DataType.FLOAT)

Numbers = int
"""A body is known by its place among all of them, which is the same in a clone."""


@dataclass(frozen=True)
class Body:
    """A branch or body, the node that it belongs to, and the one that that node is in."""

    graph: ir.Graph
    node: ir.Node
    above: Body | None

    @property
    def outermost(self) -> str:
        """Name of the node of the main graph that it is part of."""
        return self.above.outermost if self.above is not None else str(self.node.name)


def bodies_of(graph: ir.Graph, above: Body | None = None) -> list[Body]:
    """Return all branches and bodies, those inside of others behind them."""
    found = []
    for node in graph:
        if node.op_type not in _ENTERED or node.domain not in ("", "ai.onnx"):
            continue
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
                body = Body(attribute.as_graph(), node, above)
                found += [body, *bodies_of(body.graph, body)]
    return found


def inner_plans(work: ir.Model, excluded: Iterable[ir.Node], scheme: Scheme) -> dict[Numbers, Plan]:
    """Return the plan of each body that holds something to round."""
    found = {}
    left_out = frozenset(excluded)
    for number, body in enumerate(bodies_of(work.graph)):
        plan = plan_graph(body.graph, types_within(body.graph), left_out, scheme)
        if plan.nodes:
            found[number] = plan
    return found


def seen_inside(plan: Plan) -> list[str]:
    """Return all tensors that have to be seen, whichever of the plan's nodes are left out later."""
    found: dict[str, None] = {}
    for node in plan.nodes:
        for value in (*node.inputs, *node.outputs):
            if value is not None and value.const_value is None and value.type == _FLOAT:
                found[str(value.name)] = None
    return list(found)


def types_within(graph: ir.Graph) -> dict[str, ir.DataType]:
    """Return the types of all that is read or made in one graph."""
    values = [*graph.inputs]
    for node in graph:
        values += [value for value in (*node.inputs, *node.outputs) if value is not None]
    return {str(value.name): value.dtype for value in values if value.dtype is not None}


def with_inner_outputs(
    work: ir.Model, wanted: Mapping[Numbers, Sequence[str]]
) -> tuple[ir.Model, dict[Numbers, dict[str, str]]]:
    """Return a copy (weights shared) that gives inner tensors, and the names it gives them by.

    The names are those of tensors of the main graph; `wanted` are tensors by body.
    """
    copy = work.clone()
    names = Names(copy.graph)
    bodies = bodies_of(copy.graph)
    found: dict[Numbers, dict[str, str]] = {}
    for number, tensors in wanted.items():
        there = dict(_readable(bodies[number].graph))
        found[number] = {
            tensor: _given_out(bodies[number], there[tensor], names) for tensor in tensors
        }
    return copy, found


def _readable(graph: ir.Graph) -> Iterator[tuple[str, ir.Value]]:
    for node in graph:
        yield from ((str(value.name), value) for value in node.inputs if value is not None)
        yield from ((str(value.name), value) for value in node.outputs)


def _given_out(body: Body, value: ir.Value, names: Names) -> str:
    """Lead a tensor out of its body, and of all that it is in; return its name outside."""
    wanted = f"{value.name}_seen"
    level: Body | None = body
    while level is not None:
        value = _one_level(level, value, names, wanted)
        level = level.above
    return str(value.name)


def _one_level(body: Body, value: ir.Value, names: Names, wanted: str) -> ir.Value:
    node = body.node
    _append(body.graph, ir.node("Identity", [value]), names, wanted)
    if node.op_type == "If":
        for attribute in node.attributes.values():
            other = attribute.as_graph()
            if other is not body.graph:
                _append(other, _nothing(value, body.above is not None), names, wanted)
    elif node.op_type == "Scan":
        for name in ("scan_output_axes", "scan_output_directions"):
            given = node.attributes.get(name)
            if given is not None:
                node.attributes[name] = ir.AttrInt64s(name, [*given.as_ints(), 0])
    # A Loop does not give its condition away.
    node.resize_outputs(len(body.graph.outputs) - (node.op_type == "Loop"))
    for output in node.outputs:
        if output.name is None:
            output.name, output.type = names.free(wanted), _FLOAT
    return node.outputs[-1]


def _append(graph: ir.Graph, node: ir.Node, names: Names, wanted: str) -> None:
    result = node.outputs[0]
    result.name, result.type = names.free(wanted), _FLOAT
    node.name = names.free(f"{wanted}_{node.op_type}")
    graph.append(node)
    graph.outputs.append(result)


def _nothing(value: ir.Value, alike: bool) -> ir.Node:
    """Return a node that gives a tensor without numbers; or zeros, if all rounds have to be alike.

    Zeros do no harm: every range holds them, and they round to themselves.
    """
    rank = 1 if value.shape is None else max(1, len(value.shape))
    lengths: tuple[int, ...] = (0,) * rank
    if alike and value.shape is not None and value.shape.is_static():
        lengths = value.shape.numpy()
    tensor = ir.tensor(np.zeros(lengths, np.float32))
    return ir.node("Constant", [], {"value": tensor})


def plans_of(
    work: ir.Model,
    facts: Mapping[str, TensorFacts],
    options: Options,
    scheme: Scheme,
    masked: Sequence[str] = (),
) -> tuple[Plan, dict[int, Plan]]:
    """Return where the main graph is rounded, and where branches and bodies are."""
    excluded = excluded_nodes(work.graph, options.without_integers)
    plan = plan_graph(work.graph, types_of(facts), excluded, scheme, masked)
    inner = inner_plans(work, excluded, scheme)
    if not (plan.nodes or inner or options.bfloat or has_inner_weights(work.graph)):
        raise UnsupportedError(
            "no operator of this model can be quantized",
            where=f"{sum(1 for _ in work.graph)} nodes",
            hint="Conv, MatMul and Add of float numbers are, among others",
        )
    return plan, inner


@dataclass(frozen=True)
class Given:
    """A model that gives all that is looked at: where needed a copy that gives inner tensors."""

    model: ir.Model
    facts: Mapping[str, TensorFacts]
    inside: Mapping[int, Mapping[str, str]]  # by body: tensor → its name outside

    @staticmethod
    def of(
        work: ir.Model,
        facts: Mapping[str, TensorFacts],
        inner: Mapping[int, Plan],
        sample: Mapping[str, Array],
    ) -> Given:
        """Return `work` itself, or a copy that gives what the plans of its bodies need to see."""
        wanted = {number: seen_inside(plan) for number, plan in inner.items()}
        if not wanted:
            return Given(work, facts, {})
        model, inside = with_inner_outputs(work, wanted)
        names = [outside for names in inside.values() for outside in names.values()]
        try:
            more = tensor_facts(model, sample)
            run_session(open_fetching(model, names), sample)
        except VermilionError as error:
            # A loop whose tensors grow from round to round gives none of them.
            _log.info("branches and bodies stay in float: %s", error)
            return Given(work, facts, {})
        return Given(model, more, inside)


class Inside:
    """Shows statistics what one sample had in a body; what is not finite there stays in float."""

    def __init__(self, inner: Histogram | Range) -> None:
        self.inner = inner
        self.is_sound = True

    def add(self, values: Array) -> bool:
        """Count `values`."""
        if values.size and self.is_sound:
            self.is_sound = self.inner.add(np.asarray(values, np.float32))
        return True

    @property
    def is_known(self) -> bool:
        """Say whether there was anything to see: a branch may never have been taken."""
        return self.is_sound and max(self.inner.highest, -self.inner.lowest) > 0.0


def without_unseen(plan: Plan, known: Mapping[str, Inside]) -> frozenset[ir.Node]:
    """Return the nodes of a plan that touch what was not seen."""
    return frozenset(
        node
        for node in plan.nodes
        if any(
            str(value.name) in known and not known[str(value.name)].is_known
            for value in (*node.inputs, *node.outputs)
            if value is not None
        )
    )
