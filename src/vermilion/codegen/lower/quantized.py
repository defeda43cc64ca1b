"""QuantizeLinear and DequantizeLinear: read, matched around products, written in expressions."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.lower.affine import (
    Affine,
    Factor,
    Term,
    added,
    multiplied,
    number,
    of_expression,
    quantized,
    written,
)
from vermilion.codegen.lower.context import STORAGE_OF, Lowering
from vermilion.codegen.lower.dequantized import dequantized_constant, quantized_constant
from vermilion.codegen.lower.groups import Group
from vermilion.codegen.tensor import View
from vermilion.ir.attributes import flag
from vermilion.ir.expression import Convert, Expression, Kind, apply
from vermilion.ir.opset import constant_of, is_operator, static_shape

Array = NDArray[Any]

RANGES: dict[str, tuple[int, int]] = {
    "u8": (0, 255),
    "s8": (-128, 127),
    "u16": (0, 65535),
    "s16": (-32768, 32767),
}


@dataclass(frozen=True)
class Grid:
    """The numbers that a quantized tensor can hold: `(q - zero) · scale`."""

    scale: float
    zero: int
    storage: str

    @property
    def limits(self) -> tuple[int, int]:
        """The integers less the zero point."""
        low, high = RANGES[self.storage]
        return low - self.zero, high - self.zero


def grid_of(node: ir.Node | None) -> Grid | None:
    """Return the grid of a QuantizeLinear or DequantizeLinear of one constant scale, else None."""
    if not is_operator(node, "QuantizeLinear", "DequantizeLinear") or node is None:
        return None
    scale = constant_of(node.inputs[1])
    side = node.outputs[0] if node.op_type == "QuantizeLinear" else node.inputs[0]
    if scale is None or scale.size != 1 or side is None or side.dtype is None:
        return None
    storage = STORAGE_OF.get(side.dtype, "")
    if storage not in RANGES and storage != "i32":
        return None
    zero = 0
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        if (point := constant_of(node.inputs[2])) is None:
            return None
        zero = int(point.numpy().reshape(-1)[0])
    return Grid(float(scale.numpy().astype(np.float32).reshape(-1)[0]), zero, storage)


def check_linear(node: ir.Node) -> str:
    """Say what keeps a QLinearConv or QLinearMatMul from being generated."""
    sizes = {
        at: tensor.size for at in (1, 2, 4, 5, 6, 7) if (tensor := constant_of(node.inputs[at]))
    }
    if len(sizes) < 6:
        return f"{node.op_type} with a scale that is not constant"
    has_constant = constant_of(node.inputs[3]) is not None
    if sizes[1] != 1 or sizes[6] != 1 or (sizes[4] != 1 and not has_constant):
        return f"{node.op_type} with a scale for each row"
    if node.op_type == "QLinearConv" and not has_constant:
        return "QLinearConv with weights that are not constant"
    return ""


@dataclass(frozen=True, eq=False)
class IntegerProduct:
    """A convolution or matrix product of 8-bit integers.

    `weights` have their channels first: (O, …). Its float result is
    `(Σ data·weights + initial) · factor + constant`.
    """

    node: ir.Node
    data: ir.Value
    grid: Grid
    weights: Array
    initial: Array
    factor: Factor
    constant: Factor


def integer_product(node: ir.Node) -> IntegerProduct | None:
    """Match DQ(8-bit), DQ(constant 8-bit weights) → Conv, Gemm, MatMul; None where it is not."""
    if not is_operator(node, "Conv", "Gemm", "MatMul") or node.inputs[1] is None:
        return None
    data = node.inputs[0]
    producer = None if data is None else data.producer()
    grid = grid_of(producer) if is_operator(producer, "DequantizeLinear") else None
    parts = quantized_constant(node.inputs[1])
    if grid is None or producer is None or parts is None or grid.storage not in ("u8", "s8"):
        return None
    weights, scale, axis = parts
    channels = channel_axis(node)
    if channels is None or weights.min() < -128 or weights.max() > 127:
        return None
    if scale.size > 1 and axis != channels:
        return None
    source = producer.inputs[0]
    if source is None or constant_of(source) is not None:
        return None
    if grid.storage == "s8":  # stored with its sign bit turned over
        grid = Grid(grid.scale, grid.zero + 128, "u8")
    first = np.moveaxis(weights, channels, 0)
    factor = np.float64(grid.scale) * scale.reshape(-1).astype(np.float64)
    factor = np.broadcast_to(factor, (first.shape[0],))
    initial = -grid.zero * first.reshape(first.shape[0], -1).sum(axis=1)
    found = bias_on_grid(node, factor, 2**30)
    if found is None:
        return None
    on_grid, constant = found
    initial = (initial + on_grid).astype(np.int64).astype(np.int32)
    if np.unique(factor).size == 1:
        factor = factor[0]
    return IntegerProduct(
        node, source, grid, first.astype(np.int8), initial, np.asarray(factor), constant
    )


def channel_axis(node: ir.Node) -> int | None:
    """Return the weights' axis of output channels, None where the product is not a plain one."""
    if node.op_type == "Conv":
        return 0
    if len(static_shape(node.inputs[1]) or ()) != 2:
        return None
    if node.op_type == "MatMul":
        return 1
    plain = {"alpha": 1.0, "beta": 1.0, "transA": 0}
    for name, wanted in plain.items():
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.value != wanted:
            return None
    return 0 if flag(node, "transB") else 1


