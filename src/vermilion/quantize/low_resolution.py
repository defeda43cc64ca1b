"""Tensors that keep few of their steps, as they share a scale with larger ones.

Where a detector joins boxes of hundreds of pixels with scores below one, the scale that holds the
boxes leaves a score two or three values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from vermilion.quantize.constants import Constants
from vermilion.quantize.observe import Histogram, Range
from vermilion.quantize.plan import Plan

# Four bits.
_FEW_STEPS = 16


@dataclass(frozen=True)
class LowResolution:
    """A tensor whose values differ by no more than `steps` steps of the scale that it shares.

    `node` joins it with others; left in float, each keeps a scale of its own.
    """

    tensor: str
    node: str
    steps: int


def low_resolution_tensors(
    plan: Plan, constants: Constants, statistics: Mapping[str, Histogram | Range]
) -> tuple[LowResolution, ...]:
    """Find them in a plan, before it is written."""
    found = []
    joined = _joined(plan)
    for value in plan.activations:
        name = str(value.name)
        if name not in joined or name not in statistics:
            continue
        seen = statistics[name]
        steps = round((seen.highest - seen.lowest) / float(constants.parameters[name].scale))
        if seen.highest > seen.lowest and steps < _FEW_STEPS:
            found.append(LowResolution(name, joined[name], steps))
    return tuple(found)


def _joined(plan: Plan) -> dict[str, str]:
    """Return the node that joins a tensor with others, for each that comes to one."""
    found: dict[str, str] = {}
    for node in plan.nodes:
        if node.op_type == "Concat":
            for value in node.inputs:
                found |= dict.fromkeys(_moved_from(value, plan), str(node.name))
    return found


def _moved_from(value: ir.Value | None, plan: Plan) -> Iterator[str]:
    """Yield the tensor, and those whose values it holds."""
    while value is not None:
        yield str(value.name)
        node = value.producer()
        if node is None or node not in plan.nodes or plan.operators[node.op_type].role != "move":
            return
        value = node.inputs[0]
