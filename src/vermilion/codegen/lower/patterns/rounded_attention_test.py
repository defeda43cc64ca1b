"""Attention whose scores and weights are rounded to 8 bits: one kernel, equal to ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from float_graphs import families
from kernels import TARGETS
from native_text import differences, normal, read
from vermilion.codegen.lower.patterns.rounded_attention import open_rounded_attentions


def model_of(rows: int, keys: int, *, weights: str = "r", mask: bool = True) -> ir.Model:
    """Return attention over 3 heads of 16, its scores and weights rounded."""
    added = "s = Add(rs, m)" if mask else "s = Identity(rs)"
    return read(
        f"""(float[3,{rows},16] q, float[3,16,{keys}] k, float[3,{keys},16] v,
            float[1,{rows},{keys}] m, float a, uint8 b, float c, uint8 d)
            => (float[3,{rows},16] y) {{
            z = MatMul(q, k)
            iz = QuantizeLinear(z, a, b)
            rs = DequantizeLinear(iz, a, b)
            {added}
            p = Softmax(s)
            ip = QuantizeLinear(p, c, d)
            r = DequantizeLinear(ip, c, d)
            y = MatMul({weights}, v)
        }}""",
        a=np.array(0.17, np.float32),
        b=np.array(128, np.uint8),
        c=np.array(1 / 255, np.float32),
        d=np.array(0, np.uint8),
    )


def inputs_of(rows: int, keys: int) -> dict[str, np.ndarray]:  # type: ignore[type-arg]
    return {
        "q": normal(3, rows, 16), "k": normal(3, 16, keys, seed=1),
        "v": normal(3, keys, 16, seed=2), "m": normal(1, rows, keys, seed=3),
    }  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("rows", "keys"), [(9, 13), (40, 700)])
def test_it_is_one_kernel(rows: int, keys: int, target: str) -> None:
    model = model_of(rows, keys)
    assert families(model, target).count("attention") == 1
    assert not {"softmax", "map"} & set(families(model, target))
    # A weight at the middle between two steps may be rounded to the other one.
    assert differences(model, inputs_of(rows, keys), target)["y"] < 1e-2


def test_what_is_read_elsewhere_stays() -> None:
    model = model_of(9, 13, weights="p")
    model.graph.outputs.append(next(n for n in model.graph if n.op_type == "Softmax").outputs[0])
    assert open_rounded_attentions(model) is model


def test_the_given_model_stays_and_twice_changes_nothing() -> None:
    model = model_of(9, 13, mask=False)
    before = [node.op_type for node in model.graph]
    once = open_rounded_attentions(model)
    assert [node.op_type for node in model.graph] == before
    assert "QuantizeLinear" not in [node.op_type for node in once.graph]
    assert open_rounded_attentions(once) is once