def bias_on_grid(
    node: ir.Node, factor: Array, below: float = math.inf
) -> tuple[Array, Factor] | None:
    """Return the part of the bias that is a whole number of accumulator steps, and the rest.

    One of `below` steps or more is in the rest. None for a bias that is a matrix.
    """
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    nothing = np.zeros(factor.shape, np.int64)
    if bias is None:
        return nothing, number(0.0)
    if not is_one_a_channel(bias):
        return None
    parts = quantized_constant(bias)
    if parts is not None:
        integers, scale, _ = parts
        steps = scale.reshape(-1).astype(np.float64) / factor
        whole = np.rint(steps)
        # Scales are written as float32, so that a product of two is off by 2^-24 of itself.
        if (whole >= 1).all() and (np.abs(steps / np.maximum(whole, 1) - 1) < 1e-6).all():
            on_grid = integers.reshape(-1) * whole.astype(np.int64)
            if (np.abs(on_grid) < below).all():
                return np.broadcast_to(on_grid, factor.shape), number(0.0)
    floats = dequantized_constant(bias)
    if floats is None:
        return None
    return nothing, np.broadcast_to(floats.reshape(-1).astype(np.float64), factor.shape)


def is_one_a_channel(bias: ir.Value) -> bool:
    """Say whether a bias is one number, or one for each output channel: Gemm's may be a matrix."""
    shape = static_shape(bias)
    return shape is not None and all(size == 1 for size in shape[:-1])


class Builder(Protocol):
    """What builds the expression of a group: `elementwise.GroupExpression`."""

    lowering: Lowering
    group: Group

    def of(self, value: ir.Value) -> Expression:
        """Return the expression of a value inside or outside the group."""

    def operand(self, view: View) -> Expression:
        """Return the operand that stands for a tensor of float32."""

    def parameter(self, value: float, kind: Kind) -> Expression:
        """Return a number that kernels may differ in and still be one."""


