"""What the builder writes, compiled and called: loops, choices, integers, memory, constants."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np
import pytest

from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.values import (
    Index,
    Value,
    constant,
    float_constant,
    splat_constant,
    splat_integer,
)
from vermilion.codegen.isa import isa_of
from vermilion.codegen.load import load_functions
from vermilion.codegen.object import compile_object
from vermilion.hardware.targets.find import find_target

ISA = isa_of(find_target("cpu"))
Body = Callable[[Function, Value, Value], Index]


def called(body: Body, a: int = 0, b: int = 0) -> int:
    """Compile `body`, which gives an i64 of two, and call it."""
    module = Module()
    f = Function(module, "f", [("a", "i64"), ("b", "i64")], result="i64")
    f.finish(f.index(body(f, *f.arguments)))
    module.export("f")
    kinds = {"f": ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)}
    return int(load_functions(compile_object(module.text(), ISA), kinds, ISA)["f"](a, b))


@pytest.mark.parametrize(
    ("start", "stop", "step"), [(0, 10, 1), (3, 10, 3), (0, 9, 3), (5, 5, 1), (7, 2, 1), (-4, 4, 2)]
)
def test_a_loop_visits_what_range_does(start: int, stop: int, step: int) -> None:
    def body(f: Function, a: Value, b: Value) -> Value:
        total = f.slot(constant("i64", 0))
        with f.loop(a, b, step) as at:
            total.set(f.add(f.multiply(total.get(), 31), at))
        return total.get()

    wanted = 0
    for at in range(start, stop, step):
        wanted = wanted * 31 + at
    assert called(body, start, stop) == wanted


def test_loops_and_choices_nest() -> None:
    def body(f: Function, a: Value, b: Value) -> Value:
        total = f.slot(constant("i64", 0))
        with f.loop(0, a) as i, f.loop(0, b) as j, f.when(f.compare("slt", i, j)):
            total.set(f.add(total.get(), 1))
        return total.get()

    assert called(body, 7, 5) == sum(i < j for i in range(7) for j in range(5))


@pytest.mark.parametrize("a", [0, 1, 7, 12345])
@pytest.mark.parametrize("b", [1, 2, 7, 64])
def test_integer_arithmetic_with_and_without_constants(a: int, b: int) -> None:
    assert called(lambda f, x, _: f.divide(x, b), a) == a // b
    assert called(lambda f, x, _: f.remainder(x, b), a) == a % b
    assert called(lambda f, x, _: f.multiply(x, b), a) == a * b
    assert called(lambda f, x, _: f.multiply(b, x), a) == a * b
    assert called(lambda f, x, _: f.add(b, x), a) == a + b
    assert called(lambda f, x, y: f.subtract(x, y), a, b) == a - b
    assert called(lambda f, x, y: f.minimum(x, y), a, b) == min(a, b)
    assert called(lambda f, x, y: f.minimum(x, b), a) == min(a, b)


def test_what_is_known_is_folded_and_writes_nothing() -> None:
    f = Function(Module(), "f", [("a", "i64")])
    a = f.arguments[0]
    assert f.add(3, 4) == constant("i64", 7)
    assert f.multiply(3, 4) == constant("i64", 12)
    assert (f.add(a, 0), f.add(0, a), f.multiply(a, 1), f.multiply(1, a)) == (a, a, a, a)
    assert f.multiply(a, 0) == constant("i64", 0)
    assert (f.divide(a, 1), f.remainder(a, 1)) == (a, constant("i64", 0))
    pointer = Value("ptr", "%p")
    assert f.at(pointer, 0) == pointer
    f.finish()
    assert len(f.text().splitlines()) == 4, "head, entry, return, end"


@pytest.mark.parametrize(
    "number", [0.0, -0.0, 1.0, 0.1, -1e-45, 3.4e38, math.inf, -math.inf, math.nan, 2.0**-126]
)
def test_a_float_constant_is_exact(number: float) -> None:
    def body(f: Function, a: Value, b: Value) -> Value:
        slot = f.slot(float_constant(number))
        bits = f.convert("bitcast", slot.get(), "i32")
        return f.convert("zext", bits, "i64")

    assert called(body) == int(np.array(number, np.float32).view(np.uint32))


def test_vector_constants_have_the_number_in_every_lane() -> None:
    assert splat_integer(-3, 4).name == "<i32 -3, i32 -3, i32 -3, i32 -3>"
    assert splat_integer(1, 2, "i64") == Value("<2 x i64>", "<i64 1, i64 1>")
    assert splat_constant(1.0, 8).type == "<8 x float>"

    def body(f: Function, a: Value, b: Value) -> Value:
        doubled = f.binary("add", splat_integer(20, 8), splat_integer(1, 8))
        mask = f.compare("eq", doubled, splat_integer(21, 8))
        chosen = f.select(mask, doubled, splat_integer(0, 8))
        total = f.intrinsic("llvm.vector.reduce.add.v8i32", "i32", [chosen])
        return f.convert("sext", total, "i64")

    assert called(body) == 8 * 21


def test_memory_is_read_where_it_was_written() -> None:
    def body(f: Function, a: Value, b: Value) -> Value:
        place = f.scratch(64)
        with f.loop(0, 8) as at:
            f.store(f.multiply(at, at), f.at(place, f.multiply(at, 8)))
        f.store(a, place, 24)
        return f.add(f.load("i64", place, f.multiply(b, 8)), f.load("i64", place, 24, align=8))

    assert called(body, 100, 5) == 25 + 100


def test_a_repeated_body_ends_where_it_jumps_out() -> None:
    """The steps of the Collatz sequence of `a`, at most `b`."""

    def body(f: Function, a: Value, b: Value) -> Value:
        number, steps = f.slot(a), f.slot(constant("i64", 0))
        with f.repeat() as (again, done):
            with f.when(f.compare("eq", number.get(), constant("i64", 1))):
                f.jump(done)
            with f.when(f.compare("sge", steps.get(), b)):
                f.leave(constant("i64", -1))
            steps.set(f.add(steps.get(), 1))
            is_odd = f.convert("trunc", number.get(), "i1")
            with f.when(is_odd, holds=False):
                number.set(f.divide(number.get(), 2))
                f.jump(again)
            number.set(f.add(f.multiply(number.get(), 3), 1))
        return steps.get()

    assert [called(body, number, 200) for number in (1, 2, 3, 27)] == [0, 1, 7, 111]
    assert called(body, 27, 110) == -1


def test_the_rest_of_a_section_is_left_out() -> None:
    def body(f: Function, a: Value, b: Value) -> Value:
        found = f.slot(a)
        with f.section() as done:
            with f.when(f.compare("slt", a, b)):
                f.jump(done)
            found.set(b)
        return found.get()

    assert (called(body, 3, 5), called(body, 7, 5)) == (3, 5)


def test_an_exchange_is_made_once() -> None:
    def body(f: Function, a: Value, b: Value) -> Value:
        place = f.scratch(64)
        f.atomic_store(a, place, 8)
        one, two = (f.compare_exchange(f.at(place, 8), a, b) for _ in range(2))
        f.pause()
        won = f.add(f.convert("zext", one, "i64"), f.convert("zext", two, "i64"))
        return f.add(f.multiply(won, 1000), f.atomic_load("i64", place, 8))

    assert called(body, 3, 5) == 1005


def test_constants_lie_side_by_side() -> None:
    def body(f: Function, a: Value, b: Value) -> Value:
        f.module.add_constants("table", [constant("i64", n * n) for n in range(8)])
        return f.load("i64", Value("ptr", "@table"), f.multiply(a, 8))

    assert called(body, 5) == 25


def test_a_function_is_called_by_its_address() -> None:
    module = Module()
    inner = Function(module, "inner", [("at", "ptr"), ("x", "i64")])
    inner.store(inner.multiply(inner.arguments[1], 3), inner.arguments[0])
    inner.finish()
    outer = Function(module, "f", [("a", "i64")], result="i64", internal=False)
    place = outer.scratch(8)
    outer.call_pointer(Value("ptr", "@inner"), [place, outer.arguments[0]])
    outer.finish(outer.load("i64", place))
    kinds = {"f": ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)}
    assert load_functions(compile_object(module.text(), ISA), kinds, ISA)["f"](14) == 42


def test_a_function_calls_another_of_its_module() -> None:
    module = Module()
    inner = Function(module, "inner", [("x", "i64")], result="i64")
    inner.finish(inner.multiply(inner.arguments[0], 3))
    assert module.has("inner")
    assert not module.has("outer")
    other = Module()
    outer = Function(other, "outer", [("a", "i64")], result="i64")
    outer.finish(outer.call("inner", "i64", [outer.arguments[0]]))
    other.export("outer")
    module.include(other)
    text = module.text()
    assert "define internal i64 @inner" in text
    assert "define i64 @outer" in text
    kinds = {"outer": ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)}
    assert load_functions(compile_object(text, ISA), kinds, ISA)["outer"](14) == 42


def test_a_function_is_written_once_a_name_and_only_when_it_ends() -> None:
    module = Module()
    for factor in (2, 3):
        f = Function(module, "f", [("x", "i64")], result="i64")
        f.finish(f.multiply(f.arguments[0], factor))
    assert module.text().count("@f(") == 1
    assert "mul i64 %x, 3" in module.text()
    open_one = Function(module, "g", [])
    with pytest.raises(AssertionError, match="g is not finished"):
        open_one.text()


def test_what_is_wrong_is_told_by_llvm() -> None:
    module = Module()
    f = Function(module, "f", [("x", "i64")], result="i64")
    f.finish(f.emit("i64", "add i64 %x, %missing"))
    with pytest.raises(RuntimeError, match="missing"):
        llvm.parse_assembly(module.text())
