"""MatMul and Gemm: rows of the left side times panels of the right, for one matrix or a batch.

A right side that is constant is packed at compile time; one that is not is read in place where its
columns lie side by side in float32, and packed by a step of its own otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from vermilion.codegen.emit.matmul import MatmulSpec, Panels
from vermilion.codegen.emit.walk import Matrices
from vermilion.codegen.expression import Constant, Expression, Operand, apply, substitute
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering, operations_of
from vermilion.codegen.lower.elementwise import GroupExpression
from vermilion.codegen.lower.gemm_operands import (
    RightSide,
    as_column,
    as_matrix,
    common_numeric,
    is_in_place,
    packed,
    right_side,
)
from vermilion.codegen.lower.groups import Group
from vermilion.codegen.lower.strassen import halved_axis, is_cheaper, strassen_steps
from vermilion.codegen.numeric import Numeric
from vermilion.codegen.tensor import View, allocate, contiguous_strides
from vermilion.codegen.tile import Tile, candidates, cost
from vermilion.ir.attributes import flag, number
from vermilion.ir.opset import constant_of, is_operator, static_shape

# Rows of the left side that pass by each panel before the next, and bytes of them from which on the
# depth is cut. Measured on Zen 5: 128 × 3072 in float32 run faster in one piece.
SEGMENT_ROWS = 128
_NEAR_BYTES = 2 * 1024 * 1024
# Panels of weights from this size on come from memory: a unit asks for the next while it computes.
_FAR_BYTES = 512 * 1024
_PREFETCH_PATCHES = 4
# Units of work below which rows are split, so that two or four workers have enough.
_MANY_UNITS = 16


def emit_matmul(lowering: Lowering, group: Group, node: ir.Node) -> None:
    """Write a MatMul and its group; a vector counts as a matrix of one row or column."""
    attention = lowering.attentions.get(node)
    if attention is not None:
        from vermilion.codegen.lower.attention import emit_attention

        emit_attention(lowering, group, attention)
        return
    a, b = node.inputs[0], node.inputs[1]
    assert a is not None
    assert b is not None
    left = lowering.demand(a)
    if len(left.shape) == 1:
        left = as_matrix(left, (1, left.shape[0]))
    right = right_side(lowering, b)
    if len(right.shape) == 1:
        right = as_column(right)
    _emit(lowering, group, left, right, Operand(0), [])


def emit_gemm(lowering: Lowering, group: Group, node: ir.Node) -> None:
    """Write a Gemm and its group: alpha and a constant right side are one constant."""
    a, b = node.inputs[0], node.inputs[1]
    c = node.inputs[2] if len(node.inputs) > 2 else None
    assert a is not None
    assert b is not None
    left = lowering.demand(a)
    if flag(node, "transA"):
        left = left.permuted((1, 0))
    right = right_side(lowering, b, transposed=flag(node, "transB"))
    start: Expression = Operand(0)
    alpha, beta = number(node, "alpha", 1.0), number(node, "beta", 1.0)
    if alpha != 1.0:
        if right.array is not None:
            scaled = (right.array * np.float32(alpha)).astype(right.array.dtype)
            right = replace(right, array=scaled, name=f"{right.name}·{alpha}")
        else:
            start = apply("mul", start, Constant(alpha))
    first: list[View] = []
    if c is not None and beta != 0.0:
        first = [_addend(lowering, c)]
        term: Expression = Operand(1)
        if beta != 1.0:
            term = apply("mul", term, Constant(beta))
        start = apply("add", start, term)
    _emit(lowering, group, left, right, start, first)


def _addend(lowering: Lowering, value: ir.Value) -> View:
    """Return Gemm's third input; a constant stays in float32."""
    constant = constant_of(value)
    if constant is None:
        return lowering.demand(value)
    array = constant.numpy()
    return lowering.weight((str(value.name), "bias"), lambda: array.astype(np.float32), "f32")


def _emit(
    lowering: Lowering,
    group: Group,
    left: View,
    right: RightSide,
    start: Expression,
    first: Sequence[View],
) -> None:
    build = GroupExpression(lowering, group, start)
    build.views.extend(first)
    root = group.root.outputs[0]
    expression = build.of(root)
    batch = np.broadcast_shapes(left.shape[:-2], right.batch)
    shape = (*batch, left.shape[-2], right.shape[-1])
    result, target = open_rows(lowering, root, shape)
    views = [row_operand(lowering, v, static_shape(root) or (), shape) for v in build.views]
    matmul_steps(lowering, left, right, target, views, expression, group.nodes)
    close_rows(lowering, result, target, group.root)


def open_rows(lowering: Lowering, root: ir.Value, shape: tuple[int, ...]) -> tuple[View, View]:
    """Return a product's result, and what the kernel writes: `shape`, its rows side by side.

    The two differ where the readers want another layout; `close_rows` then copies.
    """
    storage = "f32" if _is_only_normalized(lowering, root) else lowering.result_storage(root)
    result = lowering.output(root, reader_order(root), storage)
    target = result.reshaped(shape)
    if target is None or (target.strides[-1] != 1 and shape[-1] > 1):
        target = allocate(f"{root.name} in rows", result.storage, shape)
    return result, target


