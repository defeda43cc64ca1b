"""Elementwise ONNX operators as expressions, and groups of them as kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE
from vermilion.codegen.emit.interleave import interleave_step
from vermilion.codegen.emit.map import map_step
from vermilion.codegen.expression import (
    Apply,
    Constant,
    Convert,
    Element,
    Expression,
    Kind,
    Operand,
    apply,
)
from vermilion.codegen.lower.affine import Affine
from vermilion.codegen.lower.checks import check_divisor
from vermilion.codegen.lower.composed import COMPOSED, FUNCTIONS, WRAPPING, wrapped
from vermilion.codegen.lower.context import Lowering, operations_of
from vermilion.codegen.lower.groups import Group
from vermilion.codegen.lower.power import power
from vermilion.codegen.lower.quantized import QuantizedValues
from vermilion.codegen.tensor import Buffer, View, allocate
from vermilion.ir.attributes import number, text
from vermilion.ir.opset import constant_of, is_operator, static_shape

Build = Callable[[ir.Node, list[Expression]], Expression]


def _unary(operation: str) -> Build:
    return lambda node, a: apply(operation, a[0])


def _binary(operation: str) -> Build:
    return lambda node, a: apply(operation, a[0], a[1])


def _chain(operation: str) -> Build:
    def build(node: ir.Node, a: list[Expression]) -> Expression:
        result = a[0]
        for item in a[1:]:
            result = apply(operation, result, item)
        return result

    return build


def _add(node: ir.Node, a: list[Expression]) -> Expression:
    """Add; 1 + erf(x ÷ c), of which exporters make GELU, is one operation."""
    for one, other in (a, a[::-1]):
        if one == Constant(1.0) and isinstance(other, Apply) and other.operation == "erf":
            return apply("one_plus_erf", _times_inverse(other.arguments[0]))
    return apply("add", a[0], a[1])


def _times_inverse(x: Expression) -> Expression:
    """Return x ÷ c as a product."""
    if isinstance(x, Apply) and x.operation == "div" and isinstance(x.arguments[1], Constant):
        return apply("mul", x.arguments[0], Constant(1.0 / x.arguments[1].value))
    return x


def _mean(node: ir.Node, a: list[Expression]) -> Expression:
    return apply("mul", _chain("add")(node, a), Constant(1.0 / len(a)))


def _relu(node: ir.Node, a: list[Expression]) -> Expression:
    return apply("max", a[0], Constant(0.0, a[0].kind))


def _clip(node: ir.Node, a: list[Expression]) -> Expression:
    """Bound by inputs; by attributes before opset 11. Where they cross, the upper holds."""
    result = a[0]
    for name, operation in (("min", "max"), ("max", "min")):
        if name in node.attributes:
            result = apply(operation, result, Constant(number(node, name, 0.0)))
    if len(a) > 1 and node.inputs[1] is not None:
        result = apply("max", result, a[1])
    if len(a) > 2 and node.inputs[2] is not None:
        result = apply("min", result, a[2])
    return result


def _leaky_relu(node: ir.Node, a: list[Expression]) -> Expression:
    slope = Constant(number(node, "alpha", 0.01))
    return Apply("select", (apply("less", a[0], Constant(0.0)), apply("mul", a[0], slope), a[0]))


def _prelu(node: ir.Node, a: list[Expression]) -> Expression:
    return Apply("select", (apply("less", a[0], Constant(0.0)), apply("mul", a[0], a[1]), a[0]))


def _elu(node: ir.Node, a: list[Expression]) -> Expression:
    grown = apply("exp_minus_one", a[0])
    scaled = apply("mul", grown, Constant(number(node, "alpha", 1.0)))
    return Apply("select", (apply("less", a[0], Constant(0.0)), scaled, a[0]))


def _hard_sigmoid_of(x: Expression, alpha: float, beta: float) -> Expression:
    line = Apply("fma", (x, Constant(alpha), Constant(beta)))
    return apply("min", apply("max", line, Constant(0.0)), Constant(1.0))


def _hard_sigmoid(node: ir.Node, a: list[Expression]) -> Expression:
    return _hard_sigmoid_of(a[0], number(node, "alpha", 0.2), number(node, "beta", 0.5))


def _hard_swish(node: ir.Node, a: list[Expression]) -> Expression:
    return apply("mul", a[0], _hard_sigmoid_of(a[0], 1.0 / 6.0, 0.5))


def _gelu(node: ir.Node, a: list[Expression]) -> Expression:
    x = a[0]
    half = apply("mul", x, Constant(0.5))
    if text(node, "approximate", "none") == "tanh":
        cube = apply("mul", apply("mul", x, x), x)
        inner = apply("mul", Constant(math.sqrt(2.0 / math.pi)),
                      apply("add", x, apply("mul", Constant(0.044715), cube)))  # fmt: skip
        return apply("mul", half, apply("add", Constant(1.0), apply("tanh", inner)))
    inner = apply("mul", x, Constant(math.sqrt(0.5)))
    return apply("mul", half, apply("one_plus_erf", inner))


def _where(node: ir.Node, a: list[Expression]) -> Expression:
    return Apply("select", (a[0], a[1], a[2]), a[1].kind)


def _unreached(node: ir.Node, a: list[Expression]) -> Expression:
    raise AssertionError(f"{node.op_type} is written by `quantized`")


def _cast(node: ir.Node, a: list[Expression]) -> Expression:
    """Round where the type is narrower than the kind that it is computed in.

    What is float16 is computed in float32 and rounded when stored, and here: a Cast asks for it.
    """
    source, target = node.inputs[0], node.outputs[0].dtype
    x = a[0]
    if source is not None and source.dtype in _ROUNDINGS and not _is_stored(source, x):
        x = _rounded(_ROUNDINGS[source.dtype], x)
    if target in _ROUNDINGS:
        return _rounded(_ROUNDINGS[target], x if x.kind == "float" else Convert(x, "float"))
    return x  # `expression_of` converts every result to the kind of its type


_ROUNDINGS = {ir.DataType.BFLOAT16: "bf16", ir.DataType.FLOAT16: "f16"}


def _is_stored(value: ir.Value, x: Expression) -> bool:
    """Say whether an expression reads a tensor, not what a product has summed."""
    return isinstance(x, Operand) and not is_operator(
        value.producer(), "Conv", "ConvTranspose", "Gemm", "MatMul"
    )


def _rounded(operation: str, x: Expression) -> Expression:
    is_round = isinstance(x, Apply) and x.operation == operation
    return x if is_round else apply(operation, x)


ELEMENTWISE: Mapping[str, Build] = {
    "Add": _add, "Sub": _binary("sub"), "Mul": _binary("mul"), "Div": _binary("div"),
    "Max": _chain("max"), "Min": _chain("min"), "Sum": _chain("add"), "Mean": _mean,
    "Neg": _unary("neg"), "Abs": _unary("abs"), "Sqrt": _unary("sqrt"), "Exp": _unary("exp"),
    "Log": _unary("log"), "Tanh": _unary("tanh"), "Erf": _unary("erf"),
    "Sigmoid": _unary("sigmoid"), "Floor": _unary("floor"), "Ceil": _unary("ceil"),
    "Round": _unary("round"), "Reciprocal": _unary("reciprocal"), "Sign": _unary("sign"),
    "Softplus": _unary("softplus"), "Relu": _relu, "Clip": _clip, "LeakyRelu": _leaky_relu,
    "PRelu": _prelu, "Elu": _elu, "HardSigmoid": _hard_sigmoid, "HardSwish": _hard_swish,
    "Gelu": _gelu, "Where": _where, "Cast": _cast, "Not": _unary("not"),
    "And": _binary("and"), "Or": _binary("or"), "Xor": _binary("xor"),
    "Equal": _binary("equal"), "Less": _binary("less"), "LessOrEqual": _binary("less_equal"),
    "Greater": _binary("greater"), "GreaterOrEqual": _binary("greater_equal"),
    "QuantizeLinear": _unreached, "DequantizeLinear": _unreached, "Pow": power, **COMPOSED,
    **{name: _unary(name.lower()) for name in FUNCTIONS},
}  # fmt: skip


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
            result = ELEMENTWISE[producer.op_type](producer, arguments)
            result = result if result.kind == kind else Convert(result, kind)
            is_inside = producer is not self.group.root and producer.op_type in WRAPPING
            return wrapped(result, self.lowering.storage(value)) if is_inside else result
        kind = kind_of(self.lowering, value)
        constant = constant_of(value)
        if constant is not None and constant.size == 1:
            return Constant(constant.numpy().reshape(-1)[0].item(), kind)
        self.views.append(self.lowering.demand(value))
        return Operand(self._first + len(self.views) - 1, kind)


def emit_elementwise(lowering: Lowering, group: Group) -> None:
    """Write a group without an anchor as one loop nest."""
    value = group.root.outputs[0]
    build = GroupExpression(lowering, group, None)
    expression = build.of(value)
    nodes = [str(node.name) for node in group.nodes]
    order = layout_like(build.views, len(static_shape(value) or ()))
    output = lowering.output(value, order)
    # Planes that become pixels are computed as planes: vectors run along rows.
    planes = allocate(f"{value.name} as planes", output.storage, output.shape)
    is_woven = len(output.shape) == 4 and _are_planes(build.views)
    woven = interleave_step(planes, output, tuple(nodes[:1])) if is_woven else None
    target = output if woven is None else planes
    step = map_step(build.views, [target], [expression], nodes, operations_of(group.nodes))
    lowering.add(step)
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
    largest = max(same, key=lambda view: view.elements)
    axes = sorted(range(rank), key=lambda axis: (-largest.strides[axis] or -math.inf, axis))
    # A dimension of one element has no stride of its own: it stays where it is in row-major order.
    if any(largest.strides[a] == 0 and largest.shape[a] > 1 for a in range(rank)):
        return None
    return tuple(axes) if np.prod(largest.shape) > 1 else None
