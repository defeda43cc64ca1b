from __future__ import annotations

import onnx_ir as ir
import pytest

from vermilion.ir.dimension_options import dimension_options

HEADER = '<ir_version: 8, opset_import: ["": 17]>\n'


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        ("float[batch, seq, 8] x", "--dim batch=1 --dim seq=128"),
        ("float[batch, 8] x, float[batch, n] y", "--dim batch=1 --dim n=128"),
        ("float[?, 8] x, float[4] y", "--dim x=1x8"),
        ("float[2, 8] x", ""),
    ],
)
def test_all_that_is_open_is_bound(inputs: str, options: str) -> None:
    text = f"{HEADER} g ({inputs}) => (float z) {{ z = ReduceMax <keepdims = 0> (x) }}"
    assert dimension_options(ir.from_onnx_text(text)) == options
