from __future__ import annotations

import pytest

from models import small_cnn
from vermilion.backends import backend
from vermilion.hardware.targets.find import find_target
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import run_pass
from vermilion.partition.place import Placement, plan, settle
from vermilion.runtime.summarize import summarize
from vermilion.runtime.summary import Summary
from vermilion.version import VERSION

DEVICE = {"cpu": "ort", "npu": "npu_model"}


def summary_for(target_name: str) -> tuple[Summary, Placement]:
    model = small_cnn()
    run_pass(infer_shapes, model)
    target = find_target(target_name)
    decided = plan(model, target, backend(DEVICE[target.kind]), backend("ort"))
    placement = settle(decided, {})
    return summarize(model, placement, "m.onnx", "0123456789abcdef" * 4), placement


def test_counts_and_names_of_an_npu() -> None:
    summary, placement = summary_for("strix")
    assert (summary.model, summary.device) == ("m.onnx", "stx")
    assert (summary.model_data_type, summary.device_data_type) == ("float32", "bfloat16")
    assert summary.operators == summary.supported_operators == summary.offloaded_operators == 8
    assert summary.gops == pytest.approx(summary.offloaded_gops)
    assert (summary.subgraphs_supported, summary.subgraphs_offloaded) == (1, 1)
    (only,) = summary.subgraphs
    assert (only.name, only.type, only.operators) == ("vaiml_par_0", "npu", 8)
    assert only.ops == placement.cost.operations
    assert (summary.threshold_gops_percent, summary.max_subgraphs) == (20.0, 7)


def test_the_signature_has_the_length_of_the_vendors() -> None:
    summary, _ = summary_for("strix")
    assert summary.model_signature == "0123456789abcdef" * 2
    assert summary.vaip_commit == f"none (vermilion {VERSION})"


def test_the_cpu_computes_in_the_models_own_format() -> None:
    summary, _ = summary_for("zen3")
    assert (summary.device, summary.device_data_type) == ("zen3", "float32")
    assert summary.subgraphs[0].type == "cpu"
    # The vendor's line has a number there whatever the target.
    assert summary.max_subgraphs == 7


def test_nothing_offloaded() -> None:
    summary, _ = summary_for("phoenix")
    assert (summary.supported_operators, summary.offloaded_operators) == (0, 0)
    assert (summary.subgraphs, summary.offloaded_gops) == ((), 0.0)
    assert "Number of operators offloaded by VAIML: 0 (0.000%)" in summary.to_text()
