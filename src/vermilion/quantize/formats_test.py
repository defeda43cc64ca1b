"""Integers that stand for real numbers, against ONNX Runtime's operators, and the tables' names."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from vermilion.errors import OptionError
from vermilion.ir.execute import open_session
from vermilion.quantize.formats import (
    INT8,
    INT16,
    SCHEMES,
    UINT8,
    IntegerFormat,
    Parameters,
    Scheme,
    any_scheme_named,
    at_position,
    scheme_named,
)

Array = NDArray[Any]
# Halves on both sides of zero, what lies between, and what is out of range of every format.
REALS = np.concatenate(
    [np.arange(-9, 10) / 2, np.linspace(-200, 300, 41), np.array([-1e9, 1e9, -0.0])]
).astype(np.float32)


def _run(operator: str, values: Array, parameters: Parameters) -> Array:
    """Let ONNX Runtime do it."""
    number = parameters.number
    zeros = np.full(parameters.scale.shape, parameters.zero_point, number.numpy_type)
    constants = [
        numpy_helper.from_array(parameters.scale, "scale"), numpy_helper.from_array(zeros, "zero"),
    ]  # fmt: skip
    axis = {} if parameters.axis is None else {"axis": parameters.axis}
    node = helper.make_node(operator, ["x", "scale", "zero"], ["y"], "it", **axis)
    given = helper.np_dtype_to_tensor_dtype(values.dtype)
    result = int(number.data_type) if operator == "QuantizeLinear" else 1
    infos = [
        helper.make_tensor_value_info(name, kind, values.shape)
        for name, kind in (("x", given), ("y", result))
    ]
    graph = helper.make_graph([node], "one", infos[:1], infos[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (found,) = open_session(ir.from_proto(model), threads=1).run(["y"], {"x": values})
    return np.asarray(found)


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("number", [INT8, UINT8, INT16], ids=lambda number: number.name)
@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_rounding(number: IntegerFormat, zero: int, scale: float) -> None:
    parameters = Parameters(number, np.asarray(scale, np.float32), zero)
    theirs = _run("QuantizeLinear", REALS, parameters)
    ours = parameters.to_integers(REALS)
    assert ours.dtype == theirs.dtype
    # Alike but for the lowest integer, which is left unused where zero lies in the middle.
    np.testing.assert_array_equal(ours, np.maximum(theirs, number.low))
    assert number.is_signed == (theirs.min() < number.low)
    np.testing.assert_array_equal(
        parameters.to_reals(ours), _run("DequantizeLinear", ours, parameters)
    )


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scales_along_an_axis(axis: int) -> None:
    shape = (2, 3, 4)
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 40
    scale = (2.0 ** -np.arange(shape[axis])).astype(np.float32)
    parameters = Parameters(INT8, scale, 0, axis)
    ours = parameters.to_integers(values)
    theirs = _run("QuantizeLinear", values, parameters)
    np.testing.assert_array_equal(ours, np.maximum(theirs, -127))
    np.testing.assert_array_equal(
        parameters.to_reals(ours), _run("DequantizeLinear", ours, parameters)
    )


def test_a_position_is_a_power_of_two() -> None:
    assert at_position(3, INT8).to_reals(np.array([1, -127], np.int8)).tolist() == [0.125, -15.875]
    assert at_position(-2, INT16).to_integers(np.array([10.0])).tolist() == [2]  # 2.5 to even


def test_schemes_by_name() -> None:
    assert any_scheme_named("bf16") is SCHEMES["bf16"]
    assert [name for name in SCHEMES if isinstance(SCHEMES[name], Scheme)] == [
        "xint8", "a8w8", "a16w8",
    ]  # fmt: skip
    assert [scheme_named(name).has_fine_steps for name in ("xint8", "a8w8", "a16w8")] == [
        False, False, True,
    ]  # fmt: skip
    with pytest.raises(OptionError, match=r"scheme `int5`\nhint: known schemes: .*`a8w8`.*`mxfp4`"):
        any_scheme_named("int5")
    with pytest.raises(OptionError, match=r"`int4` has no integer activations\nhint: .*`xint8`"):
        scheme_named("int4")