class QuantizedValues:
    """The quantized values of one group: sums as `affine` has them, until they are written.

    `form` is what an integer product's accumulator stands for.
    """

    def __init__(self, build: Builder, form: Affine | None) -> None:
        self.build = build
        self.lowering = build.lowering
        self.group = build.group
        self._form = form
        self._forms: dict[ir.Value, Affine | None] = {}

    def of(self, value: ir.Value) -> Expression | None:
        """Return the expression of a quantized or dequantized value, None of any other."""
        node = value.producer()
        if node is not None and node in self.group.members and node.op_type == "QuantizeLinear":
            grid = grid_of(node)
            assert grid is not None, "a claimed QuantizeLinear has one constant scale"
            whole = Convert(self._rounded(node, grid), "int")
            return (
                apply("add", whole, self.build.parameter(grid.zero, "int")) if grid.zero else whole
            )
        form = self._form_of(value)
        return None if form is None else written(form, self._number, fused=False)

    def _form_of(self, value: ir.Value | None) -> Affine | None:
        """Return a value as a sum of quantized numbers, None where it is none."""
        if value is None:
            return None
        if value not in self._forms:
            self._forms[value] = self._find_form(value)
        return self._forms[value]

    def _find_form(self, value: ir.Value) -> Affine | None:
        node = value.producer()
        if node is None or constant_of(value) is not None:
            return None
        if node is self.group.anchor:
            return self._form
        if is_operator(node, "DequantizeLinear"):
            # A dequantized tensor is never read from memory: its integers are.
            if constant_of(node.inputs[0]) is not None:
                return None
            grid = grid_of(node)
            return None if grid is None else self._dequantized(node, grid)
        if node not in self.group.members:
            return None
        match node.op_type:
            case "Add" | "Sub":
                return self._sum(node)
            case "Mul" | "Div":
                return self._scaled(node)
            case "Relu" | "Clip":
                return self._bounded(node)
        return None

    def _dequantized(self, node: ir.Node, grid: Grid) -> Affine:
        source = node.inputs[0]
        assert source is not None
        maker = source.producer()
        if maker is not None and maker in self.group.members and maker.op_type == "QuantizeLinear":
            made = grid_of(maker)
            assert made is not None
            value = self._rounded(maker, made)
            shift = made.zero - grid.zero
            if shift:
                value = apply("add", value, self.build.parameter(shift, "float"))
        else:
            whole = self.build.of(source)
            if grid.zero:
                whole = apply("sub", whole, self.build.parameter(grid.zero, "int"))
            value = Convert(whole, "float")
        is_integer = grid.storage in ("u8", "s8")
        return Affine((Term(value, number(grid.scale), is_integer),), number(0.0))

    def _rounded(self, node: ir.Node, grid: Grid) -> Expression:
        value = node.inputs[0]
        assert value is not None
        form = self._form_of(value) or of_expression(self.build.of(value))
        return quantized(form, grid.scale, grid.limits, self._number)

    def _sum(self, node: ir.Node) -> Affine | None:
        a, b = node.inputs
        one, other = self._form_of(a), self._form_of(b)
        if one is None and other is None:
            return None
        one, other = self._addend(a, one), self._addend(b, other)
        return added(one, other.scaled(number(-1.0)) if node.op_type == "Sub" else other)

    def _addend(self, value: ir.Value | None, form: Affine | None) -> Affine:
        assert value is not None
        if form is None:
            constant = _scalar(value)
            if constant is not None:
                return Affine((), number(constant))
            return of_expression(self.build.of(value))
        return of_expression(written(form, self._number)) if form.is_bounded else form

    def _scaled(self, node: ir.Node) -> Affine | None:
        a, b = node.inputs
        one, other = self._form_of(a), self._form_of(b)
        if node.op_type == "Mul" and one is not None and other is not None:
            return None if one.is_bounded or other.is_bounded else multiplied(one, other)
        if node.op_type == "Mul" and one is None:
            one, b = other, a
        factor = None if b is None else _scalar(b)
        if one is None or factor is None or not factor > 0.0:
            return None
        return one.scaled(number(factor) if node.op_type == "Mul" else 1.0 / number(factor))

    def _bounded(self, node: ir.Node) -> Affine | None:
        form = self._form_of(node.inputs[0])
        if form is None:
            return None
        if node.op_type == "Relu":
            return form.bounded(0.0, np.inf)
        limits = [-np.inf, np.inf]
        for index, value in enumerate(node.inputs[1:3]):
            if value is not None:
                bound = _scalar(value)
                if bound is None:
                    return None
                limits[index] = bound
        return form.bounded(limits[0], limits[1])

    def _number(self, factor: Factor) -> Expression:
        """Return a factor as a float32 constant, or as an operand with one for each channel."""
        if factor.ndim == 0:
            return self.build.parameter(float(np.float32(factor)), "float")
        anchor = self.group.anchor
        assert anchor is not None, "only a product has a factor for each channel"
        array = factor.astype(np.float32)
        digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
        key = (str(anchor.name), str(anchor.outputs[0].name), digest)
        return self.build.operand(self.lowering.weight(key, lambda: array, "f32", by_channel=True))


def _scalar(value: ir.Value) -> float | None:
    """Return a constant of one number, dequantized where it is quantized, else None."""
    array = dequantized_constant(value)
    return float(array.reshape(-1)[0]) if array is not None and array.size == 1 else None
