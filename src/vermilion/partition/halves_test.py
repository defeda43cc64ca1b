from __future__ import annotations

import onnx
import onnx_ir as ir

from vermilion.partition.halves import narrow_cuts

TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[4] x) => (float[4] y, float[4] z) {
    a = Relu (x)
    b = Abs (a)
    c = Neg (a)
    d = Add (b, c)
    z = Exp (d)
    y = Sqrt (d)
}"""


def test_cuts_hand_over_what_is_still_read() -> None:
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    found = [(at, [value.name for value in tensors]) for at, tensors in narrow_cuts(model)]
    # Not after `z`: the first half would have a result of the whole.
    assert found == [(1, ["a"]), (2, ["a", "b"]), (3, ["b", "c"]), (4, ["d"])]
