from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import hostile
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.limits import MemoryBoundError, memory_limit_bytes

HIDDEN = hostile.text_model(
    """net (float[1] x) => (float y) {
      n = Cast <to = 7> (x)
      [big] h = ConstantOfShape (n)
      y = ReduceMax <keepdims = 0> (h)
    }"""
)


def test_a_bounded_run_is_stopped_before_it_fills_the_memory() -> None:
    session = open_session(ir.from_proto(HIDDEN), quiet=True, bounded=True)
    with pytest.raises(MemoryBoundError, match="half of this machine's memory") as caught:
        run_session(session, {"x": np.array([memory_limit_bytes()], np.float32)}, bounded=True)
    assert caught.value.where == "node `big`, ConstantOfShape"
    assert caught.value.hint
    # The same session goes on working.
    found = run_session(session, {"x": np.array([3], np.float32)}, bounded=True)
    assert found["y"] == 0
