from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

import hostile
from vermilion.ir.inference import MAX_FOLLOWED, infer


def shapes(model: onnx.ModelProto) -> dict[str, list[int | str] | None]:
    graph = model.graph
    return {
        value.name: [dim.dim_value or dim.dim_param for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.value_info, *graph.output)
        if value.type.tensor_type.HasField("shape")
    }


def test_values_of_shapes_are_followed() -> None:
    model = hostile.text_model(
        """net (float[n, 6] x) => (float[a, b] y) {
          s = Shape (x)
          k = Gather (s, one)
          d = Mul (k, two)
          t = Concat <axis = 0> (d, rest)
          y = Reshape (x, t)
        }""",
        one=np.array([1]),
        two=np.array([2]),
        rest=np.array([3]),
    )
    assert shapes(infer(model))["y"] == [12, 3]
    assert shapes(infer(model, follow=False))["y"] != [12, 3]


# Each makes a vector of 2^40 integers out of small numbers, and has inference follow it.
LONG = {
    "constant-of-shape": "n = Mul (a, a) h = ConstantOfShape <value = int64[1] {0}> (n)",
    "reshape": "n = Mul (a, a) h = Reshape (i, n)",
    "range": "n = Mul (a, a) m = Squeeze (n) h = Range (zero, m, one)",
    "input": "h = Identity (long)",
    "cast": "n = Mul (a, a) f = ConstantOfShape (n) h = Cast <to = 7> (f)",
    "gather": "t = Unsqueeze (long, o) h = Gather (t, zero)",
    "through-relu": "n = Mul (a, a) f = ConstantOfShape (n) g = Relu (f) h = Cast <to = 7> (g)",
}


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize(
    "reader", ["Add (h, h)", "Cast <to = 6> (h)", "Concat <axis = 0> (h, h)", "Unsqueeze (h, o)"]
)
def test_long_vectors_are_not_followed(name: str, reader: str) -> None:
    text = f"""net (int64[8] i, int64[1099511627776] long) => (int64 z) {{
      {LONG[name]}
      y = {reader}
      w = Squeeze (y)
      z = ReduceMax <keepdims = 0> (w)
    }}"""
    model = hostile.text_model(
        text, a=np.array([1 << 20]), zero=np.array(0), one=np.array(1), o=np.array([0])
    )
    inferred = infer(model)  # a terabyte, if it were followed
    assert [node.input for node in inferred.graph.node] == [node.input for node in model.graph.node]
    assert len(inferred.graph.input) == len(model.graph.input)


def test_vectors_that_double_are_not_followed() -> None:
    doubling = "\n".join(f"v{i + 1} = Concat <axis = 0> (v{i}, v{i})" for i in range(40))
    model = hostile.text_model(
        f"net (float[2, 3] x) => (int64[n] v40) {{ v0 = Shape (x)\n{doubling} }}"
    )
    assert shapes(infer(model))["v40"] == [2 << 40]


def test_what_is_known_without_following_stays_known() -> None:
    model = hostile.text_model(
        """net (float[8] x, float[n] u) => (float[p, q] z) {
          h = Cast <to = 7> (x)
          i = Add (h, h)
          y = Cast <to = 1> (i)
          e = Exp (y)
          t = NonZero (u)
          z = Cast <to = 1> (t)
        }"""
    )
    found = shapes(infer(model))
    assert found["e"] == found["y"] == [8]
    assert MAX_FOLLOWED > 8


def test_bodies_that_would_be_followed_turn_it_off() -> None:
    model = hostile.text_model(
        """net (int64[1099511627776] x, bool b) => (int64[n] y) {
          y = If (b) <then_branch = t () => (int64[n] p) { p = Add (x, x) },
                      else_branch = e () => (int64[n] q) { q = Identity (x) }>
        }"""
    )
    assert infer(model).graph.node


@pytest.mark.parametrize("opset", [13, 18])
def test_resized_lengths_are_those_of_float32_products(opset: int) -> None:
    """10 · float32(0.7) is below 7 in double, and ONNX Runtime gives 7; then 7 · 0.7 is 4."""
    text = f"""<ir_version: 8, opset_import: ["" : {opset}]>
    g (float[1,1,10,3] x) => (float[a,b,c,d] z) <float[4] s = {{1.0, 1.0, 0.7, 1.0}}> {{
        y = Resize <mode = "linear"> (x, , s)
        z = Resize <mode = "linear"> (y, , s)
    }}"""
    model = onnx.parser.parse_model(text)
    inferred = infer(model)
    sizes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in (*inferred.graph.value_info, *inferred.graph.output)
    }
    assert sizes == {"y": [1, 1, 7, 3], "z": [1, 1, 4, 3]}
    assert [list(node.input) for node in inferred.graph.node] == [["x", "", "s"], ["y", "", "s"]]
    assert [t.name for t in inferred.graph.initializer] == ["s"]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = session.run(["z"], {"x": np.ones((1, 1, 10, 3), np.float32)})[0]
    assert found.shape == (1, 1, 4, 3)
