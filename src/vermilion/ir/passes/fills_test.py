from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from vermilion.ir.passes.fills import expand_fills
from vermilion.ir.passes.rewrite import Notes


@pytest.mark.parametrize("value", ["", "<value = int64[1] {7}>", "<value = bool[1] {1}>"])
@pytest.mark.parametrize("shape", [(2, 3), (4,), (), (0, 5)])
def test_a_fill_of_a_computed_shape(shape: tuple[int, ...], value: str) -> None:
    kind = "int64" if "int64" in value else "bool" if "bool" in value else "float"
    sizes = "" if not shape else ", ".join("n" for _ in shape)
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    agraph (int64[{len(shape)}] s) => ({kind}[{sizes}] y) {{ y = ConstantOfShape {value} (s) }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    model = ir.from_proto(proto)
    expand_fills(model, notes := Notes())
    assert notes.fired == 1
    feed = {"s": np.array(shape, np.int64)}
    wanted, got = (
        ort.InferenceSession(one.SerializeToString()).run(None, feed)[0]
        for one in (proto, ir.to_proto(model))
    )
    assert got.dtype == wanted.dtype
    np.testing.assert_array_equal(got, wanted)


def test_a_shape_that_is_known_is_left_to_folding() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    agraph () => (float[2] y) <int64[1] s = {2}> { y = ConstantOfShape (s) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    expand_fills(model, notes := Notes())
    assert notes.fired == 0
