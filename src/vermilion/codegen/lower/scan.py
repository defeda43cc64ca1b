"""Operators along one dimension: ArgMax, ArgMin, TopK, CumSum, CumProd, GatherElements."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from vermilion.codegen.emit.argmax import ExtremePlaceSpec
from vermilion.codegen.emit.gather import PickSpec
from vermilion.codegen.emit.map import collapse
from vermilion.codegen.emit.scan import ScanSpec
from vermilion.codegen.emit.top import TopSpec
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.checks import check_indices
from vermilion.codegen.lower.context import Lowering, operations_of
from vermilion.codegen.lower.elementwise import layout_like
from vermilion.codegen.lower.shapes import constant_ints
from vermilion.codegen.lower.window_shapes import whole_numbers
from vermilion.codegen.tensor import View
from vermilion.ir.attributes import integer
from vermilion.ir.opset import constant_of
from vermilion.ir.symbolic import is_known

Kept = tuple[tuple[int, tuple[int, ...]], ...]


def _kept(source: View, target: View, axis: int) -> Kept:
    """Return the dimensions other than `axis`, merged; the target's densest comes last."""
    others = [at for at in range(len(source.shape)) if at != axis]
    dims = collapse(
        [source.shape[at] for at in others],
        [tuple(view.strides[at] for at in others) for view in (target, source)],
        0,
    )
    return tuple((size, (come, go)) for size, (go, come) in dims)


def lower_extreme_place(lowering: Lowering, node: ir.Node) -> None:
    """ArgMax and ArgMin."""
    data = node.inputs[0]
    assert data is not None
    source = lowering.demand(data)
    rank = len(source.shape)
    axis = integer(node, "axis", 0) % rank
    target = lowering.output(node.outputs[0])
    shape = tuple(1 if at == axis else size for at, size in enumerate(source.shape))
    wide = target.reshaped(shape)
    assert wide is not None, "a dimension of one element more or less needs no copy"
    spec = ExtremePlaceSpec(
        "max" if node.op_type == "ArgMax" else "min",
        source.storage, _kept(source, wide, axis), source.shape[axis], source.strides[axis],
        bool(integer(node, "select_last_index", 0)), lowering.isa.lanes,
    )  # fmt: skip
    lowering.add(Step(spec, (source, wide), (wide,), (str(node.name),), operations_of([node])))


_ORDERED = (
    ir.DataType.FLOAT, ir.DataType.BFLOAT16, ir.DataType.FLOAT16, ir.DataType.INT32,
    ir.DataType.INT64,
)  # fmt: skip


def check_top(node: ir.Node) -> str:
    """Say why a TopK is not generated, empty if it is."""
    count = whole_numbers(node.inputs[1])
    if count is None or len(count) != 1 or not is_known(count[0]):
        return "TopK of a number of elements that is not known"
    if not integer(node, "sorted", 1):
        return "TopK in an order that is left open"
    if [bool(value.name) for value in node.outputs] != [True, True]:
        return "TopK without one of its results"
    dtype = node.outputs[0].dtype
    return "" if dtype in _ORDERED else f"TopK of {dtype}"


def lower_top(lowering: Lowering, node: ir.Node) -> None:
    """TopK."""
    data = node.inputs[0]
    assert data is not None
    source = lowering.demand(data)
    values, places = (lowering.output(value) for value in node.outputs)
    rank = len(source.shape)
    axis = integer(node, "axis", -1) % rank
    others = [at for at in range(rank) if at != axis]
    views = (source, values, places)
    dims = collapse(
        [source.shape[at] for at in others],
        [tuple(view.strides[at] for at in others) for view in views],
        0,
    )
    spec = TopSpec(
        "max" if integer(node, "largest", 1) else "min", source.storage, values.storage,
        tuple((size, strides) for size, strides in dims), source.shape[axis], values.shape[axis],
        *(view.strides[axis] for view in views),
    )  # fmt: skip
    lowering.add(Step(spec, views, (values, places), (str(node.name),), operations_of([node])))


def check_scan(node: ir.Node) -> str:
    """Say why a CumSum or CumProd is not generated, empty if it is."""
    is_known = constant_of(node.inputs[1]) is not None
    return "" if is_known else f"{node.op_type} along an axis that is not constant"


def lower_scan(lowering: Lowering, node: ir.Node) -> None:
    """CumSum and CumProd."""
    data = node.inputs[0]
    assert data is not None
    source = lowering.demand(data)
    rank = len(source.shape)
    target = lowering.output(node.outputs[0], layout_like([source], rank))
    (axis,) = constant_ints(node, 1) or [0]
    axis %= rank
    if integer(node, "reverse", 0):
        size = source.shape[axis]
        source, target = (view.sliced(axis, size - 1, size, -1) for view in (source, target))
    spec = ScanSpec(
        "add" if node.op_type == "CumSum" else "mul",
        source.storage, target.storage, _kept(source, target, axis), source.shape[axis],
        source.strides[axis], target.strides[axis], bool(integer(node, "exclusive", 0)),
    )  # fmt: skip
    lowering.add(Step(spec, (source, target), (target,), (str(node.name),), operations_of([node])))


def lower_pick(lowering: Lowering, node: ir.Node) -> None:
    """GatherElements."""
    data, index = node.inputs[0], node.inputs[1]
    assert data is not None
    assert index is not None
    source, places = lowering.demand(data), lowering.demand(index)
    axis = integer(node, "axis", 0) % len(source.shape)
    check_indices(lowering, node, places, source.shape[axis])
    target = lowering.output(node.outputs[0])
    # The data is walked along with the indices everywhere but along the axis.
    walked = replace(
        source,
        shape=places.shape,
        strides=tuple(0 if at == axis else s for at, s in enumerate(source.strides)),
    )
    dims = collapse(places.shape, [view.strides for view in (target, walked, places)], 0)
    assert places.storage in ("i32", "i64")
    spec = PickSpec(
        source.storage, places.storage,
        tuple((size, (come, at, go)) for size, (go, come, at) in dims),
        source.shape[axis], source.strides[axis],
    )  # fmt: skip
    lowering.add(
        Step(
            spec, (source, places, target), (target,), (str(node.name),), operations_of([node])
        )
    )  # fmt: skip
