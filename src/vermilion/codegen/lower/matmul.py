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

from vermilion.codegen.lower.context import Lowering
from vermilion.codegen.lower.data_movement_shapes import joined
from vermilion.codegen.lower.elementwise import GroupExpression
from vermilion.codegen.lower.gemm_operands import (
    RightSide,
    as_column,
    as_matrix,
    common_numeric,
    right_side,
)
from vermilion.codegen.lower.groups import Group
from vermilion.codegen.lower.matmul_step import SEGMENT_ROWS, matmul_step
from vermilion.codegen.lower.strassen import (
    halved_axis,
    least_rows,
    steps_for_any_rows,
    strassen_steps,
)
from vermilion.codegen.numeric import Numeric
from vermilion.codegen.tensor import View, allocate
from vermilion.ir.attributes import flag, number
from vermilion.ir.expression import Constant, Expression, Operand, apply, substitute
from vermilion.ir.opset import constant_of, is_operator, static_shape
from vermilion.ir.symbolic import is_known, same, typical

# Bytes of a segment's rows from which on the depth is cut. Measured on Zen 5: 128 × 3072 in float32
# run faster in one piece.
_NEAR_BYTES = 2 * 1024 * 1024


def emit_matmul(lowering: Lowering, group: Group, node: ir.Node) -> None:
    """Write a MatMul and its group; a vector counts as a matrix of one row or column."""
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
    batch = joined([left.shape[:-2], right.batch])
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
    least = _rows_for_seven_products(lowering, left, right, numeric, target)
    if least is not None:
        assert right.array is not None
        how = (left, right.array, right.name, target, operands, expression, nodes)
        rows = math.prod(target.shape[:-1])
        if not is_known(rows) and typical(rows) >= least:
            steps_for_any_rows(lowering, *how, least)
            return
        if is_known(rows) and rows >= least:
            strassen_steps(lowering, *how)
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


def _rows_for_seven_products(
    lowering: Lowering, left: View, right: RightSide, numeric: Numeric, target: View
) -> int | None:
    """Return from how many rows on a product with a constant is Strassen's, None for never."""
    if not (
        lowering.winograd
        and numeric.name == "f32"
        and right.array is not None
        and len(right.shape) == 2
        and all(map(same, left.shape[:-1], target.shape[:-1]))
        and halved_axis(target.shape) is not None
    ):
        return None
    return least_rows(left.shape[-1], target.shape[-1], lowering.isa)


def _depth_pieces(left: View, numeric: Numeric) -> list[tuple[int, int]]:
    """Return (start, size) of the pieces of the depth, whole groups each."""
    rows, depth = min(typical(left.shape[-2]), SEGMENT_ROWS), left.shape[-1]
    if not is_known(depth):
        return [(0, depth)]
    count = round(rows * depth * left.item_bytes / _NEAR_BYTES)
    if count < 2:
        return [(0, depth)]
    groups = -(-depth // numeric.group)
    size = -(-groups // count) * numeric.group
    return [(start, min(size, depth - start)) for start in range(0, depth, size)]
