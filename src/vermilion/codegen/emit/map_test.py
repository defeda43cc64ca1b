"""Elementwise kernels over every kind of view, and how dimensions are merged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import DTYPES, TARGETS, Memory, isa_for
from vermilion.codegen.emit.map import collapse, map_step
from vermilion.codegen.tensor import Storage, allocate
from vermilion.ir.expression import Apply, Constant, Convert, Expression, Operand, apply

A, B = Operand(0), Operand(1)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [1, 7, 16, 33, 4096, 9000])
def test_one_long_row(size: int, target: str) -> None:
    memory = Memory()
    x = np.linspace(-3, 3, size, dtype=np.float32)
    view, out = memory.tensor("x", x), allocate("y", "f32", (size,))
    memory.run([map_step([view], [out], [apply("max", A, Constant(0.5))])], isa_for(target))
    assert np.array_equal(memory.array(out), np.maximum(x, 0.5))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2)])
def test_operands_and_results_in_any_order(order: tuple[int, ...], target: str) -> None:
    memory = Memory()
    random = np.random.default_rng(0)
    x, y = random.standard_normal((2, 2, 5, 3, 19), dtype=np.float32)
    a, b = memory.tensor("a", x, order=order), memory.tensor("b", y)
    out = allocate("y", "f32", x.shape, (0, 2, 3, 1))
    memory.run([map_step([a, b], [out], [apply("sub", A, B)])], isa_for(target))
    assert np.array_equal(memory.array(out), x - y)


@pytest.mark.parametrize("target", TARGETS)
def test_slices_backwards_and_with_gaps(target: str) -> None:
    memory = Memory()
    x = np.arange(200, dtype=np.float32).reshape(10, 20)
    view = memory.tensor("x", x)
    backwards = view.sliced(1, 19, 20, -1)
    spaced = view.sliced(0, 1, 5, 2)
    out = allocate("y", "f32", (5, 40))
    places = [out.sliced(1, 0, 20), out.sliced(1, 20, 20)]
    steps = [
        map_step([spaced], [places[0]], [A]),
        map_step([backwards.sliced(0, 0, 5)], [places[1]], [A]),
    ]
    memory.run(steps, isa_for(target))
    assert np.array_equal(memory.array(out), np.concatenate([x[1::2], x[:5, ::-1]], 1))


def test_several_results_of_one_walk() -> None:
    memory = Memory()
    x = np.arange(50, dtype=np.float32)
    view = memory.tensor("x", x)
    outs = [allocate("sum", "f32", (50,)), allocate("flag", "bool", (50,))]
    expressions: list[Expression] = [apply("add", A, A), apply("greater", A, Constant(20.0))]
    memory.run([map_step([view], outs, expressions)], isa_for("cpu"))
    assert np.array_equal(memory.array(outs[0]), x + x)
    assert np.array_equal(memory.array(outs[1]), x > 20)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("storage", ["bf16", "f16", "u8", "s8", "u16", "s16", "i32", "i64", "bool"])
def test_every_storage_type_is_read_and_written(storage: Storage, target: str) -> None:
    memory = Memory()
    values: Any = np.arange(-20, 27) if storage not in ("u8", "u16") else np.arange(47)
    values = values % 2 == 0 if storage == "bool" else values
    view, out = memory.tensor("x", values, storage), allocate("y", storage, (47,))
    from vermilion.codegen.emit.arithmetic import KIND_OF_STORAGE

    kind = KIND_OF_STORAGE[storage]
    floats = Convert(Operand(0, kind), "float") if kind != "float" else Operand(0)
    back = Convert(floats, kind) if kind != "float" else floats
    wide = allocate("f", "f32", (47,))
    memory.run(
        [map_step([view], [out], [back]), map_step([view], [wide], [floats])], isa_for(target)
    )
    assert np.array_equal(memory.array(out), values.astype(DTYPES[storage]))
    assert np.array_equal(memory.array(wide), values.astype(np.float32))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("storage", ["i32", "i64"])
def test_integers_divide_as_c_does_and_never_trap(storage: Storage, target: str) -> None:
    memory = Memory()
    lowest = np.iinfo(DTYPES[storage]).min
    x = np.array([7, -7, 7, -7, lowest, 5, 9], DTYPES[storage])
    y = np.array([2, 2, -2, -2, -1, 0, 9], DTYPES[storage])
    a, b = memory.tensor("a", x, storage), memory.tensor("b", y, storage)
    kind = "int" if storage == "i32" else "long"
    quotient, rest = (
        Apply(op, (Operand(0, kind), Operand(1, kind)), kind)  # type: ignore[arg-type]
        for op in ("div", "mod")
    )
    outs = [allocate(name, storage, (7,)) for name in ("q", "r")]
    memory.run([map_step([a, b], outs, [quotient, rest])], isa_for(target))
    assert memory.array(outs[0])[[0, 1, 2, 3, 6]].tolist() == [3, -3, -3, 3, 1]
    assert memory.array(outs[1])[[0, 1, 2, 3, 6]].tolist() == [1, -1, 1, -1, 0]


def test_dimensions_that_lie_side_by_side_are_one() -> None:
    assert collapse((2, 3, 4), [(12, 4, 1), (12, 4, 1)], 1) == [(24, (1, 1))]
    # A repeated row keeps its dimension apart.
    assert collapse((2, 12), [(0, 1), (12, 1)], 1) == [(2, (0, 12)), (12, (1, 1))]
    # The output's densest dimension comes last, whatever the order of names.
    assert collapse((12, 16), [(16, 1), (1, 12)], 1) == [(16, (1, 12)), (12, (16, 1))]
    assert collapse((1, 1), [(5, 5)], 0) == [(1, (0,))]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.randoms())
def test_merging_visits_every_element_once(shape: list[int], random: Any) -> None:
    order = list(range(len(shape)))
    random.shuffle(order)
    a, b = allocate("a", "f32", shape), allocate("b", "f32", shape, order)
    dims = collapse(shape, [a.strides, b.strides], 1)
    pairs = [(0, 0)]
    for size, (one, other) in dims:
        pairs = [(p + i * one, q + i * other) for p, q in pairs for i in range(size)]
    wanted = [
        (sum(i * s for i, s in zip(at, a.strides, strict=True)),
         sum(i * s for i, s in zip(at, b.strides, strict=True)))
        for at in np.ndindex(*shape)
    ]  # fmt: skip
    assert sorted(pairs) == sorted(wanted)
