"""MatMulInteger and ConvInteger: sums of 8-bit integers, exact in int32, which wraps.

    Σ (a - s)·(b - t) = Σ a·b - s·Σ b + t·(K·s - Σ a)

The kernels multiply a left side without a sign by a right side with one: a signed left side and its
zero point are taken 128 higher, an unsigned right side and its zero point 128 lower. A constant
zero point of constant weights is taken into them where that fits. What is left of the corrections
is computed apart: of the left zero point, the number that each column's sum starts from; of the
right one, a number for each row. What follows the operator, mostly Cast, Mul and Add, is the
product's epilogue.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.fill import SizesSpec
from vermilion.codegen.emit.map import map_step
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering
from vermilion.codegen.lower.data_movement_shapes import joined
from vermilion.codegen.lower.elementwise import GroupExpression
from vermilion.codegen.lower.groups import Group
from vermilion.codegen.numeric import integer_numeric
from vermilion.codegen.tensor import View, allocate
from vermilion.ir.expression import (
    Apply,
    Constant,
    Convert,
    Element,
    Expression,
    Operand,
    apply,
)
from vermilion.ir.opset import constant_of, static_shape
from vermilion.ir.symbolic import is_known, is_one

Array = NDArray[Any]
# Whole numbers: known, in int64, or a tensor of the run.
Numbers = Array | View

# Sums below it are exact in float32.
EXACT_FLOAT = 2**24
# Operands of expressions over whole numbers.
_A, _B, _C, _D = (Operand(at, "int") for at in range(4))
# Operand 0, 128 higher or lower: with its sign turned over.
HIGHER = apply("add", _A, Constant(128, "int"))
LOWER = apply("sub", _A, Constant(128, "int"))


def zero_shape(node: ir.Node, at: int) -> tuple[int, ...] | None:
    """Return the shape of a zero point, that of one number where there is none."""
    value = node.inputs[at] if at < len(node.inputs) else None
    return () if value is None else static_shape(value)


def check_bytes(node: ir.Node) -> str:
    """Say where an operator on 8-bit integers has others."""
    for value in node.inputs:
        if value is not None and value.dtype not in (ir.DataType.UINT8, ir.DataType.INT8):
            return f"{node.op_type} of other numbers than 8-bit integers"
    return ""


@dataclass(frozen=True)
class _Corrections:
    """What is added to the sums: a number for each column, and products of small tensors."""

    initial: Numbers | None
    others: Sequence[tuple[Numbers, ...]]


class IntegerOperator:
    """One operator while it is written."""

    def __init__(self, lowering: Lowering, group: Group, node: ir.Node) -> None:
        self.lowering = lowering
        self.group = group
        self.node = node
        self.numeric = integer_numeric(lowering.isa)
        self.key = (str(node.name), str(node.outputs[0].name), "integers")
        self._count = 0

    # Whole numbers ----------------------------------------------------------------------------

    def numbers(self, expression: Expression, *parts: Numbers) -> Numbers:
        """Return an expression over whole numbers: computed now where all are known."""
        known = [part for part in parts if isinstance(part, np.ndarray)]
        if len(known) == len(parts):
            return _evaluated(expression, known)
        views = [self.view(part) for part in parts]
        label = f"{self.key[1]} correction"
        result = allocate(label, "i32", joined([view.shape for view in views]))
        self.lowering.add(map_step(views, [result], [expression], [label]))
        return result

    def view(self, numbers: Numbers) -> View:
        """Return whole numbers as a tensor, in int32, as which they wrap."""
        if isinstance(numbers, View):
            return numbers
        self._count += 1
        known = numbers
        key = (*self.key, str(self._count))
        return self.lowering.weight(key, lambda: known.astype(np.int32), "i32")

    def zero_point(self, at: int, shape: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Numbers:
        """Return a zero point: one number as such, others in the shape that `shape` gives."""
        value = self.node.inputs[at] if at < len(self.node.inputs) else None
        if value is None:
            return np.zeros((), np.int64)
        constant = constant_of(value)
        if constant is not None:
            array = constant.numpy().astype(np.int64)
            return array.reshape(() if array.size == 1 else shape(array.shape))
        view = self.lowering.demand(value)
        fitted = view.reshaped(() if is_one(view.elements) else shape(view.shape))
        assert fitted is not None, "dimensions of one element need no copy"
        return fitted

    def depth(self, size: int) -> Numbers:
        """Return how many products are added up, which only the run may have."""
        if is_known(size):
            return np.array(int(size), np.int64)
        view = allocate(f"{self.key[1]} depth", "i32", ())
        self.lowering.add(Step(SizesSpec("i32", (size,)), (view,), (view,), (str(self.node.name),)))
        return view

    # Both sides -------------------------------------------------------------------------------

    def left(self, shape: Callable[[tuple[int, ...]], tuple[int, ...]]) -> tuple[View, Numbers]:
        """Return the left side without a sign, and its zero point beside it."""
        value = self.node.inputs[0]
        assert value is not None
        view, zero = self.lowering.demand(value), self.zero_point(2, shape)
        if view.storage == "u8":
            return view, zero
        key = (view, "without a sign")
        if key not in self.lowering.left_sums:
            copy = allocate(f"{view.buffer.name} without a sign", "u8", view.shape)
            label = f"copy of {view.buffer.name}"
            self.lowering.add(map_step([view], [copy], [HIGHER], [label]))
            self.lowering.left_sums[key] = copy
        return self.lowering.left_sums[key], self.numbers(HIGHER, zero)

    def weights(self, array: Array, zero: Numbers) -> tuple[Array, Numbers]:
        """Return constant weights in 8 bits with a sign, and what is left of their zero point."""
        wide = array.astype(np.int16)
        if isinstance(zero, np.ndarray):
            less = wide - zero.astype(np.int16)
            if less.min() >= -128 and less.max() <= 127:
                return less.astype(np.int8), np.zeros((), np.int64)
        if array.dtype == np.uint8:
            return (wide - 128).astype(np.int8), self.numbers(LOWER, zero)
        return array, zero

    # Corrections ------------------------------------------------------------------------------

    def corrections(
        self,
        zeros: tuple[Numbers, Numbers],
        columns: Callable[[], Numbers],
        rows: Callable[[], Numbers],
        depth: int,
    ) -> _Corrections:
        """Return what the zero points of both sides add to the sums.

        `columns` gives the sums of the right side's columns, `rows` those of the left side's rows.
        """
        left, right = zeros
        initial, others = None, list[tuple[Numbers, ...]]()
        if not _is_nought(left):
            if _is_single(left):
                less = apply("sub", Constant(0, "int"), apply("mul", _A, _B))
                initial = self.numbers(less, left, columns())
            else:
                negative = self.numbers(apply("sub", Constant(0, "int"), _A), left)
                others.append((negative, columns()))
        if not _is_nought(right):
            rest = apply("sub", apply("mul", _A, _B), _C)
            parts = (self.depth(depth), left, rows())
            if _is_single(right):
                others.append((self.numbers(apply("mul", rest, _D), *parts, right),))
            else:
                others.append((self.numbers(rest, *parts), right))
        return _Corrections(initial, others)

    def begin(
        self, start: Expression, initial: View | None, others: Sequence[tuple[Numbers, ...]]
    ) -> GroupExpression:
        """Begin the group's expression; with `initial`, its first operand is the sums' start."""
        views = [] if initial is None else [initial]
        for factors in others:
            term: Expression | None = None
            for factor in factors:
                views.append(self.view(factor))
                one = Operand(len(views), "int")
                term = one if term is None else apply("mul", term, one)
            assert term is not None, "a correction has factors"
            start = apply("add", start, term)
        build = GroupExpression(self.lowering, self.group, start)
        build.views.extend(views)
        return build


def _is_nought(numbers: Numbers) -> bool:
    return isinstance(numbers, np.ndarray) and not numbers.any()


def _is_single(numbers: Numbers) -> bool:
    return is_one(math.prod(numbers.shape))


def _evaluated(expression: Expression, parts: Sequence[Array]) -> Array:
    """Return an expression over known whole numbers, in int64."""
    match expression:
        case Operand():
            return parts[expression.index]
        case Constant():
            return np.array(int(expression.value), np.int64)
        case Apply():
            a, b = (_evaluated(one, parts) for one in expression.arguments)
            operation = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
            return np.asarray(operation[expression.operation](a, b))
        case Convert() | Element():
            raise AssertionError("whole numbers stay what they are")
