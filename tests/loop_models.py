"""Models with a loop, for tests in this process and in others."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

HEADER = '<ir_version: 8, opset_import: ["" : 17]> '
ENDLESS = str(2**63 - 1)
ONES = {"x": np.ones(3, np.float32)}


def model_of(text: str) -> ir.Model:
    """Return the model of a text in ONNX's syntax, of opset 17."""
    return ir.from_proto(onnx.parser.parse_model(HEADER + text))


def loop(times: str, body: str = "w = Mul (v, v)") -> ir.Model:
    """Return a model that repeats `body` on `x` as often as the constant `times` says."""
    return model_of(
        f"""g (float[3] x) => (float[3] y)
        <int64 n = {{{times}}}, bool c = {{1}}> {{
          y = Loop (n, c, x) <body = b (int64 i, bool go, float[3] v)
            => (bool on, float[3] w) {{ on = Identity (go) {body} }}>
        }}"""
    )
