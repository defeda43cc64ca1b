from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.quantize.html import html_report
from vermilion.quantize.quantize import quantize_model

RNG = np.random.default_rng(6)
SAMPLES = [{"x": RNG.standard_normal((1, 4, 8)).astype(np.float32)} for _ in range(8)]


def _detector(pixels: float) -> ir.Model:
    """Return boxes in `pixels` and scores below one, joined at the end."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[1,4,8] x) => (float[1,4,8] found) {
          small = MatMul(x, v)
          boxes = Mul(small, pixels)
          raw = MatMul(x, w)
          scores = Sigmoid(raw)
          turned = Transpose<perm=[0,2,1]>(scores)
          back = Transpose<perm=[0,2,1]>(turned)
          found = Concat<axis=2>(boxes, back)
        }"""
    proto = onnx.parser.parse_model(text)
    for name in ("v", "w"):
        weight = 0.3 * RNG.standard_normal((8, 4)).astype(np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    scale = np.asarray([pixels], np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(scale, "pixels"))
    model = ir.from_proto(proto)
    next(node for node in model.graph if node.op_type == "Concat").name = "join"
    return model


@pytest.mark.parametrize("scheme", ["xint8", "a8w8"])
def test_scores_beside_boxes_are_named(scheme: str) -> None:
    done = quantize_model(_detector(300.0), SAMPLES, scheme=scheme)
    (row,) = done.crowded
    assert row.tensor == "scores"  # two moves away from the node
    assert row.node == "join"
    assert row.steps < 8
    assert "joined with larger ones" in html_report(done, "title")


@pytest.mark.parametrize("scheme", ["xint8", "a8w8"])
def test_what_is_left_in_float_is_not(scheme: str) -> None:
    done = quantize_model(_detector(300.0), SAMPLES, scheme=scheme, exclude=["join"])
    assert done.crowded == ()


@pytest.mark.parametrize("scheme", ["xint8", "a8w8"])
def test_alike_tensors_are_not(scheme: str) -> None:
    done = quantize_model(_detector(1.0), SAMPLES, scheme=scheme)
    assert done.crowded == ()
    assert "joined with larger ones" not in html_report(done, "title")
