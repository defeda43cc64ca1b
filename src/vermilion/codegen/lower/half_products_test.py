"""Products of models in float16 and bfloat16: multiplied in float32 where there is nothing else."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from float_graphs import run_native
from kernels import TARGETS
from random_graphs.native_parts import Way
from random_graphs.trial import try_model
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.passes.pipeline import simplify

Array = NDArray[Any]

# Operator, attributes, shape of the data, shapes of the constants.
PRODUCTS: dict[str, tuple[str, dict[str, Any], tuple[int, ...], tuple[tuple[int, ...], ...]]] = {
    "image": ("Conv", {"pads": [1, 1, 1, 1]}, (2, 5, 6, 7), ((9, 5, 3, 3), (9,))),
    "row": ("Conv", {"pads": [1, 2]}, (1, 4, 9), ((17, 4, 3),)),
    "point": ("Conv", {}, (1, 3, 1, 1), ((2, 3, 1, 1), (2,))),
    "depthwise": ("Conv", {"group": 17}, (1, 17, 5, 5), ((17, 1, 3, 3),)),
    "in groups": ("Conv", {"group": 2, "strides": [2, 2]}, (1, 6, 7, 7), ((8, 3, 2, 2),)),
    "by Winograd": ("Conv", {"pads": [1, 1, 1, 1]}, (1, 64, 28, 28), ((64, 64, 3, 3),)),
    "transposed": ("ConvTranspose", {"strides": [2, 2]}, (1, 5, 4, 3), ((5, 7, 2, 2), (7,))),
    "LSTM": ("LSTM", {"hidden_size": 9}, (3, 2, 5), ((1, 36, 5), (1, 36, 9), (1, 72))),
    "GRU": ("GRU", {"hidden_size": 4, "direction": "bidirectional"}, (2, 1, 3),
            ((2, 12, 3), (2, 12, 4))),
    "Gemm": ("Gemm", {}, (5, 17), ((17, 9), (9,))),
    "MatMul": ("MatMul", {}, (2, 5, 17), ((17, 9),)),
}  # fmt: skip


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("target", TARGETS)
def test_a_product_of_halves_is_generated_and_right(name: str, kind: Any, target: str) -> None:
    operator, attributes, shape, constants = PRODUCTS[name]
    random = np.random.default_rng(7)
    depth = np.prod(constants[0][1:])
    x = random.standard_normal(shape).astype(kind)
    arrays = {
        f"w{at}": (random.standard_normal(sizes) / np.sqrt(depth)).astype(kind)
        for at, sizes in enumerate(constants)
    }
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    nodes = [
        helper.make_node("Neg", ["x"], ["t"]),
        helper.make_node(operator, ["t", *arrays], ["y"], **attributes),
        helper.make_node("Abs", ["y"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", number, shape)],
        [helper.make_tensor_value_info(end, number, None) for end in ("y", "z")],
        [numpy_helper.from_array(array, label) for label, array in arrays.items()],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 22)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=10)
    number_format = "fp16" if kind is np.float16 else "bf16-model"
    found = try_model(model, {"x": x}, Way(target, "auto", 1, True), number_format)
    assert (found.kind, found.detail) == ("right", "")
    assert found.native_nodes == found.nodes == 3


# What lies beside a run of odd length: of the next pixel, of another group, of the next row.
BESIDE: dict[str, tuple[str, dict[str, Any], tuple[int, ...], tuple[int, ...]]] = {
    "image": ("Conv", {}, (1, 5, 4, 4), (8, 5, 1, 1)),
    "odd groups": ("Conv", {"group": 4}, (1, 12, 4, 4), (8, 3, 1, 1)),
    "even groups": ("Conv", {"group": 4}, (1, 8, 4, 4), (8, 2, 1, 1)),
    "rows": ("MatMul", {}, (7, 5), (5, 9)),
}


@pytest.mark.parametrize("precision", ["bf16", "auto"])
@pytest.mark.parametrize("name", BESIDE)
def test_an_infinity_beside_an_odd_run_stays_where_it_is(name: str, precision: str) -> None:
    operator, attributes, shape, weights = BESIDE[name]
    random = np.random.default_rng(3)
    x = random.standard_normal(shape).astype(np.float32)
    x.reshape(-1)[7::31] = np.inf
    w = random.standard_normal(weights).astype(np.float32)
    nodes = [
        helper.make_node("Neg", ["x"], ["t"]),
        helper.make_node(operator, ["t", "w"], ["y"], **attributes),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("y", 1, None)], [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    model = ir.from_proto(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    model = simplify(model).model
    wanted = run_session(open_session(model, threads=1), {"x": x})["y"]
    got = run_native(model, {"x": x}, "cpu", "bf16" if precision == "bf16" else "fp32")["y"]
    assert np.array_equal(np.isfinite(got), np.isfinite(wanted))
