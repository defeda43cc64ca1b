"""Whole numbers that follow from sizes: as ONNX Runtime has them, or not followed."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import parser

from vermilion.codegen.lower.open_sizes import open_models
from vermilion.ir.formula import formula

# What is computed from l, the length, and h, the shape.
FOLLOWED = {
    "sum": "y = Add(l, three)",
    "difference": "y = Sub(l, three)",
    "product": "y = Mul(l, l)",
    "half": "y = Div(l, three)",
    "rest": "y = Mod(l, three)",
    "opposite": "y = Neg(l)",
    "larger": "y = Max(l, three)",
    "lesser": "y = Min(l, three)",
    "picked": "y = Gather(h, one)",
    "cut": "y = Slice(h, one, two)",
    "joined": "y = Concat<axis=0>(l, three)",
    "all": "y = ReduceProd<keepdims=1>(h)",
    "chosen": "c = Equal(l, minus)  y = Where(c, three, l)",
    "cast": "y = Cast<to=6>(l)",
    "rank": "r = Shape(h)  o = ConstantOfShape<value = int64[1] {1}>(r)  y = Mul(o, h)",
}
# Negative numbers divide another way, and a place that a run has is known to nobody before.
NOT_FOLLOWED = {
    "half of what may be negative": "d = Sub(l, nine)  y = Div(d, three)",
    "rest of what may be negative": "d = Sub(l, nine)  y = Mod<fmod=1>(d, three)",
    "by what may be negative": "d = Sub(l, nine)  y = Div(nine, d)",
    "picked by a size": "y = Gather(table, l)",
    "cut at a size": "y = Slice(table, one, l)",
    "compared": "c = Less(l, nine)  y = Where(c, three, l)",
}


def model(body: str) -> onnx.ModelProto:
    table = ", ".join(["7"] * 60)
    return parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[N,L] x) => (int64[K] y) <int64[1] one = {{1}}, int64[1] two = {{2}},
     int64[1] three = {{3}}, int64[1] nine = {{9}}, int64[1] minus = {{-1}},
     int64[60] table = {{{table}}}> {{ h = Shape(x)  l = Gather(h, one)  {body} }}""")


@pytest.mark.parametrize("name", FOLLOWED)
def test_what_follows_from_sizes_is_what_onnx_runtime_computes(name: str) -> None:
    proto = model(FOLLOWED[name])
    del proto.graph.output[0].type.tensor_type.shape.dim[:]
    proto.graph.output[0].type.tensor_type.elem_type = 6 if name == "cast" else 7
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    session = ort.InferenceSession(proto.SerializeToString())
    for opened in open_models(ir.from_proto(proto)):
        found = opened.sizes.values["y"]
        for n, length in ((1, 1), (4, 2), (3, 11), (9, 200)):
            (expected,) = session.run(None, {"x": np.zeros((n, length), np.float32)})
            numbers = [formula(size).at({"N": n, "L": length}) for size in found.reshape(-1)]
            np.testing.assert_array_equal(numbers, expected.reshape(-1))


@pytest.mark.parametrize("name", NOT_FOLLOWED)
def test_what_other_sizes_decide_is_not_followed(name: str) -> None:
    for opened in open_models(ir.from_proto(model(NOT_FOLLOWED[name]))):
        assert "y" not in opened.sizes.values
