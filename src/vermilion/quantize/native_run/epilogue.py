"""What follows a product at once and is computed while its sums are in registers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from vermilion.quantize.native_run.product import Product
from vermilion.quantize.native_run.tensors import Shape


@dataclass(frozen=True)
class Ending:
    """Bounds and a residual behind a product; `nodes` are those that are then done too."""

    result: str
    residual: str | None = None
    lowest: float = -math.inf
    highest: float = math.inf
    nodes: tuple[ir.Node, ...] = ()


def ending_of(
    product: Product,
    shapes: Mapping[str, Shape],
    wanted: frozenset[str],
    made: frozenset[str],
) -> Ending:
    """Return what can follow: an addition of what is `made` before, then a Relu or a Clip.

    The product's own sums can be stored as well as the result, nothing between.
    """
    value = product.node.outputs[0]
    ending = Ending(str(value.name))
    node = _only_user(value)
    if node is not None and node.op_type == "Add":
        other = node.inputs[1] if node.inputs[0] is value else node.inputs[0]
        name = "" if other is None else str(other.name)
        if name in made and shapes[name] == shapes[ending.result] and name != ending.result:
            value = node.outputs[0]
            ending = Ending(str(value.name), name, nodes=(node,))
            if ending.result in wanted:
                return ending
            node = _only_user(value)
    bounds = None if node is None else bounds_of(node)
    if node is None or bounds is None:
        return ending
    result = str(node.outputs[0].name)
    return Ending(result, ending.residual, *bounds, nodes=(*ending.nodes, node))


def bounds_of(node: ir.Node) -> tuple[float, float] | None:
    """Return the bounds that a Relu or a Clip sets, None for another operator."""
    if node.op_type == "Relu":
        return 0.0, math.inf
    if node.op_type != "Clip":
        return None
    bounds = [-math.inf, math.inf]
    for place, name in enumerate(("min", "max")):  # attributes up to opset 10
        attribute = node.attributes.get(name)
        value = node.inputs[place + 1] if len(node.inputs) > place + 1 else None
        if attribute is not None:
            bounds[place] = attribute.as_float()
        elif value is not None:
            if value.const_value is None:
                return None
            bounds[place] = float(value.const_value.numpy().reshape(()))
    return bounds[0], bounds[1]


def _only_user(value: ir.Value) -> ir.Node | None:
    """Return the one node that reads `value`, and reads it once."""
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    node = next(iter(uses)).node
    return node if node.domain in ("", "ai.onnx") else None
