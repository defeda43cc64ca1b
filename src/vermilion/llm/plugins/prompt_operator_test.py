"""Compiled products against float64: every format, narrow and wide vectors, odd sizes."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from kernels import TARGETS, isa_for
from vermilion.errors import ArtifactError, DeviceError
from vermilion.hardware.targets.find import find_target
from vermilion.llm.plugins.compile_plugin import compile_operator
from vermilion.llm.plugins.identity import Identity, Number
from vermilion.llm.plugins.prompt_operator import LoadedOperator
from vermilion.quantize.blocks import round_to

# Sums of some hundred products in float32, against float64 of the same rounded numbers.
_FLOAT32 = 2e-5
SIZES = ((1, 64, 32), (128, 96, 64), (7, 100, 37), (130, 33, 129))


def identity(size: tuple[int, int, int], number: Number, target: str = "cpu") -> Identity:
    rows, depth, columns = size
    return Identity("MatMulNBits", {"K": depth, "N": columns}, rows, number, target)


def numbers(size: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    rows, depth, columns = size
    random = np.random.default_rng(depth)
    x = random.standard_normal((rows, depth), dtype=np.float32)
    return x, random.standard_normal((columns, depth), dtype=np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("number", get_args(Number))
@pytest.mark.parametrize("size", SIZES)
def test_products_are_those_of_the_format(
    size: tuple[int, int, int], number: Number, target: str
) -> None:
    isa_for(target)
    wanted = identity(size, number, target)
    operator = LoadedOperator(wanted, compile_operator(wanted))
    x, w = numbers(size)
    got = operator.multiply(x, operator.pack(w))
    if number == "int8":
        x8, w8 = (np.rint(a / (np.abs(a).max(1, keepdims=True) / 127)) for a in (x, w))
        scales = np.abs(x).max(1)[:, None] / 127 * (np.abs(w).max(1)[None, :] / 127)
        exact = (x8.astype(np.float64) @ w8.T.astype(np.float64)) * scales
    else:
        xr, wr = (round_to(a, number, axis=1).astype(np.float64) for a in (x, w))
        exact = xr @ wr.T
    assert np.abs(got - exact).max() <= _FLOAT32 * np.abs(exact).max()


def test_fewer_rows_than_the_operator_has() -> None:
    wanted = identity((128, 64, 48), "bf16")
    operator = LoadedOperator(wanted, compile_operator(wanted))
    x, w = numbers((128, 64, 48))
    packed = operator.pack(w)
    whole, some = operator.multiply(x, packed), operator.multiply(x[:5], packed)
    assert np.array_equal(whole[:5], some)


def test_a_column_of_zeros_stays_zero() -> None:
    wanted = identity((4, 32, 16), "int8")
    operator = LoadedOperator(wanted, compile_operator(wanted))
    x, w = numbers((4, 32, 16))
    w[3] = 0
    x[1] = 0
    got = operator.multiply(x, operator.pack(w))
    assert not got[:, 3].any()
    assert not got[1].any()


def test_code_of_another_operator_is_refused() -> None:
    data = compile_operator(identity((128, 64, 48), "bf16"))
    with pytest.raises(ArtifactError, match="not that of MatMulNBits K 64 N 64"):
        LoadedOperator(identity((128, 64, 64), "bf16"), data)
    with pytest.raises(ArtifactError, match="not that of"):
        LoadedOperator(identity((128, 64, 48), "bf16"), data[:100])


def test_another_chip_is_refused() -> None:
    here = find_target("cpu").features
    other = next((n for n in ("zen5", "zen4") if find_target(n).features - here), None)
    if other is None:
        pytest.skip("this machine runs the code of every CPU that is known here")
    wanted = identity((1, 32, 16), "bf16", other)
    with pytest.raises(DeviceError, match=f"compiled for {other}"):
        LoadedOperator(wanted, compile_operator(wanted))


def test_equal_operators_have_equal_code() -> None:
    wanted = identity((128, 64, 48), "bfp16")
    assert compile_operator(wanted) == compile_operator(wanted)
