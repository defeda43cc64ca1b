"""The interpreter against ONNX Runtime without optimizations, over nodes drawn at random."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from drawn_fused import MORE_DRAWS
from drawn_nodes import DRAWS, Drawn
from vermilion.errors import UnsupportedError
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.literal.interpret import interpret

# Sums of at most a few hundred float32 products, each rounded once in ONNX Runtime.
TOLERANCE = 2e-5

KINDS = {**DRAWS, **MORE_DRAWS}
CASES_OF_A_KIND = 40


def compare(drawn: Drawn) -> bool:
    """Hold both to each other; say whether ONNX Runtime could run the node at all."""
    model = ir.from_proto(drawn.model())
    try:
        session = open_session(model, threads=1, optimize=False, quiet=True)
        expected = run_session(session, drawn.feed())
    except UnsupportedError:
        return False
    found = interpret(model, drawn.feed())
    for name, wanted in expected.items():
        got = found[name]
        assert got.dtype == wanted.dtype, f"{name}: {got.dtype}, not {wanted.dtype}"
        assert got.shape == wanted.shape, f"{name}: {got.shape}, not {wanted.shape}"
        if wanted.dtype.kind != "f":
            np.testing.assert_array_equal(got, wanted)
            continue
        size = np.max(np.abs(wanted), initial=1.0, where=np.isfinite(wanted))
        np.testing.assert_allclose(got, wanted, rtol=TOLERANCE, atol=TOLERANCE * size)
    return True


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_both_agree(kind: str) -> None:
    compared = 0
    for seed in range(CASES_OF_A_KIND):
        drawn = KINDS[kind](np.random.default_rng([seed, sorted(KINDS).index(kind)]))
        try:
            compared += compare(drawn)
        except Exception as error:
            shapes = [None if x is None else (x.shape, str(x.dtype)) for x in drawn.inputs]
            words = f"seed {seed}: {drawn.op_type}-{drawn.opset} {shapes} {drawn.attributes}"
            raise AssertionError(words) from error
    assert compared > CASES_OF_A_KIND // 2