def close_rows(lowering: Lowering, result: View, target: View, node: ir.Node) -> None:
    """Copy what the kernel wrote to where the readers want it, if that is elsewhere."""
    if target.buffer is result.buffer:
        return
    whole = target.reshaped(result.shape)
    assert whole is not None, "a row-major tensor takes any shape"
    lowering.copy_into(whole, result, node)


_KEPT_IN_FLOAT32 = ("LayerNormalization", "RMSNormalization", "Softmax", "LogSoftmax")


def _is_only_normalized(lowering: Lowering, value: ir.Value) -> bool:
    """Say whether a float is read by what computes in float32 alone: it is not rounded before."""
    if lowering.storage(value) != "bf16" or value.is_graph_output():
        return False
    readers = [use.node for use in value.uses()]
    return bool(readers) and all(is_operator(node, *_KEPT_IN_FLOAT32) for node in readers)


def reader_order(value: ir.Value) -> tuple[int, ...] | None:
    """Return the layout that the only reader wants: of a Transpose, the one it gives.

    Only orders that leave the last dimension side by side.
    """
    uses = list(value.uses())
    shape = static_shape(value)
    if len(uses) != 1 or shape is None or value.is_graph_output():
        return None
    node = uses[0].node
    if not is_operator(node, "Transpose") or "perm" not in node.attributes:
        return None
    order = tuple(int(axis) for axis in node.attributes["perm"].as_ints())
    return order if order[-1] == len(shape) - 1 else None


def row_operand(
    lowering: Lowering, view: View, shape: tuple[int, ...], matrix_shape: tuple[int, ...]
) -> View:
    """Return an epilogue operand broadcast to the product's shape, its columns dense or one."""
    wide = view.broadcast(shape)
    if len(matrix_shape) != len(shape):  # a product with a vector, whose result has fewer
        fitted = wide.reshaped(matrix_shape)
        wide = fitted if fitted is not None else _matrix_copy(lowering, wide, matrix_shape)
    if wide.strides[-1] in (0, 1) or wide.shape[-1] == 1:
        return wide
    return lowering.copied(view).broadcast(shape).broadcast(matrix_shape)


def _matrix_copy(lowering: Lowering, view: View, shape: tuple[int, ...]) -> View:
    copy = lowering.copied(view).reshaped(shape)
    assert copy is not None, "a row-major tensor takes any shape"
    return copy


def matmul_steps(
    lowering: Lowering,
    left: View,
    right: RightSide,
    target: View,
    operands: Sequence[View],
    expression: Expression,
    nodes: Sequence[ir.Node],
) -> None:
    """Add the steps of one product.

    A left side that is too deep for the second-level cache is multiplied in pieces of the depth,
    each adding to the sums of the one before.

    Shapes: left (…, M, K), right (…, K, N), target and operands (…, M, N).
    """
    left, right, numeric = common_numeric(lowering, left, right)
    if _has_seven_products(lowering, left, right, numeric, target):
        assert right.array is not None
        strassen_steps(lowering, left, right.array, right.name, target, operands, expression, nodes)
        return
    if left.strides[-1] != 1 and left.shape[-1] > 1:
        left = lowering.copied(left)
    pieces = _depth_pieces(left, numeric)
    if len(pieces) == 1:
        lowering.add(
            matmul_step(lowering, left, right, numeric, target, operands, expression, nodes)
        )
        return
    partial = allocate(f"sums of {target.buffer.name}", "f32", target.shape)
    for at, (start, size) in enumerate(pieces):
        some_left, some_right = left.sliced(-1, start, size), right.piece(start, size)
        if at < len(pieces) - 1:
            total = Operand(0) if at == 0 else apply("add", Operand(0), Operand(1))
            before = [partial] if at else []
            step = matmul_step(lowering, some_left, some_right, numeric, partial, before, total, ())
        else:
            total = apply("add", Operand(0), Operand(len(operands) + 1))
            step = matmul_step(
                lowering, some_left, some_right, numeric, target, [*operands, partial],
                substitute(expression, {0: total}), nodes,
            )  # fmt: skip
        lowering.add(step)


def _has_seven_products(
    lowering: Lowering, left: View, right: RightSide, numeric: Numeric, target: View
) -> bool:
    """Say whether a product with a constant is computed by Strassen's algorithm."""
    *rows, columns = target.shape
    return (
        lowering.winograd
        and numeric.name == "f32"
        and right.array is not None
        and len(right.shape) == 2
        and left.shape[:-1] == target.shape[:-1]
        and halved_axis(target.shape) is not None
        and is_cheaper(math.prod(rows), left.shape[-1], columns, lowering.isa)
    )


