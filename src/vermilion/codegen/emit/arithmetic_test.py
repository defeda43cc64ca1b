"""Loads, stores and expressions against numpy: every storage type, tail and operation."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import DTYPES, TARGETS, Memory, isa_for
from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE, Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.map import map_step
from vermilion.codegen.emit.values import Value, constant
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import STORAGE_BYTES, Storage, allocate
from vermilion.ir.expression import (
    Apply,
    Constant,
    Convert,
    Expression,
    Kind,
    Operand,
    apply,
)

Array = NDArray[Any]
How = Literal["side by side", "apart", "the same"]
STORAGES: tuple[Storage, ...] = (
    "f32", "bf16", "f16", "u8", "s8", "u16", "s16", "i32", "i64", "bool",
)  # fmt: skip
STRIDE = 3
A, B = Operand(0), Operand(1)


@dataclass(frozen=True)
class MoveSpec:
    """One vector from the first argument to the second; `count` lanes of it, 0: all, unmasked."""

    storage: Storage
    come: How
    go: How
    count: int
    counted: bool = False  # the number of lanes is not known when the code is written

    family = "move"
    units = 1

    def write(self, module: Module, name: str, isa: Isa) -> None:
        f = Function(module, name, [("args", "ptr"), ("begin", "i64"), ("end", "i64")])
        source, target = (f.load("ptr", f.arguments[0], at, align=8) for at in (0, 8))
        with f.when(f.compare("slt", f.arguments[1], f.arguments[2])):
            self._move(f, Arithmetic(f, isa.lanes), source, target)
        f.finish()

    def _move(self, f: Function, arithmetic: Arithmetic, source: Value, target: Value) -> None:
        mask = None
        if self.count:
            lanes = f.add(f.arguments[1], constant("i64", self.count)) if self.counted else 0
            mask = arithmetic.tail_mask(lanes or self.count)
        match self.come:
            case "side by side":
                value = arithmetic.load(self.storage, source, mask=mask)
            case "apart":
                value = arithmetic.load_strided(self.storage, source, STRIDE, mask=mask)
            case "the same":
                value = arithmetic.load_splat(self.storage, source)
        if self.go == "apart":
            every = mask or arithmetic.tail_mask(arithmetic.lanes)
            arithmetic.store_strided(self.storage, value, target, STRIDE, mask=every)
        else:
            arithmetic.store(self.storage, value, target, mask=mask)


def numbers(storage: Storage, count: int) -> Array:
    """Return numbers of a type: its smallest and largest among them."""
    random = np.random.default_rng(0)
    if storage == "bool":
        return random.integers(0, 2, count).astype(np.bool_)
    dtype = np.dtype(DTYPES[storage])
    if storage in ("f32", "bf16", "f16"):
        found = random.standard_normal(count).astype(dtype)
        found[: min(count, 4)] = np.array([np.inf, -np.inf, -0.0, np.nan], dtype)[:count]
        return np.asarray(found)
    info = np.iinfo(dtype)
    found = random.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    found[: min(count, 2)] = np.array([info.min, info.max], dtype)[:count]
    return np.asarray(found)


WAYS: tuple[tuple[How, How], ...] = (
    ("side by side", "side by side"), ("apart", "side by side"), ("side by side", "apart"),
    ("the same", "side by side"),
)  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("storage", STORAGES)
def test_a_vector_is_moved_bit_by_bit_and_nothing_beside_it(storage: Storage, target: str) -> None:
    isa = isa_for(target)
    lanes = isa.lanes
    tails = [(n, counted) for n in (1, 2, lanes // 2 + 1, lanes - 1) for counted in (False, True)]
    specs = [
        MoveSpec(storage, come, go, *tail) for come, go in WAYS for tail in [(0, False), *tails]
    ]
    memory, room, size = Memory(), lanes * STRIDE, STORAGE_BYTES[storage]
    source = memory.tensor("x", numbers(storage, room), storage)
    outs = [allocate(f"y{at}", storage, (room,)) for at in range(len(specs))]
    before = memory.bytes_of(outs[0])[: room * size].reshape(room, size).copy()
    memory.run([Step(s, (source, o), (o,)) for s, o in zip(specs, outs, strict=True)], isa)
    given = memory.bytes_of(source)[: room * size].reshape(room, size)
    for spec, out in zip(specs, outs, strict=True):
        found = memory.bytes_of(out)[: room * size].reshape(room, size)
        wanted = before.copy()
        come_at = {"side by side": 1, "apart": STRIDE, "the same": 0}[spec.come]
        go_at = STRIDE if spec.go == "apart" else 1
        for lane in range(spec.count or lanes):
            wanted[lane * go_at] = given[lane * come_at]
        _forget_the_bits_of_nan(wanted, storage)
        _forget_the_bits_of_nan(found, storage)
        assert np.array_equal(found, wanted), spec


def _forget_the_bits_of_nan(rows: Array, storage: Storage) -> None:
    if storage in ("bf16", "f16"):  # a conversion may set the sign or the quiet bit
        values = rows.view(DTYPES[storage])
        values[np.isnan(values.astype(np.float32))] = 0


@pytest.mark.parametrize("target", TARGETS)
def test_bfloat16_is_rounded_half_to_even(target: str) -> None:
    memory = Memory()
    bits = np.random.default_rng(0).integers(0, 2**32, 4096, dtype=np.uint32)
    bits[::2] = (bits[::2] & 0xFFFF0000) | 0x8000  # ties
    bits[:3] = 0x7F7FFFFF, 0xFF7FFFFF, 0x7FFFFFFF  # to infinity, and a NaN that must stay one
    x = bits.view(np.float32)
    # Numbers below the smallest normal one are zeros to the processor's own instruction.
    x = np.where(np.abs(x) < np.finfo(np.float32).tiny, np.float32(0), x)
    source, out = memory.tensor("x", x), allocate("y", "bf16", x.shape)
    memory.run([map_step([source], [out], [A])], isa_for(target))
    found = memory.array(out).astype(np.float32)
    with np.errstate(invalid="ignore"):
        wanted = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(np.isnan(found), np.isnan(x))
    assert np.array_equal(found[~np.isnan(x)], wanted[~np.isnan(x)])


def evaluated(
    expression: Expression, target: str, storage: Storage, *arrays: Array, out: Storage = "f32"
) -> Array:
    memory = Memory()
    views = [memory.tensor(f"x{i}", array, storage) for i, array in enumerate(arrays)]
    result = allocate("y", out, arrays[0].shape)
    memory.run([map_step(views, [result], [expression])], isa_for(target))
    return memory.array(result).copy()


def normal_cdf_times_two(x: Array) -> Array:
    return np.vectorize(lambda value: math.erfc(-value))(x)


UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "exp": np.exp, "log": np.log,
    "tanh": np.tanh, "erf": np.vectorize(math.erf), "one_plus_erf": normal_cdf_times_two,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "floor": np.floor, "ceil": np.ceil,
    "round": np.round, "reciprocal": np.reciprocal, "sign": np.sign,
    "softplus": lambda x: np.logaddexp(0, x),
    "bf16": lambda x: x.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64),
}  # fmt: skip
# Two and a half units in the last place, as the polynomials are held to; sums of two such, more.
CLOSE = 6e-7


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("operation", UNARY)
def test_a_function_of_one_float(operation: str, target: str) -> None:
    x = np.linspace(-9, 9, 1001, dtype=np.float32)  # halves and the zero are among them
    x = np.abs(x) + np.float32(1e-3) if operation in ("sqrt", "log", "reciprocal") else x
    found = evaluated(apply(operation, A), target, "f32", x)
    wanted = UNARY[operation](x.astype(np.float64))
    assert np.allclose(found, wanted, rtol=CLOSE, atol=1e-7)


BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum,
    "min": np.minimum,
}  # fmt: skip
COMPARISONS: dict[str, Callable[[Array, Array], Array]] = {
    "equal": np.equal, "less": np.less, "less_equal": np.less_equal, "greater": np.greater,
    "greater_equal": np.greater_equal,
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("storage", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("operation", [*BINARY, *COMPARISONS])
def test_a_function_of_two_floats(operation: str, storage: Storage, target: str) -> None:
    random = np.random.default_rng(0)
    x, y = (random.integers(1, 9, 77).astype(np.float32) * sign for sign in (1, -1))
    y[::2] *= -1
    is_comparison = operation in COMPARISONS
    found = evaluated(
        apply(operation, A, B), target, storage, x, y, out="bool" if is_comparison else "f32"
    )
    wanted = (COMPARISONS | BINARY)[operation](x, y)
    assert np.array_equal(found, wanted)


def test_no_comparison_holds_for_nan() -> None:
    x = np.array([np.nan, 1.0, np.nan], np.float32)
    y = np.array([np.nan, np.nan, 1.0], np.float32)
    for operation in COMPARISONS:
        assert not evaluated(apply(operation, A, B), "cpu", "f32", x, y, out="bool").any()


@pytest.mark.parametrize("target", TARGETS)
def test_powers_products_and_choices(target: str) -> None:
    x = np.linspace(0.1, 5, 99, dtype=np.float32)
    y = np.linspace(-2, 2, 99, dtype=np.float32)
    found = evaluated(apply("pow", A, B), target, "f32", x, y)
    assert np.allclose(found, x.astype(np.float64) ** y, rtol=4e-6)
    found = evaluated(apply("fma", A, B, Constant(3.0)), target, "f32", x, y)
    assert np.array_equal(found, (x.astype(np.float64) * y + 3.0).astype(np.float32))
    chosen = Apply("select", (apply("less", A, B), A, B))
    assert np.array_equal(evaluated(chosen, target, "f32", x, y), np.where(x < y, x, y))


INTEGERS: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("storage", ["i32", "i64"])
@pytest.mark.parametrize("operation", [*INTEGERS, *COMPARISONS])
def test_a_function_of_two_integers(operation: str, storage: Storage, target: str) -> None:
    x, y = numbers(storage, 50), np.roll(numbers(storage, 50), 7)
    y[10:20] = x[10:20]
    kind = KIND_OF_STORAGE[storage]
    is_comparison = operation in COMPARISONS
    result: Kind = "bool" if is_comparison else kind
    expression = Apply(operation, (Operand(0, kind), Operand(1, kind)), result)
    found = evaluated(expression, target, storage, x, y, out="bool" if is_comparison else storage)
    with np.errstate(over="ignore"):
        assert np.array_equal(found, (COMPARISONS | INTEGERS)[operation](x, y))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("storage", ["i32", "i64"])
def test_a_function_of_one_integer(storage: Storage, target: str) -> None:
    x, kind = numbers(storage, 50), KIND_OF_STORAGE[storage]
    for operation, wanted in (("neg", np.negative), ("abs", np.abs), ("not", np.invert)):
        expression = Apply(operation, (Operand(0, kind),), kind)
        with np.errstate(over="ignore"):
            assert np.array_equal(evaluated(expression, target, storage, x, out=storage), wanted(x))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("storage", ["i32", "i64", "u8", "s8", "u16", "s16"])
@pytest.mark.parametrize("operation", ["div", "mod"])
def test_integers_divide_towards_zero_and_never_trap(
    operation: str, storage: Storage, target: str
) -> None:
    info, kind = np.iinfo(DTYPES[storage]), KIND_OF_STORAGE[storage]
    special = [info.min, info.min + 1, -7, -1, 0, 1, 2, 7, info.max]
    values = np.array([v for v in special if info.min <= v <= info.max], DTYPES[storage])
    x, y = (a.ravel().copy() for a in np.meshgrid(values, values))
    expression = Apply(operation, (Operand(0, kind), Operand(1, kind)), kind)
    found = evaluated(expression, target, storage, x, y, out=storage)

    def exact(a: int, b: int) -> int:
        quotient = 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
        if operation == "div":
            return quotient
        return 0 if b == 0 else a - quotient * b

    wanted = [exact(int(a), int(b)) for a, b in zip(x, y, strict=True)]
    # Of all quotients only the lowest number by -1 does not fit: it is itself again.
    wrapped = [info.min if value > info.max else value for value in wanted]
    assert found.tolist() == wrapped


CONVERSIONS: tuple[tuple[Storage, Storage], ...] = (
    ("f32", "i32"), ("f32", "i64"), ("f32", "bool"), ("i32", "f32"), ("i64", "f32"),
    ("i32", "i64"), ("i64", "i32"), ("i32", "bool"), ("i64", "bool"), ("bool", "f32"),
    ("bool", "i32"), ("bool", "i64"), ("u8", "f32"), ("s8", "i64"), ("u16", "f32"),
)  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("source", "result"), CONVERSIONS)
def test_a_number_in_another_kind(source: Storage, result: Storage, target: str) -> None:
    x = np.arange(-30, 31) if source not in ("u8", "u16", "bool") else np.arange(61)
    x = (x % 2 if source == "bool" else x).astype(DTYPES[source])
    if source == "f32":
        x = x + np.float32(0.75)  # towards zero, from both sides
        x[0] = 0.0
    expression = Convert(Operand(0, KIND_OF_STORAGE[source]), KIND_OF_STORAGE[result])
    found = evaluated(expression, target, source, x, out=result)
    assert np.array_equal(found, x.astype(DTYPES[result]))


@pytest.mark.parametrize("target", TARGETS)
def test_rounding_to_integers_is_half_to_even(target: str) -> None:
    x = np.arange(-40, 41, dtype=np.float32) / 4
    found = evaluated(Convert(apply("round", A), "int"), target, "f32", x, out="i32")
    assert np.array_equal(found, np.rint(x))


def test_equal_parts_are_written_once() -> None:
    def lines(expression: Expression) -> int:
        module = Module()
        f = Function(module, "f", [("x", "ptr")])
        arithmetic = Arithmetic(f, 8)
        value = arithmetic.load("f32", f.arguments[0])
        arithmetic.evaluate(expression, lambda index: value)
        f.finish()
        return len(f.text().splitlines())

    once, twice = apply("exp", A), apply("add", apply("exp", A), apply("exp", A))
    assert lines(twice) == lines(once) + 1
