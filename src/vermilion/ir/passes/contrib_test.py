"""Operators of `com.microsoft` in ONNX's own: what ONNX Runtime computes stays what it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from vermilion.ir.passes.contrib import DEFINITIONS, write_contrib
from vermilion.ir.passes.rewrite import Notes

F32 = np.float32
RANDOM = np.random.default_rng(3)


def floats(*shape: int, scale: float = 1.0) -> np.ndarray:
    return (RANDOM.standard_normal(shape) * scale).astype(F32)


def integers(low: int, high: int, *shape: int, kind: Any = np.uint8) -> np.ndarray:
    return RANDOM.integers(low, high, shape).astype(kind)


def grid(scale: float, zero: int, kind: Any = np.uint8) -> list[np.ndarray]:
    return [np.array(scale, F32), np.array(zero, kind)]


X = floats(2, 6, 16)
ROW = floats(16)
PLACES = np.array([6, 6, 0, 0], np.int32)  # last and first keys
IMAGES = floats(1, 4, 9, 9)
LONGER = floats(2, 9, 16)
COLUMNS = integers(-9, 9, 32, 7, kind=np.int8)
GRID = grid(0.03, 128)
IMAGE = integers(0, 256, 2, 4, 8, 8)
MASK = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], np.int32)
QKV = [floats(16, 48, scale=0.2), floats(48)]

# Of each operator: what it reads (the first is an input of the model), attributes, results read.
Case = tuple[str, Sequence[np.ndarray | None], Mapping[str, Any], int]
CASES: Sequence[Case] = (
    ("FusedMatMul", [X, floats(2, 6, 16)], {"transB": 1, "alpha": 0.25}, 1),
    ("FusedMatMul", [X, floats(2, 6, 8)], {"transA": 1}, 1),
    ("FusedMatMul", [floats(3, 2, 5, 4), floats(2, 5, 3, 7)], {"transBatchA": 1, "transA": 1}, 1),
    ("FusedGemm", [floats(5, 16), floats(16, 7), floats(7)], {"activation": "Relu"}, 1),
    (
        "FusedGemm", [floats(5, 16), floats(7, 16)],
        {"transB": 1, "activation": "LeakyRelu", "activation_alpha": 0.2}, 1,
    ),
    (
        "FusedConv", [floats(1, 4, 9, 9), floats(6, 4, 3, 3), floats(6), floats(1, 6, 9, 9)],
        {"pads": [1, 1, 1, 1], "activation": "Relu"}, 1,
    ),
    (
        "FusedConv", [floats(1, 4, 9, 9), floats(6, 4, 3, 3)],
        {"activation": "Clip", "activation_params": [-0.5, 2.0], "strides": [2, 2]}, 1,
    ),
    (
        "FusedConv", [floats(1, 4, 9, 9), floats(6, 4, 3, 3)],
        {"activation": "HardSigmoid", "activation_params": [0.2, 0.5]}, 1,
    ),
    ("Gelu", [X], {}, 1),
    ("BiasGelu", [X, ROW], {}, 1),
    ("FastGelu", [X, ROW], {}, 1),
    ("FastGelu", [X], {}, 1),
    ("QuickGelu", [X], {"alpha": 1.5}, 1),
    ("SkipLayerNormalization", [X, floats(2, 6, 16), ROW, ROW], {"epsilon": 1e-5}, 1),
    ("SkipLayerNormalization", [X, floats(2, 6, 16), ROW, ROW, ROW], {}, 4),
    ("SkipSimplifiedLayerNormalization", [X, floats(2, 6, 16), ROW], {"epsilon": 1e-5}, 4),
    ("SimplifiedLayerNormalization", [X, ROW], {"epsilon": 1e-5, "axis": -1}, 1),
    (
        "EmbedLayerNormalization",
        [
            integers(0, 20, 2, 6, kind=np.int32), integers(0, 2, 2, 6, kind=np.int32),
            floats(20, 16), floats(9, 16), floats(2, 16), ROW, ROW, MASK,
        ],
        {"epsilon": 1e-5}, 2,
    ),
    (
        "EmbedLayerNormalization",
        [integers(0, 20, 2, 6, kind=np.int32), None, floats(20, 16), floats(9, 16), None, ROW, ROW],
        {"epsilon": 1e-5}, 2,
    ),
    ("Attention", [X, *QKV, MASK], {"num_heads": 4}, 1),
    ("Attention", [X, *QKV], {"num_heads": 2, "unidirectional": 1, "scale": 0.3}, 1),
    ("Attention", [X, *QKV, np.array([4, 6], np.int32)], {"num_heads": 4}, 1),
    (
        "Attention", [X, floats(16, 40, scale=0.2), floats(40)],
        {"num_heads": 4, "qkv_hidden_sizes": [16, 16, 8]}, 1,
    ),
    ("MultiHeadAttention", [X, X, floats(2, 6, 16)], {"num_heads": 4}, 1),
    ("MultiHeadAttention", [X, LONGER, LONGER, floats(48)], {"num_heads": 2}, 1),
    ("MultiHeadAttention", [X, X, X, None, MASK], {"num_heads": 4, "mask_filter_value": -1e4}, 1),
    (
        "MultiHeadAttention", [X, X, X, None, None, floats(2, 4, 6, 6)],
        {"num_heads": 4, "unidirectional": 1}, 1,
    ),
    (
        "QAttention",
        [
            integers(0, 256, 2, 5, 24), integers(-128, 128, 24, 72, kind=np.int8),
            floats(72), np.array(0.02, F32), np.array(0.004, F32), None,
            np.array(120, np.uint8), np.array(0, np.int8),
        ],
        {"num_heads": 4}, 1,
    ),
    (
        "QAttention",
        [
            integers(0, 256, 2, 5, 24), integers(0, 256, 24, 72), floats(72),
            np.array(0.02, F32), floats(72, scale=0.001) ** 2 + F32(0.004),
            integers(0, 2, 2, 5, kind=np.int32), np.array(120, np.uint8),
            integers(110, 140, 72),
        ],
        {"num_heads": 3, "unidirectional": 1}, 1,
    ),
    ("QLinearAdd", [IMAGE, *GRID, integers(0, 256, 2, 4, 8, 8), *GRID, *grid(0.05, 99)], {}, 1),
    ("QLinearMul", [IMAGE, *GRID, integers(0, 256, 1, 4, 1, 1), *GRID, *grid(0.5, 99)], {}, 1),
    ("QLinearLeakyRelu", [IMAGE, *GRID, *grid(0.02, 40)], {"alpha": 0.1}, 1),
    ("QLinearSigmoid", [IMAGE, *GRID, *grid(1 / 256, 0)], {}, 1),
    ("QLinearSoftmax", [IMAGE, *GRID, *grid(1 / 256, 0)], {"axis": 1, "opset": 13}, 1),
    (
        "QLinearAveragePool", [IMAGE, *GRID, *grid(0.02, 128)],
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}, 1,
    ),
    ("QLinearGlobalAveragePool", [IMAGE, *GRID, *grid(0.01, 128)], {"channels_last": 0}, 1),
    ("QLinearGlobalAveragePool", [IMAGE, *GRID, *grid(0.01, 128)], {"channels_last": 1}, 1),
    (
        "QGemm",
        [
            integers(0, 256, 5, 32), *GRID, integers(-9, 9, 7, 32, kind=np.int8),
            floats(7, scale=0.1) ** 2, np.zeros(7, np.int8), integers(-99, 99, 7, kind=np.int32),
            *grid(0.07, 120),
        ],
        {"transB": 1}, 1,
    ),
    (
        "QGemm",
        [integers(0, 256, 5, 32), *GRID, COLUMNS, *grid(0.1, 3, np.int8)],
        {"alpha": 0.5}, 1,
    ),
    (
        "MatMulIntegerToFloat",
        [
            integers(0, 256, 5, 32), COLUMNS, np.array(0.03, F32),
            floats(7), np.array(128, np.uint8), np.zeros(7, np.int8), floats(7),
        ],
        {}, 1,
    ),
    (
        "DynamicQuantizeMatMul",
        [floats(5, 32), COLUMNS, floats(7), np.zeros(7, np.int8)], {}, 1,
    ),
)  # fmt: skip


def built(case: Case, opset: int) -> onnx.ModelProto:
    """Return the model of one operator; all that it reads but the first is a weight."""
    op_type, arrays, attributes, count = case
    names = ["" if array is None else f"v{at}" for at, array in enumerate(arrays)]
    domain = "" if op_type == "SimplifiedLayerNormalization" else "com.microsoft"
    results = [f"y{at}" for at in range(count)]
    node = helper.make_node(op_type, names, results, name="n", domain=domain, **attributes)
    first = arrays[0]
    assert first is not None
    kind = helper.np_dtype_to_tensor_dtype(first.dtype)
    weights = [
        numpy_helper.from_array(array, name)
        for name, array in zip(names[1:], arrays[1:], strict=True)
        if array is not None
    ]
    read = [0, 3] if count == 4 else range(count)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("v0", kind, first.shape)],
        [helper.make_tensor_value_info(results[at], TensorProto.UNDEFINED, None) for at in read],
        weights,
    )  # fmt: skip
    for out in graph.output:
        out.ClearField("type")
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def run(model: onnx.ModelProto, x: np.ndarray) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options)
    return [np.asarray(array) for array in session.run(None, {"v0": x})]


def label(case: Case) -> str:
    return f"{case[0]}-{'-'.join(case[2])}"


@pytest.mark.parametrize("opset", [13, 18])
@pytest.mark.parametrize("case", CASES, ids=label)
def test_an_operator_is_what_it_was(case: Case, opset: int) -> None:
    proto = built(case, opset)
    x = case[1][0]
    assert x is not None
    wanted = run(proto, x)
    model = ir.from_proto(proto)
    notes = Notes()
    write_contrib(model, notes)
    assert notes.fired == 1, notes.refusals
    assert not any(node.domain for node in model.graph)
    found = ir.to_proto(model)
    for value, array in zip(found.graph.output, wanted, strict=True):
        value.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(array.dtype)
    got = run(found, x)
    for one, other in zip(got, wanted, strict=True):
        if one.dtype.kind in "iu":
            # ONNX Runtime's own kernels add and pool on tables and in other orders.
            assert np.abs(one.astype(int) - other.astype(int)).max() <= 1
            assert (one == other).mean() > 0.9
        else:
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


def test_every_definition_has_a_case() -> None:
    assert {case[0] for case in CASES} | {"BiasAdd", "QLinearConcat"} == set(DEFINITIONS)


def test_a_bias_that_onnx_runtime_has_no_kernel_for() -> None:
    arrays = [floats(2, 9, 16), floats(16), floats(2, 9, 16)]
    model = ir.from_proto(built(("BiasAdd", arrays, {}, 1), 17))
    write_contrib(model, Notes())
    found = ir.to_proto(model)
    found.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
    np.testing.assert_array_equal(run(found, arrays[0])[0], arrays[0] + arrays[1] + arrays[2])


def test_integers_are_joined() -> None:
    arrays = [integers(0, 256, 2, 3), integers(0, 256, 2, 4)]
    names = ["scale", "zero", "a", "scale_a", "zero_a", "b", "scale_b", "zero_b"]
    given = dict(
        zip(names, [*grid(0.05, 9), None, *grid(0.04, 3), None, *grid(0.03, 7)], strict=True)
    )
    weights = [numpy_helper.from_array(v, k) for k, v in given.items() if v is not None]
    node = helper.make_node("QLinearConcat", names, ["y"], domain="com.microsoft", axis=1)
    graph = helper.make_graph(
        [node], "g",
        [helper.make_tensor_value_info(name, TensorProto.UINT8, [2, None]) for name in "ab"],
        [helper.make_tensor_value_info("y", TensorProto.UINT8, [2, 7])], weights,
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    model = ir.from_proto(proto)
    write_contrib(model, notes := Notes())
    assert notes.fired == 1
    feed = dict(zip("ab", arrays, strict=True))
    outputs = [
        ort.InferenceSession(one.SerializeToString()).run(None, feed)[0]
        for one in (proto, ir.to_proto(model))
    ]
    np.testing.assert_array_equal(*outputs)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (("FusedConv", [IMAGES, floats(6, 4, 3, 3)], {"activation": "Selu"}, 1), "Selu"),
        (("Attention", [X, *QKV, PLACES], {"num_heads": 4}, 1), "one length"),
        (("Attention", [X, *QKV], {"num_heads": 4, "do_rotary": 1}, 1), "by position"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_stays_and_says_why(case: Case, words: str) -> None:
    model = ir.from_proto(built(case, 17))
    write_contrib(model, notes := Notes())
    assert notes.fired == 0
    assert words in notes.refusals[0][1].reason
    assert [node.op_type for node in model.graph] == [case[0]]