def _depth_pieces(left: View, numeric: Numeric) -> list[tuple[int, int]]:
    """Return (start, size) of the pieces of the depth, whole groups each."""
    rows, depth = min(left.shape[-2], SEGMENT_ROWS), left.shape[-1]
    count = round(rows * depth * left.item_bytes / _NEAR_BYTES)
    if count < 2:
        return [(0, depth)]
    groups = -(-depth // numeric.group)
    size = -(-groups // count) * numeric.group
    return [(start, min(size, depth - start)) for start in range(0, depth, size)]


def matmul_step(
    lowering: Lowering,
    left: View,
    right: RightSide,
    numeric: Numeric,
    target: View,
    operands: Sequence[View],
    expression: Expression,
    nodes: Sequence[ir.Node],
) -> Step:
    """Make the step of one product, with the packing of its right side before it if needed."""
    *batch, rows, columns = target.shape
    depth = left.shape[-1]
    in_place = is_in_place(right, numeric)
    walks = [left.broadcast((*batch, rows, depth)), target, *operands]
    matrices = contiguous_strides(right.batch) if not in_place else right.view.strides[:-2]  # type: ignore[union-attr]
    missing = len(batch) - len(right.batch)
    right_outer = [0] * missing + [
        0 if size == 1 else stride for size, stride in zip(right.batch, matrices, strict=True)
    ]
    dims = _merged(
        [*batch, rows],
        [[*view.strides[:-2], _row_stride(view)] for view in walks] + [[*right_outer, 0]],
    )
    *outer, (rows, _) = dims
    tile = choose_patch(rows, columns, -(-depth // numeric.group), lowering.isa)
    left_walk, *walked = [
        Matrices(
            view.storage, tuple(d[1][i] for d in outer), dims[-1][1][i],
            1 if i == 0 else _column_stride(view),
        )
        for i, view in enumerate(walks)
    ]  # fmt: skip
    strides = tuple(d[1][-1] for d in outer)
    if in_place:
        assert right.view is not None
        source = right.view
        side: Matrices | Panels = Matrices("f32", strides, right.view.strides[-2], 1)
    else:
        source, side = packed(lowering, right, numeric, tile), Panels(strides)
    matrices_count = math.prod(size for size, _ in outer)
    segment_rows = _segment_rows(matrices_count, rows, columns, tile, lowering.isa.lanes)
    is_far = right.array is not None and source.buffer.size_bytes > _FAR_BYTES
    spec = MatmulSpec(
        numeric=numeric.name, lanes=lowering.isa.lanes,
        outer=tuple(size for size, _ in outer), rows=rows, columns=columns, depth=depth,
        left=left_walk, right=side, output=walked[0], operands=tuple(walked[1:]),
        expression=expression, tile_rows=tile.columns, tile_vectors=tile.vectors,
        segment_rows=segment_rows,
        prefetch=is_far and min(rows, segment_rows) >= _PREFETCH_PATCHES * tile.columns,
    )  # fmt: skip
    return Step(
        spec, (left, source, target, *operands), (target,),
        tuple(str(node.name) for node in nodes), operations_of(list(nodes)),
    )  # fmt: skip


def choose_patch(rows: int, columns: int, steps: int, isa: Isa) -> Tile:
    """Return the register tile of a product; what it loads a step is counted beside its cycles.

    Measured on Zen 5, 128×768×768: 8×3 is 2 % faster than 13×2, 3 % faster than 6×4.
    """

    def estimate(tile: Tile) -> float:
        cycles = cost(tile, 1, rows, columns, steps, isa)
        blocks = -(-columns // (tile.vectors * isa.lanes)) * -(-rows // tile.columns)
        return cycles + blocks * steps * (0.06 * tile.columns + 0.15 * tile.vectors)

    return min(candidates(1, rows, columns, isa), key=estimate)


def _segment_rows(matrices: int, rows: int, columns: int, tile: Tile, lanes: int) -> int:
    """Return the rows of a unit: as many as stay near, fewer where there would be few units."""
    blocks = matrices * -(-columns // (tile.vectors * lanes))
    patches = max(1, min(SEGMENT_ROWS, rows) // tile.columns)
    while patches > 2 and blocks * -(-rows // (patches * tile.columns)) < _MANY_UNITS:
        patches = -(-patches // 2)
    return patches * tile.columns


def _row_stride(view: View) -> int:
    return view.strides[-2] if view.shape[-2] > 1 else 0


def _column_stride(view: View) -> int:
    return view.strides[-1] if view.shape[-1] > 1 or view.strides[-1] in (0, 1) else 0


def _merged(
    sizes: Sequence[int], strides: Sequence[Sequence[int]]
) -> list[tuple[int, tuple[int, ...]]]:
    """Return dimensions in order, neighbours merged where every tensor walks them as one.

    The last is the rows'; it is there even if it has one element. The last of `strides` is the
    right side's.
    """
    dims = [
        (size, tuple(0 if size == 1 else s[axis] for s in strides))
        for axis, size in enumerate(sizes)
    ]
    merged = [dims[-1]]
    for size, outer in reversed(dims[:-1]):
        inner_size, inner = merged[0]
        if size == 1:
            continue
        # Rows share one right side: a dimension along which it changes is not one of rows.
        if inner_size == 1 and not (len(merged) == 1 and outer[-1]):
            merged[0] = (size, outer)
        elif all(o == i * inner_size for o, i in zip(outer, inner, strict=True)):
            merged[0] = (size * inner_size, inner)
        else:
            merged.insert(0, (size, outer))
    return merged
