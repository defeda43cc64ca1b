from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.backends.base import CompileOptions, Part
from vermilion.backends.iree.backend import IreeBackend
from vermilion.backends.iree.softmax import pad_softmax
from vermilion.errors import Refusal
from vermilion.hardware.targets.find import find_target
from vermilion.ir.execute import open_session, run_session

TEXT = """<ir_version: 8, opset_import: ["" : {opset}]>
net (float[2, 3, {length}] x) => (float[2, 3, {length}] y, float[2, 3, {length}] z) {{
    y = {operator}<axis={axis}> (x)
    z = Neg (y)
}}"""


def softmax(
    operator: str = "Softmax", length: int = 1001, axis: int = -1, opset: int = 17
) -> ir.Model:
    text = TEXT.format(operator=operator, length=length, axis=axis, opset=opset)
    return ir.from_proto(onnx.parser.parse_model(text))


@pytest.mark.parametrize("operator", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("axis", [-1, 2])
def test_the_numbers_stay_and_the_row_is_one_of_whole_waves(operator: str, axis: int) -> None:
    model = softmax(operator, axis=axis)
    assert pad_softmax(model) == 1
    assert [node.op_type for node in model.graph] == ["Pad", operator, "Slice", "Neg"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    x = np.random.default_rng(0).standard_normal((2, 3, 1001), dtype=np.float32) * 9
    x[0, 0, 5:] = -np.inf
    x[1, 2] = -np.inf  # NaN before, NaN after
    expected = run_session(open_session(softmax(operator, axis=axis)), {"x": x})
    found = run_session(open_session(model), {"x": x})
    for name in ("y", "z"):
        np.testing.assert_allclose(found[name], expected[name], atol=2e-6)
    assert pad_softmax(model) == 0, "a second time there is nothing to do"


@pytest.mark.parametrize(
    "model",
    [
        softmax(length=500),  # short
        softmax(length=1024),  # whole waves
        softmax(axis=1),  # another axis
        softmax(opset=11),  # there it flattens
    ],
)
def test_what_is_left_alone(model: ir.Model) -> None:
    assert pad_softmax(model) == 0
    assert len(model.graph) == 2


@pytest.mark.needs("iree")
def test_no_register_is_spilled(tmp_path: Path) -> None:
    """Hold what the rewrite is for: as it stands, this row spills 212 registers of gfx1100."""
    part = Part("p", "gpu", "iree", softmax(length=2002), ("0", "1"), 0.0)
    backend = IreeBackend(find=lambda: Refusal("this test has no GPU"))
    done = backend.compile(part, find_target("gfx1100"), CompileOptions(), tmp_path)
    assert done.details["padded_softmaxes"] == "1"
    assert [row["vgpr_spills"] for row in done.machine_code] == [0] * len(done.machine_code)
    assert done.machine_code
