"""Kernels that walk along a dimension: places of extremes, running sums, picked elements."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest

from kernels import TARGETS, Memory, isa_for
from vermilion.codegen.emit.argmax import ExtremePlaceSpec
from vermilion.codegen.emit.gather import PickSpec
from vermilion.codegen.emit.scan import ScanSpec
from vermilion.codegen.emit.top import TopSpec
from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import Storage, allocate


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("storage", ["f32", "bf16", "i32", "i64", "u8"])
@pytest.mark.parametrize("takes_last", [False, True], ids=["first", "last"])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("operation", ["max", "min"])
@pytest.mark.parametrize("shape", [(6, 100), (40, 5), (1, 16), (33, 1)])
def test_the_place_of_an_extreme(
    shape: tuple[int, int], operation: Literal["max", "min"], axis: int, takes_last: bool,
    storage: Storage, target: str,
) -> None:  # fmt: skip
    memory, isa = Memory(), isa_for(target)
    x = np.random.default_rng(0).integers(0, 9, shape)
    source = memory.tensor("x", x, storage)
    kept, size = shape[1 - axis], shape[axis]
    out = allocate("y", "i64", (kept,))
    spec = ExtremePlaceSpec(
        operation, storage, ((kept, (source.strides[1 - axis], 1)),), size, source.strides[axis],
        takes_last, isa.lanes,
    )  # fmt: skip
    memory.run([Step(spec, (source, out), (out,))], isa)
    find: Any = np.argmax if operation == "max" else np.argmin
    wanted = size - 1 - find(np.flip(x, axis), axis) if takes_last else find(x, axis)
    assert np.array_equal(memory.array(out), wanted)


@pytest.mark.parametrize("takes_last", [False, True], ids=["first", "last"])
def test_a_row_of_infinities_has_a_place(takes_last: bool) -> None:
    memory, isa = Memory(), isa_for("cpu")
    source = memory.tensor("x", np.full((1, 40), -np.inf))
    out = allocate("y", "i64", (1,))
    spec = ExtremePlaceSpec("max", "f32", ((1, (40, 1)),), 40, 1, takes_last, isa.lanes)
    memory.run([Step(spec, (source, out), (out,))], isa)
    assert 0 <= int(memory.array(out)[0]) < 40


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("storage", ["f32", "i64"])
@pytest.mark.parametrize("is_exclusive", [False, True])
@pytest.mark.parametrize("combine", ["add", "mul"])
@pytest.mark.parametrize("axis", [0, 1])
def test_running_sums(
    axis: int, combine: Literal["add", "mul"], is_exclusive: bool, storage: Storage, target: str
) -> None:
    memory = Memory()
    x = np.random.default_rng(0).integers(-2, 3, (7, 21))
    source, out = memory.tensor("x", x, storage), allocate("y", storage, x.shape)
    other = 1 - axis
    strides = source.strides
    kept = ((x.shape[other], (strides[other], strides[other])),)
    spec = ScanSpec(
        combine, storage, storage, kept, x.shape[axis], strides[axis], strides[axis], is_exclusive
    )
    memory.run([Step(spec, (source, out), (out,))], isa_for(target))
    wanted = (np.cumsum if combine == "add" else np.cumprod)(x, axis)
    if is_exclusive:
        wanted = np.roll(wanted, 1, axis)
        wanted[(slice(None),) * axis + (0,)] = 0 if combine == "add" else 1
    assert np.array_equal(memory.array(out), wanted)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("indices", ["i32", "i64"])
@pytest.mark.parametrize("storage", ["f32", "u8", "i64", "bool"])
def test_elements_are_picked_and_never_from_outside(
    storage: Storage, indices: Literal["i32", "i64"], target: str
) -> None:
    memory = Memory()
    data = np.random.default_rng(0).integers(0, 2 if storage == "bool" else 100, (5, 8))
    places = np.random.default_rng(1).integers(-5, 5, (3, 8))
    places[0, 0], places[1, 1] = 1000, -1000
    source, index = memory.tensor("x", data, storage), memory.tensor("i", places, indices)
    out = allocate("y", storage, (3, 8))
    spec = PickSpec(storage, indices, ((3, (0, 8, 8)), (8, (1, 1, 1))), 5, 8)
    memory.run([Step(spec, (source, index, out), (out,))], isa_for(target))
    inside = np.clip(np.where(places < 0, places + 5, places), 0, 4)
    assert np.array_equal(memory.array(out), np.take_along_axis(data, inside, 0))


@pytest.mark.parametrize("storage", ["f32", "bf16", "f16", "i32", "i64"])
@pytest.mark.parametrize("operation", ["max", "min"])
@pytest.mark.parametrize("count", [1, 2, 7, 25, 40])
@pytest.mark.parametrize("shape", [(6, 100), (3, 40), (1, 1000)])
def test_the_best_in_order(
    shape: tuple[int, int], count: int, operation: Literal["max", "min"], storage: Storage
) -> None:
    memory, isa = Memory(), isa_for("cpu")
    x = np.random.default_rng(count).integers(-9, 9, shape)
    source = memory.tensor("x", x, storage)
    values, places = (
        allocate("v", storage, (shape[0], count)),
        allocate("p", "i64", (shape[0], count)),
    )
    spec = TopSpec(
        operation, storage, storage, ((shape[0], (shape[1], count, count)),), shape[1], count,
        1, 1, 1,
    )  # fmt: skip
    memory.run([Step(spec, (source, values, places), (values, places))], isa)
    order = np.argsort(-x if operation == "max" else x, axis=1, kind="stable")[:, :count]
    assert np.array_equal(memory.array(places), order)
    assert np.array_equal(memory.array(values), np.take_along_axis(x, order, 1))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("count", [5, 30, 50])
def test_the_best_of_columns_and_rows(count: int, axis: int) -> None:
    memory, isa = Memory(), isa_for("cpu")
    x = np.random.default_rng(axis).standard_normal((50, 60)).astype(np.float32)
    source = memory.tensor("x", x)
    shape = (count, 60) if axis == 0 else (50, count)
    values, places = allocate("v", "f32", shape), allocate("p", "i64", shape)
    views = (source, values, places)
    spec = TopSpec(
        "max", "f32", "f32",
        ((x.shape[1 - axis], tuple(view.strides[1 - axis] for view in views)),),
        x.shape[axis], count, *(view.strides[axis] for view in views),
    )  # fmt: skip
    memory.run([Step(spec, views, (values, places))], isa)
    order = np.take(np.argsort(-x, axis=axis, kind="stable"), np.arange(count), axis)
    assert np.array_equal(memory.array(places), order)
    assert np.array_equal(memory.array(values), np.take_along_axis(x, order, axis))
