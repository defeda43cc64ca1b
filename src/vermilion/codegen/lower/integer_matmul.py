"""MatMulInteger: rows times constant panels as a 1×1 convolution, all else as matrix products.

A right side that only the run has is packed in quads before it is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from vermilion.codegen.emit.map import map_step
from vermilion.codegen.lower.context import Lowering, identity
from vermilion.codegen.lower.data_movement_shapes import joined
from vermilion.codegen.lower.gemm_operands import RightSide, as_column, as_matrix
from vermilion.codegen.lower.geometry import ConvGeometry, as_rows
from vermilion.codegen.lower.groups import Group
from vermilion.codegen.lower.integer_operators import (
    EXACT_FLOAT,
    LOWER,
    IntegerOperator,
    Numbers,
    check_bytes,
    zero_shape,
)
from vermilion.codegen.lower.integer_product import operand_rows, with_initial
from vermilion.codegen.lower.matmul import close_rows, open_rows, row_operand
from vermilion.codegen.lower.matmul_step import matmul_step
from vermilion.codegen.lower.product_step import product_step
from vermilion.codegen.lower.reduction import integer_sums
from vermilion.codegen.tensor import View, allocate
from vermilion.ir.expression import Constant, Operand, apply
from vermilion.ir.opset import constant_of, static_shape
from vermilion.ir.symbolic import is_one, same

_POINT = ConvGeometry((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1)


def emit_matmul_integer(lowering: Lowering, group: Group, node: ir.Node) -> None:
    """Write a MatMulInteger with all of its group in the epilogue."""
    right = constant_of(node.inputs[1])
    if right is not None and len(right.shape) == 2:
        _Rows(lowering, group, node).emit()
    else:
        _Matrices(lowering, group, node).emit()


def check_matmul_integer(node: ir.Node) -> str:
    """Say why a MatMulInteger is not generated, empty if it is."""
    left, right = (static_shape(value) or () for value in node.inputs[:2])
    if not left or not right:
        return "MatMulInteger of a number"
    is_constant = constant_of(node.inputs[1]) is not None and len(right) == 2
    # Sums of rows and columns are made in float32. Of a size that a run has, it is asked then.
    if not is_constant and left[-1] * 255 >= EXACT_FLOAT:
        return "MatMulInteger of matrices of a run with more than 65,793 products in a sum"
    zeros = (zero_shape(node, at) for at in (2, 3))
    for zero, own, axis in zip(zeros, (left, right), (-2, -1), strict=True):
        if zero is None or not _fits(zero, own, axis):
            return (
                "MatMulInteger with zero points that are neither one number nor one a row or column"
            )
    return check_bytes(node)


def _fits(zero: Sequence[int], own: Sequence[int], axis: int) -> bool:
    """Say whether zero points are one number, or one for each row or column of a side."""
    if all(map(is_one, zero)):
        return True
    if len(own) < 2:
        return False
    if len(zero) == 1:
        return same(zero[0], own[axis]) and (axis == -1 or len(own) == 2)
    apart = -1 if axis == -2 else -2
    wanted = [1 if at == len(own) + apart else size for at, size in enumerate(own)]
    return len(zero) == len(own) and all(map(same, zero, wanted))


class _Rows(IntegerOperator):
    """(…, K) × (K, N), the right side constant: a 1×1 convolution over rows."""

    def emit(self) -> None:
        """Add the steps."""
        lowering, node = self.lowering, self.node
        constant = constant_of(node.inputs[1])
        assert constant is not None, "the right side is constant"
        data, left = self.left(_by_row)
        data = data if data.is_contiguous else lowering.copied(data)
        weights, right = self.weights(constant.numpy(), self.zero_point(3, tuple))
        depth, width = weights.shape
        source = as_rows(data, depth)
        sums = weights.sum(axis=0, dtype=np.int64)
        found = self.corrections((left, right), lambda: sums, lambda: self._sums(data), depth)
        initial = None if found.initial is None else self.view(found.initial)
        build = self.begin(Operand(0, "int"), initial, found.others)
        expression = build.of(self.group.root.outputs[0])
        result = lowering.output(self.group.root.outputs[0])
        target = result if result.is_contiguous else allocate("rows", result.storage, result.shape)
        operands = [operand_rows(lowering, view, result.shape, width) for view in build.views]
        step = product_step(
            lowering, source, np.ascontiguousarray(weights.T)[:, None, None, :], self.key, _POINT,
            as_rows(target, width), operands, expression, self.group.nodes, self.numeric,
        )  # fmt: skip
        lowering.add(step if initial is None else with_initial(step))
        if target is not result:
            lowering.add(map_step([target], [result], [identity(target)], [str(node.name)]))

    def _sums(self, data: View) -> View:
        """Return the sum of each row, (…, 1): several products may share them."""
        lowering, key = self.lowering, (data, "sums of rows")
        if key not in lowering.left_sums:
            depth = data.shape[-1]
            result = allocate(f"{data.buffer.name} sums", "i32", (*data.shape[:-1], 1))
            ones = np.ones((1, 1, 1, depth), np.int8)
            step = product_step(
                lowering, as_rows(data, depth), ones, ("ones", str(depth)), _POINT,
                as_rows(result, 1), [], Operand(0, "int"), [], self.numeric,
            )  # fmt: skip
            lowering.add(replace(step, nodes=(result.buffer.name,)))
            lowering.left_sums[key] = result
        return lowering.left_sums[key]


class _Matrices(IntegerOperator):
    """(…, M, K) × (…, K, N), both sides of a run, or a batch of constant matrices."""

    def emit(self) -> None:
        """Add the steps."""
        lowering = self.lowering
        data, left = self.left(_by_row)
        if len(data.shape) == 1:
            data = as_matrix(data, (1, data.shape[0]))
        if data.strides[-1] != 1 and data.shape[-1] > 1:
            data = lowering.copied(data)
        side, columns, right = self._right()
        depth = data.shape[-1]
        found = self.corrections((left, right), columns, lambda: self._sums(data), depth)
        others = [*([] if found.initial is None else [(found.initial,)]), *found.others]
        build = self.begin(Operand(0, "int"), None, others)
        mine = len(build.views)
        root = self.group.root.outputs[0]
        expression = build.of(root)
        batch = joined([data.shape[:-2], side.batch])
        shape = (*batch, data.shape[-2], side.shape[-1])
        result, target = open_rows(lowering, root, shape)
        rows = static_shape(root) or ()
        operands = [view.broadcast(shape) for view in build.views[:mine]]
        operands += [row_operand(lowering, view, rows, shape) for view in build.views[mine:]]
        step = matmul_step(
            lowering, data, side, self.numeric, target, operands, expression, self.group.nodes
        )
        lowering.add(step)
        close_rows(lowering, result, target, self.group.root)

    def _right(self) -> tuple[RightSide, Callable[[], Numbers], Numbers]:
        """Return the right side, what gives the sums of its columns, and its zero point."""
        value, zero = self.node.inputs[1], self.zero_point(3, tuple)
        assert value is not None
        constant = constant_of(value)
        if constant is not None:
            array = constant.numpy()
            weights, zero = self.weights(array[:, None] if array.ndim == 1 else array, zero)
            side = RightSide(tuple(weights.shape), array=weights, name="/".join(self.key))
            return side, lambda: weights.sum(axis=-2, dtype=np.int64, keepdims=True), zero
        view = self.lowering.demand(value)
        side = RightSide(view.shape, view=view)
        side = as_column(side) if len(view.shape) == 1 else side
        assert side.view is not None
        if side.view.strides[-1] != 1 and side.shape[-1] > 1:
            side = replace(side, view=self.lowering.copied(side.view))
        packed = side.view
        assert packed is not None

        def columns() -> Numbers:
            sums = integer_sums(self.lowering, packed, -2)
            if view.storage == "s8":
                return sums
            less = apply("mul", Operand(1, "int"), Constant(128, "int"))
            lower = apply("sub", Operand(0, "int"), less)
            return self.numbers(lower, sums, self.depth(side.shape[-2]))

        if view.storage == "u8":
            zero = self.numbers(LOWER, zero)
        return side, columns, zero

    def _sums(self, data: View) -> View:
        return integer_sums(self.lowering, data, -1)


def _by_row(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in which a left zero point for each row stands beside the rows."""
    return (*shape, 1) if len(shape) == 1 else shape
