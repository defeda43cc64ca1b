"""What happens to one row of activations between two products, in one pass over it.

A residual sum or a gated activation, then a root mean square norm, then the forms in which the
next products read the row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout, write_prepared
from vermilion.codegen.emit.decoder.control import Control
from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.codegen.emit.values import Value
from vermilion.codegen.emit.vector_math import VectorMath
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa

Source = Literal["plain", "sum", "silu", "gelu", "gelu_tanh", "relu_squared", "clamped_silu"]
# Divided by the root of the mean square, or with the mean taken off before.
NormKind = Literal["rms", "layer"]
# Of gpt-oss: what a gate's sigmoid is steepened by, and within what both inputs are held (openai's
# `gpt_oss/torch/model.py`; transformers 5.24, `swiglu_alpha` and `swiglu_limit`).
CLAMPED_SLOPE, CLAMPED_BOUND = 1.702, 7.0
_SQRT_HALF, _SQRT_TWO_OVER_PI = 0.7071067811865476, 0.7978845608028654


@dataclass(frozen=True)
class RowSpec:
    """One row: `source` of the inputs, kept as it is if wanted, normed, written for products.

    `in_rows` are the numbers from one row to the next of the one or two inputs, `keep_row` and
    `out_row` those of the outputs, 0 for none. An activation of one input gates nothing. `factor`
    is what the second input of a sum is multiplied with. Arguments: control, inputs, kept, norm
    weight, norm bias, float32 result, prepared results; only those that are there.
    """

    source: Source
    width: int
    in_rows: tuple[int, ...]
    keep_row: int
    epsilon: float | None
    out_row: int
    forms: tuple[ActivationLayout, ...]
    max_rows: int
    norm: NormKind = "rms"
    has_norm_bias: bool = False
    factor: float = 1.0

    family = "row"

    @property
    def units(self) -> int:
        """One unit a row."""
        return self.max_rows

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        assert self.width % LANES == 0, "rows are whole vectors"
        there = 1 + len(self.in_rows) + bool(self.keep_row) + (self.epsilon is not None)
        there += self.has_norm_bias + bool(self.out_row) + len(self.forms)
        f, pointers, (begin, end) = begin_kernel(module, name, there)
        padded = max([self.width, *(form.blocks * form.block for form in self.forms)])
        work = f.scratch(padded * 4)
        arithmetic = Arithmetic(f, LANES)
        zero = Value(arithmetic.type("float"), "zeroinitializer")
        for at in range(self.width, padded, LANES):
            arithmetic.store("f32", zero, f.at(work, at * 4))
        control = Control(f, pointers[0])
        with f.loop(*control.share(begin, end, self.units, control.rows)) as row:
            _Row(self, f, arithmetic, work, row, pointers[1:]).write()
        f.finish()


class _Row:
    def __init__(
        self,
        spec: RowSpec,
        f: Function,
        arithmetic: Arithmetic,
        work: Value,
        row: Value,
        pointers: list[Value],
    ) -> None:
        self.spec = spec
        self.f = f
        self.arithmetic = arithmetic
        self.work = work
        rest = iter(pointers)
        self.inputs = [f.at(next(rest), f.multiply(row, 4 * step)) for step in spec.in_rows]
        self.kept = f.at(next(rest), f.multiply(row, 4 * spec.keep_row)) if spec.keep_row else None
        self.norm = next(rest) if spec.epsilon is not None else None
        self.norm_bias = next(rest) if spec.has_norm_bias else None
        self.out = f.at(next(rest), f.multiply(row, 4 * spec.out_row)) if spec.out_row else None
        self.prepared = [f.at(next(rest), f.multiply(row, form.row_bytes)) for form in spec.forms]

    def write(self) -> None:
        """Write the passes over the row."""
        s, f, m = self.spec, self.f, self.arithmetic.math
        squares = f.slot(Value(m.type, "zeroinitializer"))
        with f.loop(0, s.width, LANES) as at:
            place = f.multiply(at, 4)
            value = source_value(
                m, s.source, [self.arithmetic.load("f32", f.at(x, place)) for x in self.inputs],
                factor=s.factor,
            )  # fmt: skip
            if self.kept is not None:
                self.arithmetic.store("f32", value, f.at(self.kept, place))
            if self.norm is not None:
                one = value if s.norm == "rms" else m.number(1.0)
                squares.set(m.fma(value, one, squares.get()))
            elif self.out is not None:
                self.arithmetic.store("f32", value, f.at(self.out, place))
            self.arithmetic.store("f32", value, f.at(self.work, place))
        if self.norm is not None:
            total = squares.get() if s.norm == "rms" else self._centre(squares.get())
            self._normalize(total, self.norm)
        for form, target in zip(s.forms, self.prepared, strict=True):
            write_prepared(f, self.arithmetic, form, self.work, target)

    def _centre(self, sums: Value) -> Value:
        """Take the mean off; return the squares of what is left, added up by lane."""
        s, f, m = self.spec, self.f, self.arithmetic.math
        mean = m.multiply(self.arithmetic.splat(lanes_sum(f, sums)), m.number(1.0 / s.width))
        squares = f.slot(Value(m.type, "zeroinitializer"))
        with f.loop(0, s.width, LANES) as at:
            place = f.at(self.work, f.multiply(at, 4))
            value = m.subtract(self.arithmetic.load("f32", place), mean)
            squares.set(m.fma(value, value, squares.get()))
            self.arithmetic.store("f32", value, place)
        return squares.get()

    def _normalize(self, squares: Value, weight: Value) -> None:
        s, f, m = self.spec, self.f, self.arithmetic.math
        factor = root_mean_square_factor(self.arithmetic, squares, s.width, s.epsilon or 0.0)
        with f.loop(0, s.width, LANES) as at:
            place = f.multiply(at, 4)
            value = m.multiply(self.arithmetic.load("f32", f.at(self.work, place)), factor)
            value = m.multiply(value, self.arithmetic.load("f32", f.at(weight, place)))
            if self.norm_bias is not None:
                value = m.add(value, self.arithmetic.load("f32", f.at(self.norm_bias, place)))
            self.arithmetic.store("f32", value, f.at(self.work, place))
            if self.out is not None:
                self.arithmetic.store("f32", value, f.at(self.out, place))


def root_mean_square_factor(
    arithmetic: Arithmetic, squares: Value, width: int, epsilon: float
) -> Value:
    """Return 1 ÷ √(mean of squares + epsilon) in every lane, of sums of squares by lane."""
    f, m = arithmetic.f, arithmetic.math
    total = lanes_sum(f, squares)
    mean = m.multiply(arithmetic.splat(total), m.number(1.0 / width))
    root = m.unary("sqrt", m.add(mean, m.number(epsilon)))
    return m.divide(m.number(1.0), root)


def lanes_sum(f: Function, value: Value) -> Value:
    """Add up the lanes, in any order: an instruction a halving, not a chain of sixteen."""
    name = f.module.declare(f"llvm.vector.reduce.fadd.v{LANES}f32", "float", ["float", value.type])
    return f.emit("float", f"call reassoc float @{name}(float 0.0, {value})")


def source_value(
    m: VectorMath,
    source: Source,
    inputs: list[Value],
    *,
    is_coarse: bool = False,
    factor: float = 1.0,
) -> Value:
    """Return what a row begins with; `is_coarse` for what is rounded to bfloat16."""
    first = inputs[0]
    match source:
        case "plain":
            return first
        case "sum":
            if factor != 1.0:
                return m.fma(inputs[1], m.number(factor), first)
            return m.add(first, inputs[1])
        case "silu":
            share = m.sigmoid_coarse(first) if is_coarse else m.sigmoid(first)
            gated = m.multiply(first, share)
        case "gelu":
            inner = m.erf(m.multiply(first, m.number(_SQRT_HALF)))
            gated = m.multiply(m.multiply(first, m.number(0.5)), m.add(inner, m.number(1.0)))
        case "gelu_tanh":
            cube = m.multiply(m.multiply(first, first), first)
            inner = m.multiply(m.fma(cube, m.number(0.044715), first), m.number(_SQRT_TWO_OVER_PI))
            half = m.multiply(first, m.number(0.5))
            gated = m.multiply(half, m.add(m.tanh(inner), m.number(1.0)))
        case "relu_squared":
            above = m.maximum(first, m.number(0.0))
            gated = m.multiply(above, above)
        case "clamped_silu":
            gate = m.minimum(first, m.number(CLAMPED_BOUND))
            steep = m.multiply(gate, m.number(CLAMPED_SLOPE))
            gated = m.multiply(gate, m.sigmoid_coarse(steep) if is_coarse else m.sigmoid(steep))
            up = m.minimum(m.maximum(inputs[1], m.number(-CLAMPED_BOUND)), m.number(CLAMPED_BOUND))
            return m.multiply(gated, m.add(up, m.number(1.0)))
    return m.multiply(gated, inputs[1]) if len(inputs) > 1 else gated
