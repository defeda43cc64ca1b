"""Groups of elementwise nodes as kernels: their expressions, and the numbers these read."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE
from vermilion.codegen.emit.interleave import interleave_step
from vermilion.codegen.emit.map import map_step
from vermilion.codegen.lower.affine import Affine
from vermilion.codegen.lower.checks import check_divisor
from vermilion.codegen.lower.context import STORAGE_OF, Lowering, operations_of, refuse
from vermilion.codegen.lower.groups import Extent, Group
from vermilion.codegen.lower.quantized import QuantizedValues
from vermilion.codegen.tensor import Buffer, Storage, View, allocate
from vermilion.ir.elementwise import elementwise
from vermilion.ir.expression import (
    Apply,
    Constant,
    Convert,
    Element,
    Expression,
    Kind,
    Operand,
    apply,
)
from vermilion.ir.opset import constant_of, static_shape
from vermilion.ir.symbolic import typical

# Divide, cut off on both sides, round, add the zero point.
_QUANTIZING = 5


def wrapped(value: Expression, storage: Storage) -> Expression:
    """Bring the result of integer arithmetic into the range of a small type, as storing it does."""
    if storage in ("u8", "u16"):
        return apply("and", value, Constant({"u8": 0xFF, "u16": 0xFFFF}[storage], "int"))
    if storage in ("s8", "s16"):
        half = {"s8": 0x80, "s16": 0x8000}[storage]
        low = apply("and", value, Constant(2 * half - 1, "int"))
        half_constant = Constant(half, "int")
        return apply("sub", apply("xor", low, half_constant), half_constant)
    return value


def kind_of(lowering: Lowering, value: ir.Value) -> Kind:
    """Return the kind in which a value is computed."""
    return KIND_OF_STORAGE[lowering.storage(value)]


class ParameterTable:
    """The numbers of one group that its kernel reads from memory, 32 bits each."""

    def __init__(self, name: str) -> None:
        self._words: list[bytes] = []
        self._buffer = Buffer(f"{name}/parameters", 4, "weights", np.zeros(4, np.uint8))
        self.view = View(self._buffer, "f32", (), ())

    def place(self, value: float, kind: Kind) -> int:
        """Return the position of a number, added if it is not there yet."""
        word = np.array(value, np.float32 if kind == "float" else np.int32).tobytes()
        if word not in self._words:
            self._words.append(word)
            self._buffer.data = np.frombuffer(b"".join(self._words), np.uint8)
            self._buffer.size_bytes = self._buffer.data.size
        return self._words.index(word)


class GroupExpression:
    """The expression of one group, and the tensors that its operands stand for."""

    def __init__(
        self,
        lowering: Lowering,
        group: Group,
        start: Expression | None,
        form: Affine | None = None,
    ) -> None:
        self.lowering = lowering
        self.group = group
        self.views: list[View] = []
        self._quantized = QuantizedValues(self, form)
        self._table: ParameterTable | None = None
        # The kernels of integer products and of elementwise groups read tables.
        self._has_table = form is not None or group.anchor is None
        self._start = start
        self._first = 0 if start is None else 1
        self._known: dict[ir.Value, Expression] = {}

    def of(self, value: ir.Value) -> Expression:
        """Return the expression of a value inside or outside the group."""
        if value not in self._known:
            self._known[value] = self._make(value)
        return self._known[value]

    def give(self, value: ir.Value, expression: Expression) -> None:
        """Let a value from outside of the group be this expression."""
        self._known[value] = expression

    def operand(self, view: View) -> Expression:
        """Return the operand that stands for a float tensor, which is read once."""
        for index, known in enumerate(self.views):
            if known is view:
                return Operand(self._first + index)
        self.views.append(view)
        return Operand(self._first + len(self.views) - 1)

    def parameter(self, value: float, kind: Kind) -> Expression:
        """Return a number that kernels may differ in and still be one."""
        if not self._has_table:
            return Constant(value, kind)
        if self._table is None:
            self._table = ParameterTable(str(self.group.root.name))
            self.views.append(self._table.view)
        index = next(i for i, view in enumerate(self.views) if view is self._table.view)
        return Element(self._first + index, self._table.place(value, kind), kind)

    def _make(self, value: ir.Value) -> Expression:
        quantized = self._quantized.of(value)
        if quantized is not None:
            return quantized
        producer = value.producer()
        if producer is not None and producer is self.group.anchor and self._start is not None:
            return self._start
        if producer is not None and producer in self.group.members:
            arguments = [
                Constant(0.0) if item is None else self.of(item) for item in producer.inputs
            ]
            kind = kind_of(self.lowering, value)
            if producer.op_type in ("Div", "Mod") and kind != "float":
                check_divisor(self.lowering, producer)
            row = elementwise(producer)
            if row is None or row.define is None:
                raise refuse(producer, "no row says what it computes of these inputs")
            result = row.define(producer, arguments)
            result = result if result.kind == kind else Convert(result, kind)
            is_inside = producer is not self.group.root and row.wraps
            return wrapped(result, self.lowering.storage(value)) if is_inside else result
        kind = kind_of(self.lowering, value)
        constant = constant_of(value)
        if constant is not None and constant.size == 1:
            return Constant(constant.numpy().reshape(-1)[0].item(), kind)
        self.views.append(self.lowering.demand(value))
        return Operand(self._first + len(self.views) - 1, kind)


def extent_of(node: ir.Node) -> Extent:
    """Return how often each input of an elementwise node stands in its expression, and its size."""
    row = elementwise(node)
    if row is None or row.define is None:
        return Extent((1,) * len(node.inputs), _QUANTIZING, _QUANTIZING)
    copies = [0] * len(node.inputs)
    operations, deepest = 1, 1
    leaves = [_leaf(index, value) for index, value in enumerate(node.inputs)]
    pending = [(row.define(node, leaves), 2)]
    while pending:
        part, level = pending.pop()
        match part:
            case Operand(index=index):
                copies[index] += 1
            case Apply(arguments=arguments):
                operations += 1
                deepest = max(deepest, level)
                pending.extend((argument, level + 1) for argument in arguments)
            case Convert(argument=argument):
                pending.append((argument, level + 1))
    return Extent(tuple(copies), operations, deepest)


def _leaf(index: int, value: ir.Value | None) -> Expression:
    if value is None or value.dtype is None:
        return Constant(0.0)
    kind = KIND_OF_STORAGE[STORAGE_OF[value.dtype]]
    constant = constant_of(value)
    if constant is not None and constant.size == 1:
        return Constant(constant.numpy().reshape(-1)[0].item(), kind)
    return Operand(index, kind)


def emit_elementwise(lowering: Lowering, group: Group) -> None:
    """Write a group without an anchor as one loop nest."""
    value = group.root.outputs[0]
    build = GroupExpression(lowering, group, None)
    expression = build.of(value)
    nodes = [str(node.name) for node in group.nodes]
    order = layout_like(build.views, len(static_shape(value) or ()))
    output = lowering.output(value, order)
    add_map(lowering, build.views, output, expression, nodes, operations_of(group.nodes))


def add_map(
    lowering: Lowering,
    views: list[View],
    output: View,
    expression: Expression,
    nodes: Sequence[str],
    operations: int,
) -> None:
    """Add one loop nest. Planes that become pixels are computed as planes: vectors along rows."""
    planes = allocate(f"{output.buffer.name} as planes", output.storage, output.shape)
    is_woven = len(output.shape) == 4 and _are_planes(views)
    woven = interleave_step(planes, output, tuple(nodes[:1])) if is_woven else None
    target = output if woven is None else planes
    lowering.add(map_step(views, [target], [expression], nodes, operations))
    if woven is not None:
        lowering.add(woven)


def _are_planes(views: list[View]) -> bool:
    """Say whether all images among the operands have their columns side by side."""
    images = [view for view in views if len(view.shape) == 4 and view.elements > 1]
    is_image = len(views) > 0 and max(len(view.shape) for view in views) == 4
    return is_image and bool(images) and all(view.strides[3] == 1 for view in images)


def layout_like(views: list[View], rank: int) -> tuple[int, ...] | None:
    """Return the order of dimensions that the largest input has, None for row-major."""
    same = [view for view in views if len(view.shape) == rank]
    if not same:
        return None
    largest = max(same, key=lambda view: typical(view.elements))
    strides = [typical(stride) for stride in largest.strides]
    axes = sorted(range(rank), key=lambda axis: (-strides[axis] or -math.inf, axis))
    # A dimension of one element has no stride of its own: it stays where it is in row-major order.
    if any(strides[a] == 0 and largest.shape[a] > 1 for a in range(rank)):
        return None
    return tuple(axes) if math.prod(largest.shape) > 1 else None
