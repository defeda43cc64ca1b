"""What has to be done for the tensors that are asked for, in order, and whether it is worth it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from vermilion.errors import Refusal
from vermilion.quantize.native_run.epilogue import Ending, ending_of
from vermilion.quantize.native_run.operators import Fill, operator_of
from vermilion.quantize.native_run.product import Product, product_of
from vermilion.quantize.native_run.tensors import Border, Shape, pixels_of


@dataclass(frozen=True)
class Task:
    """A product with its ending, or another operator."""

    node: ir.Node
    product: Product | None
    ending: Ending
    fill: Fill | None

    @property
    def result(self) -> str:
        """Name of what is there in the end."""
        return self.ending.result

    @property
    def reads(self) -> frozenset[str]:
        """Names of the tensors that are read, constants aside."""
        return frozenset(_variables(self.node)) | self._residual

    @property
    def reads_real(self) -> frozenset[str]:
        """Those that are read in float32."""
        return self.reads if self.product is None else self._residual

    @property
    def _residual(self) -> frozenset[str]:
        return frozenset() if self.ending.residual is None else frozenset({self.ending.residual})


def tasks_of(
    model: ir.Model, wanted: frozenset[str], shapes: Mapping[str, Shape]
) -> list[Task] | Refusal:
    """Return the tasks that make the `wanted` tensors, or the first operator that is in the way."""
    tasks: list[Task] = []
    made: set[str] = set()
    done: set[ir.Node] = set()
    for node in _needed(model, wanted):
        if node in done:
            continue
        found = _tasks(node, shapes, wanted, frozenset(made))
        if not found:
            return Refusal(f"there is no kernel for {node.op_type} as node `{node.name}` has it")
        tasks += found
        done.update(found[0].ending.nodes)
        made |= {str(node.outputs[0].name), *(task.result for task in found)}
    return tasks


def borders(tasks: Sequence[Task]) -> dict[str, Border]:
    """Return for each tensor the border that is enough for all products that read it."""
    found: dict[str, Border] = {}
    for task in tasks:
        if task.product is not None:
            here, name = task.product.border, task.product.source
            top, left, bottom, right = map(max, here, found.get(name, here))
            found[name] = top, left, bottom, right
    return found


def _tasks(
    node: ir.Node, shapes: Mapping[str, Shape], wanted: frozenset[str], made: frozenset[str]
) -> list[Task]:
    """Return the one task of a product, or one for each result; none where there is no kernel."""
    product = product_of(node, shapes)
    if product is not None:
        return [Task(node, product, ending_of(product, shapes, wanted, made), None)]
    results = [str(value.name) for value in node.outputs if value.name]
    given = [_shape(value, shapes) for value in node.inputs if value is not None]
    fills = operator_of(node, given, [shapes[name] for name in results])
    return [Task(node, None, Ending(name), f) for name, f in zip(results, fills, strict=False)]


def _needed(model: ir.Model, wanted: frozenset[str]) -> list[ir.Node]:
    """Return the nodes that the wanted tensors come from, in order."""
    names = set(wanted)
    found = []
    for node in reversed(list(model.graph)):
        if any(str(value.name) in names for value in node.outputs):
            found.append(node)
            names.update(_variables(node))
    return found[::-1]


def _shape(value: ir.Value, shapes: Mapping[str, Shape]) -> Shape:
    constant = value.const_value
    return shapes[str(value.name)] if constant is None else tuple(constant.shape.numpy())


def _variables(node: ir.Node) -> list[str]:
    return [str(v.name) for v in node.inputs if v is not None and v.const_value is None]


def multiplications(task: Task, shapes: Mapping[str, Shape]) -> int:
    """Return how many numbers a product multiplies, 0 for another operator."""
    if task.product is None:
        return 0
    product = task.product
    pixels = math.prod(pixels_of(shapes[product.result])[:3])
    return pixels * product.channels * product.taps * product.run
