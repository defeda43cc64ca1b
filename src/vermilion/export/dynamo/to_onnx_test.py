from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.export.dynamo.to_onnx import hint_for, to_onnx, widened

pytestmark = pytest.mark.needs("torch")


def exported(function: Any, folder: Path, *tensors: Any) -> ir.Model:
    import torch

    names = [f"input_{number}" for number in range(len(tensors))]
    return to_onnx(torch.fx.symbolic_trace(function), tensors, names, 1, folder)


@pytest.mark.parametrize("inference", [False, True])
def test_tensors_of_any_mode_are_traced(inference: bool, tmp_path: Path) -> None:
    import torch

    with torch.inference_mode(inference):
        model = exported(lambda x, y: (torch.relu(x @ y),), tmp_path, *[torch.ones(2, 2)] * 2)
        assert torch.is_inference_mode_enabled() == inference
    assert [node.op_type for node in model.graph] == ["MatMul", "Relu"]
    assert [value.name for value in model.graph.inputs] == ["input_0", "input_1"]
    assert [value.name for value in model.graph.outputs] == ["output_0"]


def test_what_one_exporter_does_not_know_the_other_may(tmp_path: Path) -> None:
    import torch

    model = exported(lambda x: (torch.special.entr(x),), tmp_path, torch.ones(2))
    assert model.opset_imports[""] == 18


def test_what_no_exporter_knows_has_a_hint() -> None:
    assert hint_for("the operator `svd`") == "rewrite the operation that is named above"
    assert "set_fastpath_enabled(False)" in hint_for("the operator _transformer_encoder_layer_fwd")


def test_bfloat16_becomes_float32_everywhere() -> None:
    proto = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]>
        g (bfloat16[2] x, bool c) => (bfloat16[2] y) <float[2] w = {0, 0}> {
          k = Constant<value = float[2] {0, 0}>()
          a = Add(x, k)
          b = Add(a, w)
          f = Cast<to = 1>(b)
          y = If(c) <then_branch = t () => (bfloat16[2] z) { z = Cast<to = 16>(f) },
                     else_branch = e () => (bfloat16[2] z) { z = Neg(b) }>
        }"""
    )
    numbers = np.array([1.5, -2.0]).astype(ml_dtypes.bfloat16)
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(numbers, "w"))
    proto.graph.node[0].attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(numbers))
    proto = ir.to_proto(widened(ir.from_proto(proto)))
    assert "bfloat16" not in onnx.printer.to_text(proto)
    assert onnx.numpy_helper.to_array(proto.graph.initializer[0]).tolist() == [1.5, -2.0]
    assert onnx.numpy_helper.to_array(proto.graph.node[0].attribute[0].t).tolist() == [1.5, -2.0]
    onnx.checker.check_model(proto, full_check=True)
