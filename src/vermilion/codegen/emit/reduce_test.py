"""Reduction kernels against numpy: which dimension vectors run along, and both ends of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import TARGETS, Memory, isa_for
from vermilion.codegen.emit.reduce import ReduceSpec, mean_of
from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import allocate
from vermilion.ir.expression import Operand, apply

Array = NDArray[Any]
NUMPY: dict[str, Callable[..., Array]] = {
    "add": np.sum, "max": np.max, "min": np.min, "mul": np.prod,
}  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("combine", ["add", "max", "min", "mul"])
@pytest.mark.parametrize(
    ("shape", "order", "along_kept"),
    [
        ((5, 37), (0, 1), False),  # rows lie side by side: vectors run along them
        ((5, 16), (0, 1), False),
        ((3, 5), (0, 1), False),
        ((37, 5), (1, 0), False),  # a transposed matrix: reduced elements are apart
        ((6, 4), (1, 0), False),
    ],
)
def test_rows(
    shape: tuple[int, int], order: tuple[int, int], along_kept: bool, combine: Any, target: str
) -> None:
    memory = Memory()
    x = np.random.default_rng(0).uniform(0.5, 1.5, shape).astype(np.float32)
    source, out = memory.tensor("x", x, order=order), allocate("y", "f32", shape[:1])
    kept = ((shape[0], source.strides[0], 1),)
    spec = ReduceSpec(combine, "f32", "f32", kept, ((shape[1], source.strides[1]),))
    memory.run([Step(spec, (source, out), (out,))], isa_for(target))
    assert np.allclose(memory.array(out), NUMPY[combine](x.astype(np.float64), 1), rtol=1e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("channels", [1, 3, 16, 21, 40, 300])
def test_pixels_to_one_for_each_channel(channels: int, target: str) -> None:
    memory = Memory()
    x = np.random.default_rng(0).standard_normal((2, channels, 5, 3), dtype=np.float32)
    source = memory.tensor("x", x, order=(0, 2, 3, 1))
    out = allocate("y", "f32", (2, channels))
    spec = ReduceSpec(
        "add", "f32", "f32", ((2, source.strides[0], channels), (channels, 1, 1)),
        ((5, source.strides[2]), (3, source.strides[3])), finish=mean_of(15),
    )  # fmt: skip
    assert spec.along_kept or channels == 1
    memory.run([Step(spec, (source, out), (out,))], isa_for(target))
    assert np.allclose(memory.array(out), x.astype(np.float64).mean((2, 3)), atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_before_and_after(target: str) -> None:
    memory = Memory()
    x = np.random.default_rng(0).standard_normal((7, 50), dtype=np.float32)
    source, out = memory.tensor("x", x, "bf16"), allocate("y", "bf16", (7,))
    rounded = memory.array(source).astype(np.float64)
    square = apply("mul", Operand(0), Operand(0))
    spec = ReduceSpec(
        "add", "bf16", "bf16", ((7, 50, 1),), ((50, 1),), square, apply("sqrt", Operand(0))
    )
    memory.run([Step(spec, (source, out), (out,))], isa_for(target))
    wanted = np.sqrt((rounded**2).sum(1))
    assert np.allclose(memory.array(out).astype(np.float64), wanted, rtol=2**-8)


def test_everything_to_one_number() -> None:
    memory = Memory()
    x = np.arange(1000, dtype=np.float32)
    source, out = memory.tensor("x", x), allocate("y", "f32", ())
    spec = ReduceSpec("add", "f32", "f32", (), ((1000, 1),))
    assert spec.units == 1
    memory.run([Step(spec, (source, out), (out,))], isa_for("cpu"))
    assert memory.array(out) == 499500


def test_a_result_that_is_written_with_gaps_keeps_what_lies_between() -> None:
    memory = Memory()
    x = np.random.default_rng(0).standard_normal((4, 33), dtype=np.float32)
    source, whole = memory.tensor("x", x), memory.tensor("y", np.full((4, 3), 7.0))
    out = whole.sliced(1, 1, 1)
    spec = ReduceSpec("max", "f32", "f32", ((4, 33, 3),), ((33, 1),))
    memory.run([Step(spec, (source, out), (out,))], isa_for("cpu"))
    assert np.array_equal(memory.array(whole)[:, 1], x.max(1))
    assert (memory.array(whole)[:, [0, 2]] == 7.0).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["along rows", "along what is kept"])
def test_a_mean_of_many_equal_numbers_is_theirs(order: tuple[int, int], target: str) -> None:
    memory = Memory()
    count, kept = 40_000, 17
    x = np.full((kept, count), np.float32(-0.9667728))
    source, out = memory.tensor("x", x, order=order), allocate("y", "f32", (kept,))
    spec = ReduceSpec(
        "add", "f32", "f32", ((kept, source.strides[0], 1),), ((count, source.strides[1]),),
        finish=mean_of(count),
    )  # fmt: skip
    memory.run([Step(spec, (source, out), (out,))], isa_for(target))
    # Added one after the other it is off by 1e-4.
    assert np.allclose(memory.array(out), x[0, 0], rtol=2e-6)
