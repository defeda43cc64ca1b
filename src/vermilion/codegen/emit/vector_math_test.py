"""Elementary functions are as exact as they say, on both vector widths."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import TARGETS
from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function as Code
from vermilion.codegen.emit.builder import Module
from vermilion.codegen.emit.map import MapSpec
from vermilion.codegen.emit.walk import Access
from vermilion.codegen.isa import isa_of
from vermilion.codegen.load import KERNEL, load_functions
from vermilion.codegen.object import compile_object
from vermilion.hardware.targets.find import find_target
from vermilion.ir.expression import Operand, apply

Floats = NDArray[np.float32]
Exact = Callable[[float], float]


def computed(operation: str, x: Floats, target: str) -> Floats:
    """Return the function of every element, by a kernel for `target`."""
    place = find_target(target)
    missing = place.features - find_target("cpu").features
    if missing:
        pytest.skip(f"this machine has no {', '.join(sorted(missing))}")
    isa = isa_of(place)
    access = Access("f32", (1,))
    spec = MapSpec((x.size,), (access,), (access,), (apply(operation, Operand(0)),))
    module = Module(has_scale=isa.lanes == 16)
    spec.write(module, "kernel", isa)
    module.export("kernel")
    functions = load_functions(compile_object(module.text(), isa), {"kernel": KERNEL}, isa)
    result = np.empty_like(x)
    pointers = np.array([x.ctypes.data, result.ctypes.data], np.int64)
    functions["kernel"](pointers.ctypes.data, 0, spec.units)
    return result


@dataclass(frozen=True)
class Function:
    """A function, where it is checked, and its largest error: in units of the last place."""

    operation: str
    exact: Exact
    low: float
    high: float
    most_ulp: float


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


FUNCTIONS = (
    Function("exp", math.exp, -87, 88, 1.5),
    Function("log", math.log, 1e-30, 1e30, 1.5),
    Function("tanh", math.tanh, -10, 10, 2),
    Function("erf", math.erf, -5, 5, 2.5),
    Function("sigmoid", sigmoid, -80, 80, 2.5),
)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.operation)
def test_units_in_the_last_place(function: Function, target: str) -> None:
    random = np.random.default_rng(1)
    near = random.uniform(max(function.low, -1.5), min(function.high, 1.5), 20_000)
    wide = random.uniform(function.low, function.high, 20_000)
    x = np.concatenate([near, wide]).astype(np.float32)
    exact = np.array([function.exact(float(v)) for v in x])
    unit = np.spacing(np.maximum(np.abs(exact), 1.2e-38).astype(np.float32)).astype(np.float64)
    errors = np.abs(computed(function.operation, x, target) - exact) / unit
    assert errors.max() <= function.most_ulp


@pytest.mark.parametrize("target", TARGETS)
def test_one_plus_erf(target: str) -> None:
    x = np.random.default_rng(2).uniform(-7, 7, 40_000).astype(np.float32)
    exact = np.array([math.erfc(-float(v)) for v in x])
    assert np.abs(computed("one_plus_erf", x, target) - exact).max() < 1.5e-7


@pytest.mark.parametrize("target", TARGETS)
def test_one_plus_erf_far_out(target: str) -> None:
    x = np.array([-1e30, -np.inf, 1e30, np.inf, np.nan, 0.0], np.float32)
    wanted = np.array([0, 0, 2, 2, np.nan, 1], np.float32)
    assert np.array_equal(computed("one_plus_erf", x, target), wanted, equal_nan=True)


@pytest.mark.parametrize("target", TARGETS)
def test_exp_beyond_its_range(target: str) -> None:
    x = np.array([-np.inf, -1000, 1000, np.inf, np.nan, 0.0], np.float32)
    wanted = np.array([0, 0, np.inf, np.inf, np.nan, 1], np.float32)
    assert np.array_equal(computed("exp", x, target), wanted, equal_nan=True)


def coarse(function: str, x: Floats) -> Floats:
    """Return a function that is for bfloat16 of every element."""
    isa = isa_of(find_target("cpu"))
    if isa.lanes != 16:
        pytest.skip("this machine has no AVX-512")
    module = Module(has_scale=True)
    f = Code(module, "kernel", [("source", "ptr"), ("target", "ptr"), ("count", "i64")])
    source, target, count = f.arguments
    arithmetic = Arithmetic(f, isa.lanes)
    with f.loop(0, count, isa.lanes) as at:
        value = arithmetic.load("f32", f.at(source, f.multiply(at, 4)))
        found = getattr(arithmetic.math, function)(value)
        arithmetic.store("f32", found, f.at(target, f.multiply(at, 4)))
    f.finish()
    module.export("kernel")
    kinds = {"kernel": ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)}
    functions = load_functions(compile_object(module.text(), isa), kinds, isa)
    result = np.empty_like(x)
    functions["kernel"](x.ctypes.data, result.ctypes.data, x.size)
    return result


def test_powers_of_two_for_bfloat16() -> None:
    random = np.random.default_rng(3).uniform(-100, 100, 40_000).astype(np.float32)
    far = np.array([0, 1, -200, -1e30, -np.inf, 130, np.nan, -0.5] * 2, np.float32)
    result = coarse("exp2_coarse", np.concatenate([random, far]))
    exact = np.exp2(random.astype(np.float64))
    assert (np.abs(result[: random.size] / exact - 1)).max() < 3e-6
    wanted = np.array([1, 2, 0, 0, 0, np.inf, np.nan, np.sqrt(0.5)], np.float32)
    np.testing.assert_allclose(result[-8:], wanted, rtol=3e-6, atol=1e-38)


def test_sigmoids_for_bfloat16() -> None:
    random = np.random.default_rng(4).uniform(-79, 100, 40_000).astype(np.float32)
    far = np.array([0, -80, -200, -1e30, -np.inf, 130, np.inf, -0.0] * 2, np.float32)
    result = coarse("sigmoid_coarse", np.concatenate([random, far]))
    exact = 1 / (1 + np.exp(-random.astype(np.float64)))
    # What is rounded before it becomes an exponent is off by 80 · log2(e) · 2^-24 of it at most.
    assert (np.abs(result[: random.size] / exact - 1)).max() < 3e-6 + 7e-6
    wanted = np.array([0.5, 0, 0, 0, 0, 1, 1, 0.5], np.float32)
    np.testing.assert_allclose(result[-8:], wanted, rtol=3e-6, atol=1e-34)
