"""Products of bfloat16 and float16, held against float64 with the roundings that they may have.

Operands are rounded once to the type that they are stored in, sums are in float32, and the result
is rounded once: also on processors that do not multiply these types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from float_graphs import run_native
from kernels import TARGETS
from native_text import refusals
from vermilion.ir.literal.interpret import interpret
from vermilion.ir.passes.pipeline import simplify

Array = NDArray[Any]
EXAMPLES = settings(max_examples=6, deadline=None, derandomize=True)
# How a model says it: its own type, and the precision asked for.
FORMS = {
    "bf16 asked for": (np.dtype(np.float32), "bf16"),
    "bfloat16": (np.dtype(ml_dtypes.bfloat16), "auto"),
    "float16": (np.dtype(np.float16), "auto"),
}
# One rounding of a result, relative: half a unit in the last place of 8 and of 11 bits.
HALF_A_UNIT = {"bf16 asked for": 2.0**-8, "bfloat16": 2.0**-8, "float16": 2.0**-11}
# Of the largest result: sums of some hundred products in float32, and what float16 cannot say.
FLOOR = 4e-6
Case = tuple[str, dict[str, Any], tuple[int, ...], dict[str, tuple[int, ...]]]


@st.composite
def products(draw: st.DrawFn) -> Case:
    """Draw an operator, its attributes, the shape of the data, and those of the constants."""
    n, c, out = (draw(st.integers(1, most)) for most in (2, 20, 35))
    height, width = draw(st.integers(2, 9)), draw(st.integers(2, 9))
    kernel = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    stride = [draw(st.integers(1, kernel[0])), draw(st.integers(1, kernel[1]))]
    pads = [draw(st.integers(0, kernel[i % 2] - 1)) for i in range(4)]
    operator = draw(st.sampled_from(["Conv", "Conv in groups", "row", "ConvTranspose", "Gemm",
                                     "MatMul", "LSTM", "GRU", "RNN"]))  # fmt: skip
    bias: dict[str, tuple[int, ...]] = {"b": (out,)} if draw(st.booleans()) else {}
    image = {"strides": stride, "pads": pads}
    match operator:
        case "Conv":
            return "Conv", image, (n, c, height, width), {"w": (out, c, *kernel), **bias}
        case "Conv in groups":
            return "Conv", {**image, "group": 2}, (n, 2 * c, height, width), {
                "w": (2 * out, c, *kernel),
            }  # fmt: skip
        case "row":
            return "Conv", {"pads": [1, 0]}, (n, c, width), {"w": (out, c, 2), **bias}
        case "ConvTranspose":
            return operator, {"strides": stride}, (n, c, height, width), {
                "w": (c, out, *kernel), **bias,
            }  # fmt: skip
        case "Gemm":
            return operator, {"transB": 1}, (height, 9 * c), {"w": (out, 9 * c), **bias}
        case "MatMul":
            return operator, {}, (n, height, 9 * c), {"w": (9 * c, out)}
        case _:
            rows = {"LSTM": 4, "GRU": 3, "RNN": 1}[operator] * out
            return operator, {"hidden_size": out}, (2, n, c), {
                "w": (1, rows, c), "r": (1, rows, out), "b": (1, 2 * rows),
            }  # fmt: skip


def model_of(case: Case, x: Array, weights: Mapping[str, Array]) -> onnx.ModelProto:
    """Write the product as a model of one node, in the type of its arrays."""
    operator, attributes, _, _ = case
    node = helper.make_node(operator, ["x", *weights], ["y"], **attributes)
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        [node], "product", [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def in_bfloat16(array: Array) -> Array:
    """Return float32 numbers that bfloat16 has."""
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", TARGETS)
@given(case=products(), seed=st.integers(0, 9999))
@EXAMPLES
def test_products_round_their_operands_and_their_result_once(
    target: str, form: str, case: Case, seed: int
) -> None:
    kind, precision = FORMS[form]
    random = np.random.default_rng(seed)
    x = random.standard_normal(case[2]).astype(kind)
    weights = {name: random.standard_normal(shape).astype(kind) for name, shape in case[3].items()}
    model = simplify(ir.from_proto(model_of(case, x, weights))).model
    assert not refusals(model)
    got = run_native(model, {"x": x}, target, precision)["y"].astype(np.float64)
    # What adds to a sum, and a recurrent state's weights, stay in the type that they come in.
    rounded = weights
    if precision == "bf16":
        x, rounded = in_bfloat16(x), {**weights, "w": in_bfloat16(weights["w"])}
    exact = ir.from_proto(model_of(case, x, rounded))
    wanted = interpret(exact, {"x": x}, ["y"], wide=True)["y"].astype(np.float64)
    allowed = HALF_A_UNIT[form] * np.abs(wanted) * 1.01 + FLOOR * np.abs(wanted).max()
    assert (np.abs(got - wanted) <= allowed).all()
