from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

import fake_provider
from vermilion.backends import backend
from vermilion.backends.process.stack import Limits
from vermilion.backends.vitisai.backend import VitisAiBackend
from vermilion.backends.vitisai.backend_test import STACK
from vermilion.hardware.targets.find import find_target
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import run_pass
from vermilion.runtime.reduce_failure import find_culprits

LIMITS = Limits(90.0, 90.0, 90.0)
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 3, 6, 6] x) => (float[1, 3, 6, 6] y) {
    a = Abs (x)
    b = Exp (a)
    c = Sigmoid (b)
    d = Neg (c)
    y = Mul (d, a)
}"""


def test_the_operator_that_crashes_the_provider_is_found(tmp_path: Path) -> None:
    worker = (fake_provider.__name__, "access violation on Sigmoid")
    npu = VitisAiBackend(worker=worker, find=lambda _: STACK, limits=LIMITS)
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    run_pass(infer_shapes, model)
    (found,) = find_culprits(model, find_target("strix"), (npu, backend("ort")), tmp_path / "out")
    assert found.path == tmp_path / "out" / "vaiml_par_0-culprit.onnx"
    assert [node.op_type for node in ir.load(found.path).graph] == ["Sigmoid"]
    assert "SIGSEGV" in found.reason
    assert found.as_json()["tries"] == found.tries


def test_nothing_is_written_where_all_compiles(tmp_path: Path) -> None:
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    modelled = (backend("npu_model"), backend("ort"))
    assert find_culprits(model, find_target("strix"), modelled, tmp_path / "out") == ()
    assert not (tmp_path / "out").exists()
