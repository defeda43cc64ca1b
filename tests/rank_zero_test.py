"""Numbers and vectors through every operator that takes them: native, or refused in words."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from numpy.typing import NDArray

from native_text import differences, normal, read, refusals
from vermilion.codegen.lower.rules import RULES, refusal

UNARY = (
    "Relu", "Sigmoid", "Tanh", "Neg", "Exp", "Abs", "Erf", "Floor", "Round", "Sign", "Softplus",
    "Elu", "LeakyRelu", "HardSigmoid", "HardSwish", "Softsign", "Mish", "Celu", "Selu",
)  # fmt: skip
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip
SCALE, POINT = np.array(0.05, np.float32), np.array(3, np.int8)


def check(text: str, opset: int = 17, **weights: NDArray[np.generic]) -> None:
    """Run a model natively, whole, and hold it against ONNX Runtime."""
    model = read(text, opset, **weights)
    inputs = {
        str(value.name): np.asarray(normal(*(value.shape.numpy() if value.shape else ())))
        for value in model.graph.inputs
        if not value.is_initializer()
    }
    assert refusals(model) == []
    assert max(differences(model, inputs).values()) < 1e-5


@pytest.mark.parametrize("operator", UNARY)
def test_functions_of_a_number(operator: str) -> None:
    check(f"(float x) => (float y) {{ t = {operator}(x) y = Neg(t) }}", 18)


@pytest.mark.parametrize("shapes", [("", "", ""), ("", "[3]", "[3]"), ("[2,3]", "", "[2,3]")])
@pytest.mark.parametrize("operator", ["Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean"])
def test_a_number_and_another_tensor(operator: str, shapes: tuple[str, str, str]) -> None:
    a, b, c = shapes
    check(f"(float{a} x, float{b} z) => (float{c} y) {{ t = {operator}(x, z) y = Abs(t) }}")


@pytest.mark.parametrize("shape", ["", "[1]", "[5]", "[2,3]"])
@pytest.mark.parametrize("operator", REDUCTIONS)
def test_reductions_to_a_number(operator: str, shape: str) -> None:
    check(f"(float{shape} x) => (float y) {{ t = {operator}<keepdims = 0>(x) y = Abs(t) }}")


@pytest.mark.parametrize("shape", ["", "[5]", "[2,3]"])
def test_a_number_is_quantized(shape: str) -> None:
    text = "q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z)"
    check(
        f"(float{shape} x, float s, int8 z) => (float{shape} y)"
        f" {{ a = ReduceSum<keepdims = 0>(x) {text} y = Mul(x, d) }}",
        s=SCALE, z=POINT,
    )  # fmt: skip
    check(f"(float{shape} a, float s, int8 z) => (float{shape} d) {{ {text} }}", s=SCALE, z=POINT)


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [([8], [8], ""), ([8], [8, 3], "[3]"), ([4, 8], [8], "[4]"), ([2, 4, 8], [8], "[2,4]"),
     ([8], [2, 8, 3], "[2,3]")],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["floats", "a constant", "integers"])
def test_products_of_vectors(left: list[int], right: list[int], result: str, kind: str) -> None:
    inputs = f"float{left} x, float{right} v"
    product = f"({inputs}) => (float{result} y) {{ t = MatMul(x, v) y = Abs(t) }}"
    if kind == "floats":
        check(product)
    elif kind == "a constant":
        check(product, v=normal(*right, seed=2))
    else:
        weights = (normal(*right, seed=2) * 40).astype(np.int8)
        check(
            f"(float{left} x, int8{right} w, float s, int8 z, float r) => (float{result} y) {{"
            " q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
            " v = DequantizeLinear(w, s, z) t = MatMul(d, v)"
            " p = QuantizeLinear(t, r, z) y = DequantizeLinear(p, r, z) }",
            w=weights, s=SCALE, z=POINT, r=np.array(0.0371, np.float32),  # which makes no ties
        )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "(float[1,1] x) => (float y) { t = Reshape(x, none) y = Abs(t) }",
        "(float x) => (float[1,1] y) { t = Abs(x) y = Reshape(t, ones) }",
        "(float[1,1] x) => (float y) { t = Squeeze(x) y = Abs(t) }",
        "(float x) => (float[1] y) { t = Unsqueeze(x, zero) y = Abs(t) }",
        "(float x) => (float[1,1] y) { t = Abs(x) y = Flatten<axis = 0>(t) }",
        "(float x) => (float[1,1] y) { t = Expand(x, ones) y = Abs(t) }",
        "(float[3] x) => (float y) { t = Gather(x, one) y = Abs(t) }",
        "(float[2,3] x) => (float[2] y) { t = Gather<axis = -1>(x, one) y = Abs(t) }",
        "(float[2,3] x) => (float[3] y) { t = Gather(x, one) y = Abs(t) }",
        "(float[5] x) => (float[5] y) { t = Softmax<axis = 0>(x) y = Abs(t) }",
        "(float[1] x) => (float[1] y) { t = LogSoftmax(x) y = Abs(t) }",
        "(float[4] x) => (int64 y) { y = ArgMax<keepdims = 0>(x) }",
        "(float x) => (float y) { t = Transpose(x) y = Abs(t) }",
        "(float[4] x) => (float[4] y) { t = CumSum(x, one_of_one) y = Abs(t) }",
        "(float[3,4] x) => (float[3,2] y) { y = Gemm(x, w, number) }",
    ],
)
def test_what_moves_gathers_and_normalizes(text: str) -> None:
    known = {
        "none": np.zeros(0, np.int64), "ones": np.ones(2, np.int64), "zero": np.array([0]),
        "one": np.array(1), "one_of_one": np.array(0), "w": normal(4, 2, seed=3),
        "number": np.array(2.0, np.float32),
    }  # fmt: skip
    types = {"w": "float[4,2]", "number": "float", "none": "int64[0]", "ones": "int64[2]",
             "zero": "int64[1]", "one": "int64", "one_of_one": "int64"}  # fmt: skip
    used = [name for name in known if f" {name})" in text or f" {name}," in text]
    declared = "".join(f", {types[name]} {name}" for name in used)
    check(text.replace(") =>", f"{declared}) =>", 1), **{name: known[name] for name in used})


@pytest.mark.parametrize("seed", range(40))
def test_no_rule_raises(seed: int) -> None:
    """Nodes with any number of inputs, of any rank and type, and attributes of any length."""
    random = np.random.default_rng(seed)
    kinds = (ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.INT8, ir.DataType.BOOL)
    names = ("axis", "axes", "perm", "pads", "strides", "kernel_shape", "group", "dilations",
             "keepdims", "blocksize", "block_size", "direction", "hidden_size", "mode")  # fmt: skip
    for op_type in RULES:
        inputs: list[ir.Value | None] = []
        for at in range(int(random.integers(0, 7))):
            if random.random() < 0.1:
                inputs.append(None)
                continue
            shape = [int(n) for n in random.integers(0, 4, int(random.integers(0, 6)))]
            kind = ir.TensorType(kinds[int(random.integers(len(kinds)))])
            known = ir.Shape(shape) if random.random() < 0.9 else None
            value = ir.Value(name=f"i{at}", type=kind, shape=known)
            if random.random() < 0.3 and known is not None:
                array = np.ones(shape, kind.dtype.numpy())
                value.const_value = ir.tensor(array, name=value.name)
                ir.Graph([], [], nodes=[], initializers=[value], name="g")
            inputs.append(value)
        attributes = []
        for name in names:
            count = int(random.integers(0, 5))
            values = [int(n) for n in random.integers(-3, 4, count)]
            if random.random() < 0.4:
                attributes.append(ir.AttrInt64s(name, values))
            elif random.random() < 0.4 and values:
                attributes.append(ir.AttrInt64(name, values[0]))
        node = ir.Node("", op_type, inputs, attributes, num_outputs=int(random.integers(1, 4)))
        for value in node.outputs:
            value.name, value.type = f"o{value.name}", ir.TensorType(ir.DataType.FLOAT)
            value.shape = ir.Shape([int(n) for n in random.integers(0, 4, int(random.integers(5)))])
        found = refusal(node)
        assert found is None or found.reason
