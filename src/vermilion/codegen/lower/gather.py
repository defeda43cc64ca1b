"""Gather, GatherND, ScatterND, ScatterElements: copies from or to where whole numbers say."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from vermilion.codegen.emit.gather import GatherSpec, ScatterSpec
from vermilion.codegen.emit.map import collapse
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.checks import check_indices, check_tuples
from vermilion.codegen.lower.context import Lowering, operations_of
from vermilion.codegen.lower.elementwise import layout_like
from vermilion.codegen.lower.shapes import lower_gather
from vermilion.codegen.tensor import View
from vermilion.ir.attributes import integer, text
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


def check_scatter(node: ir.Node) -> str:
    """Say why a ScatterND or ScatterElements is not generated, empty if it is."""
    reduction, dtype = text(node, "reduction", "none"), node.outputs[0].dtype
    if reduction == "none" or (reduction == "add" and dtype == ir.DataType.FLOAT):
        return ""
    kind = "" if dtype is None else f" of {dtype.name.lower()}"
    return f"{node.op_type} with the reduction `{reduction}`{kind}"


def lower_scatter(lowering: Lowering, node: ir.Node) -> None:
    """ScatterND: a copy of the data, into which the slices are written or added in their order."""
    data, index, slices = node.inputs
    assert data is not None
    assert index is not None
    assert slices is not None
    source, places, come = (lowering.demand(value) for value in (data, index, slices))
    target = lowering.output(node.outputs[0], layout_like([source], len(source.shape)))
    count, rank = places.shape[-1], len(places.shape) - 1
    check_tuples(lowering, node, places, source.shape[:count])
    dims: Dims = [
        (size, (come.strides[at], places.strides[at], 0))
        for at, size in enumerate(places.shape[:-1])
    ]
    inner = collapse(target.shape[count:], [target.strides[count:], come.strides[rank:]], 0)
    dims += [(size, (from_, 0, to)) for size, (to, from_) in inner[:-1]]
    size, (to, from_) = inner[-1]
    lowering.copy_into(source, target, node)
    _scatter(
        lowering, node, (come, places, target), dims, range(count), places.strides[-1],
        (size, from_, to),
    )  # fmt: skip


def lower_scatter_elements(lowering: Lowering, node: ir.Node) -> None:
    """ScatterElements: a copy of the data, into which elements are written or added in order."""
    data, index, elements = node.inputs
    assert data is not None
    assert index is not None
    assert elements is not None
    source, places, come = (lowering.demand(value) for value in (data, index, elements))
    rank = len(source.shape)
    axis = integer(node, "axis", 0) % rank
    target = lowering.output(node.outputs[0], layout_like([source], rank))
    check_indices(lowering, node, places, source.shape[axis])
    dims: Dims = [
        (size, (come.strides[at], places.strides[at], 0 if at == axis else target.strides[at]))
        for at, size in enumerate(places.shape)
    ]
    lowering.copy_into(source, target, node)
    _scatter(lowering, node, (come, places, target), dims, (axis,), 1, (1, 1, 1))


def _scatter(
    lowering: Lowering, node: ir.Node, views: tuple[View, View, View], dims: Dims,
    axes: Sequence[int], step: int, inner: tuple[int, int, int],
) -> None:  # fmt: skip
    """Add the step; `views` are what comes, where it goes along `axes`, and what it goes into."""
    come, places, target = views
    assert places.storage in ("i32", "i64")
    spec = ScatterSpec(
        come.storage, target.storage, places.storage, tuple(d for d in dims if d[0] != 1),
        tuple((target.shape[axis], target.strides[axis]) for axis in axes), step, inner,
        text(node, "reduction", "none") == "add",
    )  # fmt: skip
    name, work = str(node.name), operations_of([node])
    lowering.add(Step(spec, views, (target,), (name,), work))
