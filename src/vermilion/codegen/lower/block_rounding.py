"""`RoundToBlocks`: a tensor in blocks of 8 values that share an exponent, along one axis.

Not an ONNX operator: models of number formats put it before products. What it gives is stored as
the program stores floats: bfloat16 holds it exactly too.
"""

from __future__ import annotations

import onnx_ir as ir

from vermilion.codegen.emit.block_rounding import BLOCK, BlockRoundingSpec
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering
from vermilion.codegen.lower.elementwise import layout_like
from vermilion.codegen.tensor import Storage, View, allocate
from vermilion.ir.attributes import integer

DOMAIN = "vermilion.numbers"
OPERATOR = "RoundToBlocks"

Dimensions = tuple[tuple[int, tuple[int, int]], ...]


def lower_block_rounding(lowering: Lowering, node: ir.Node) -> None:
    """Round along the axis that the node names."""
    data = node.inputs[0]
    assert data is not None
    source = lowering.demand(data)
    rank = len(source.shape)
    axis = integer(node, "axis", -1) % rank
    storage: Storage = lowering.float_storage
    order = layout_like([source], rank)
    if not _is_dense(source, axis):
        # Neither blocks nor what lies across them are side by side: blocks are made to be.
        order = (*(at for at in range(rank) if at != axis), axis)
        source = lowering.copied(source, order)
    if source.strides[axis] == 1 and order is not None and order[-1] == axis:
        target = lowering.output(node.outputs[0], order, storage)
    else:
        # Without the border that convolutions want, which comes with channels last only.
        target = allocate(str(node.outputs[0].name), storage, source.shape, order)
        lowering.views[str(node.outputs[0].name)] = target
    lowering.add(rounding_step(source, target, axis, str(node.name)))


def rounding_step(source: View, target: View, axis: int, name: str) -> Step:
    """Return the step that rounds `source` into `target`, which have one shape."""
    if source.strides[axis] == target.strides[axis] == 1:
        size, outer = _joined(source, target, axis)
    else:
        size, outer = source.shape[axis], _others(source, target, axis)
    spec = BlockRoundingSpec(
        source.storage, target.storage, outer, size, source.strides[axis], target.strides[axis]
    )
    return Step(spec, (source, target), (target,), (name,))


def _is_dense(view: View, axis: int) -> bool:
    """Say whether vectors can run along the blocks or across them."""
    return any(
        stride == 1 and (size > 1 or at == axis)
        for at, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True))
    )


def _others(source: View, target: View, axis: int) -> Dimensions:
    """Return the dimensions but `axis`, merged where both walk them as one; the densest comes last.

    `emit.map.collapse` may put a longer one last, and vectors are to run along the densest.
    """
    kept = [
        (size, (come, go))
        for at, (size, come, go) in enumerate(
            zip(source.shape, source.strides, target.strides, strict=True)
        )
        if at != axis and size > 1
    ]
    kept.sort(key=lambda dimension: -dimension[1][1])
    merged = kept[:1] or [(1, (1, 1))]
    for size, strides in kept[1:]:
        outer_size, outer = merged[-1]
        if all(o == i * size for o, i in zip(outer, strides, strict=True)):
            merged[-1] = (outer_size * size, strides)
        else:
            merged.append((size, strides))
    return tuple(merged)


def _joined(source: View, target: View, axis: int) -> tuple[int, Dimensions]:
    """Return a row of blocks as long as they follow each other, and the other dimensions."""
    size, dims = source.shape[axis], list(_others(source, target, axis))
    while size % BLOCK == 0 and dims and dims[-1][1] == (size, size):
        size *= dims.pop()[0]
    if len(dims) == 1 and dims[0][0] == 1:
        dims = []
    return size, tuple(dims)
