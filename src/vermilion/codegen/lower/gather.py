"""Gather and GatherND: slices of a tensor, copied from where whole numbers say."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from vermilion.codegen.emit.gather import GatherSpec
from vermilion.codegen.emit.map import collapse
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.checks import check_indices, check_tuples
from vermilion.codegen.lower.context import Lowering, operations_of
from vermilion.codegen.lower.shapes import lower_gather
from vermilion.codegen.tensor import View
from vermilion.ir.attributes import integer
from vermilion.ir.opset import constant_of

Dims = list[tuple[int, tuple[int, ...]]]


def lower_any_gather(lowering: Lowering, node: ir.Node) -> None:
    """Gather: a view for one constant place, else copies of the slices that are asked for."""
    constant = constant_of(node.inputs[1])
    if constant is not None and constant.size == 1:
        lower_gather(lowering, node)
        return
    source, places, target = _views(lowering, node)
    axis = integer(node, "axis", 0) % len(source.shape)
    check_indices(lowering, node, places, source.shape[axis])
    dims: Dims = [
        (source.shape[at], (source.strides[at], 0, target.strides[at])) for at in range(axis)
    ]
    dims += [
        (places.shape[at], (0, places.strides[at], target.strides[axis + at]))
        for at in range(len(places.shape))
    ]
    _pick(lowering, node, (source, places, target), dims, range(axis, axis + 1))


def lower_tuples(lowering: Lowering, node: ir.Node) -> None:
    """GatherND: an index has a number for each dimension that is picked from."""
    source, places, target = _views(lowering, node)
    batch = integer(node, "batch_dims", 0)
    axes = range(batch, batch + places.shape[-1])
    check_tuples(lowering, node, places, [source.shape[at] for at in axes])
    dims: Dims = [
        (
            size,
            (source.strides[at] if at < batch else 0, places.strides[at], target.strides[at]),
        )
        for at, size in enumerate(places.shape[:-1])
    ]
    _pick(lowering, node, (source, places, target), dims, axes, places.strides[-1])


def _views(lowering: Lowering, node: ir.Node) -> tuple[View, View, View]:
    data, index = node.inputs[0], node.inputs[1]
    assert data is not None
    assert index is not None
    source, places = lowering.demand(data), lowering.demand(index)
    return source, places, lowering.output(node.outputs[0])


def _pick(
    lowering: Lowering,
    node: ir.Node,
    views: tuple[View, View, View],
    dims: Dims,
    axes: Sequence[int],
    step: int = 0,
) -> None:
    """Add the step; what lies behind the dimensions that are picked from is copied whole."""
    source, places, target = views
    behind = axes[-1] + 1
    kept = len(target.shape) - len(source.shape) + behind
    inner = collapse(source.shape[behind:], [target.strides[kept:], source.strides[behind:]], 0)
    dims += [(size, (come, 0, go)) for size, (go, come) in inner[:-1]]
    size, (go, come) = inner[-1]
    assert places.storage in ("i32", "i64")
    spec = GatherSpec(
        source.storage, places.storage, tuple(d for d in dims if d[0] != 1),
        tuple((source.shape[at], source.strides[at]) for at in axes), step, (size, come, go),
    )  # fmt: skip
    lowering.add(
        Step(
            spec, (source, places, target), (target,), (str(node.name),), operations_of([node])
        )
    )  # fmt: skip
