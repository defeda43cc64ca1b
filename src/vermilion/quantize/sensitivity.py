"""Which rounded tensors do how much damage at the outputs.

One session runs the model with a switch at every rounded tensor. All switches open is the float
model; with one closed, what changes at the outputs is what that tensor alone does. Errors of
different tensors are nearly independent, so their powers add: the sum predicts the whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from vermilion.ir.cost import node_cost
from vermilion.ir.execute import Array, open_session, run_session
from vermilion.progress import Progress
from vermilion.quantize.constants import Constants
from vermilion.quantize.cost import PRODUCTS
from vermilion.quantize.plan import Plan
from vermilion.quantize.rewrite import write_plan

_SQUASHES = frozenset({"Softmax", "Sigmoid", "LogSoftmax", "Tanh", "HardSigmoid"})

NOTICED = 1e-3
"""Of all noise: a tensor that does less is not looked at more closely."""

_SCREENED = 2  # samples

Feeds = Sequence[Mapping[str, Array]]


@dataclass(frozen=True)
class Damage:
    """What one switch does: a scale that activations share, or the weights of one node.

    `noise` is a part of the power of the outputs, before a last Softmax or Sigmoid; `operations`
    are those of the products that would no longer be on 8 bits if the switch were open.
    """

    kind: str  # `activation` or `weight`
    names: tuple[str, ...]  # tensors, or the node
    noise: float
    operations: int


def measure_damage(
    work: ir.Model,
    plan: Plan,
    constants: Constants,
    samples: Feeds,
    progress: Progress,
    *,
    only: Collection[tuple[str, ...]] | None = None,
) -> list[Damage]:
    """Return the damage of every rounded tensor, or of `only` these, the largest first.

    Of all, the first two samples tell which do any; the others are for those alone.
    `work` and `plan` are rewritten and no longer of use afterwards.
    """
    outputs = _watched(work.graph)
    rows = _rows(plan)
    groups = [row.names for row in rows]
    floats = {
        str(value.name): value.const_value
        for value in (*plan.weights, *plan.biases)
        if value.const_value is not None
    }
    write_plan(work, plan, constants.parameters, constants.integers)
    switches = _add_switches(work, groups, floats)
    session = open_session(work, quiet=True)
    off = {name: np.asarray(False) for name in switches}
    noise = {row.shown: 0.0 for row in rows if only is None or row.shown in only}
    runs = dict.fromkeys(noise, 0)
    looked_at = set(noise)
    for number, sample in enumerate(samples):
        reference = run_session(session, {**sample, **off}, outputs)
        for row, switch in zip(rows, switches, strict=True):
            if row.shown in looked_at:
                found = run_session(session, {**sample, **off, switch: np.asarray(True)}, outputs)
                noise[row.shown] += sum(_relative(reference[n], found[n]) for n in outputs)
                runs[row.shown] += 1
        if only is None and number + 1 == _SCREENED:
            noticed = NOTICED * sum(noise.values())
            looked_at = {names for names, loss in noise.items() if loss > noticed}
        progress("sensitivity", number + 1, len(samples))
    measured = [
        Damage(row.kind, row.shown, noise[row.shown] / max(1, runs[row.shown]), row.operations)
        for row in rows
        if row.shown in noise
    ]
    return sorted(measured, key=lambda damage: -damage.noise)


@dataclass(frozen=True)
class _Row:
    kind: str
    names: tuple[str, ...]  # of tensors that the switch governs
    shown: tuple[str, ...]
    operations: int


def _watched(graph: ir.Graph) -> list[str]:
    """Return the outputs; for one that squashes, what goes into it.

    Behind a Softmax or Sigmoid most errors vanish and a few flip a decision: on two samples that
    says little about all others.
    """
    names = []
    for output in list(graph.outputs):
        producer = output.producer()
        if producer is not None and producer.op_type in _SQUASHES:
            before = producer.inputs[0]
            if before is not None and before.producer() is not None:
                if not before.is_graph_output():
                    graph.outputs.append(before)
                output = before
        names.append(str(output.name))
    return names


def _rows(plan: Plan) -> list[_Row]:
    shared: dict[str, list[ir.Value]] = {}
    for value in plan.activations:
        shared.setdefault(plan.scales[str(value.name)], []).append(value)
    rows = []
    for values in shared.values():
        readers = {use.node for value in values for use in value.uses()}
        names = tuple(str(value.name) for value in values)
        operations = sum(node_cost(node).operations for node in readers if node.op_type in PRODUCTS)
        rows.append(_Row("activation", names, names, operations))
    constants = {*plan.weights, *plan.biases}
    taken: set[ir.Value] = set()
    for node in plan.nodes:
        own = [v for v in node.inputs if v is not None and v in constants and v not in taken]
        if own:
            taken |= set(own)
            names = tuple(str(value.name) for value in own)
            operations = node_cost(node).operations
            rows.append(_Row("weight", names, (str(node.name),), operations))
    return rows


def _add_switches(
    work: ir.Model,
    groups: Sequence[Sequence[str]],
    floats: Mapping[str, ir.TensorProtocol],
) -> list[str]:
    """Before → after: the rounded tensor is read through Where(switch, rounded, exact)."""
    graph = work.graph
    switches = []
    by_tensor: dict[str, ir.Value] = {}
    for number, names in enumerate(groups):
        switch = ir.val(f"vermilion_switch_{number}", ir.DataType.BOOL, ir.Shape([]))
        graph.inputs.append(switch)
        switches.append(str(switch.name))
        by_tensor |= dict.fromkeys(names, switch)
    for node in [n for n in graph if n.op_type == "DequantizeLinear"]:
        stored = node.inputs[0]
        assert stored is not None, "it reads integers"
        quantize = stored.producer()
        result = node.outputs[0]
        if quantize is not None:
            exact = quantize.inputs[0]
            assert exact is not None, "it reads a tensor"
            name = str(exact.name)
            name = name if name in by_tensor else str(result.name)
        else:
            name = str(stored.name).removesuffix("_quantized")
            exact = _constant(graph, f"{name}_exact", floats.get(name))
        switch_value = by_tensor.get(name)
        if switch_value is None or exact is None:
            continue
        _insert_switch(graph, node, switch_value, exact)
    return switches


def _constant(graph: ir.Graph, name: str, tensor: ir.TensorProtocol | None) -> ir.Value | None:
    if tensor is None:
        return None
    array = tensor.numpy()
    value = ir.Value(name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
    value.const_value = ir.tensor(array, name=name)
    graph.register_initializer(value)
    return value


def _insert_switch(graph: ir.Graph, node: ir.Node, switch: ir.Value, exact: ir.Value) -> None:
    result = node.outputs[0]
    readers = [(use.node, use.idx) for use in result.uses()]
    choose = ir.node("Where", [switch, result, exact], name=f"{node.name}_switch")
    chosen = choose.outputs[0]
    chosen.type, chosen.shape = result.type, result.shape
    if result.is_graph_output():
        index = next(i for i, output in enumerate(graph.outputs) if output is result)
        graph.outputs[index] = chosen
        chosen.name, result.name = result.name, f"{result.name}_rounded"
    else:
        chosen.name = f"{result.name}_chosen"
    graph.insert_after(node, choose)
    for reader, index in readers:
        reader.replace_input_with(index, chosen)


def _relative(reference: Array, found: Array) -> float:
    if reference.dtype.kind != "f":
        return 0.0
    exact = reference.astype(np.float64)
    power = float(np.sum(exact**2))
    return float(np.sum((found - exact) ** 2)) / power if power else 0.0


def widened_for(
    damage: Sequence[Damage], aim: float, wide_possible: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Choose what to raise so that the rest does no more than `aim`.

    Gives tensors for 16 bits and nodes for float. What removes most damage for each operation
    that leaves 8 bits goes first.
    """
    whole = sum(row.operations for row in damage) or 1

    def price(row: Damage) -> float:
        # Free ones (that no product reads) cost a thousandth, so that small ones wait their turn.
        return row.operations / whole + 1e-3

    possible = [row for row in damage if row.kind == "weight" or wide_possible]
    ranked = sorted(possible, key=lambda row: -row.noise / price(row))
    # One large layer that passes the aim by far may cost more than several small ones do.
    sets = (
        _until([row for row in ranked if row.operations <= most], damage, aim)
        for most in sorted({row.operations for row in ranked})
    )
    chosen = min(
        (rows for rows in sets if rows is not None),
        key=lambda rows: sum(map(price, rows)),
        default=ranked,
    )
    wide = (row.names for row in chosen if row.kind != "weight")
    nodes = (row.names for row in chosen if row.kind == "weight")
    return tuple(itertools.chain(*wide)), tuple(itertools.chain(*nodes))


def _until(ranked: Sequence[Damage], damage: Sequence[Damage], aim: float) -> list[Damage] | None:
    """Take from the front until no more than `aim` is left; None where all is not enough."""
    left = sum(row.noise for row in damage)
    taken = list[Damage]()
    for row in ranked:
        if left <= aim:
            return taken
        taken.append(row)
        left -= row.noise
    return taken if left <= aim else None
