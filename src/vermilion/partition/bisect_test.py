from __future__ import annotations

import numpy as np
import onnx_ir as ir

from models import resnet18, small_cnn
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import run_pass
from vermilion.ir.samples import sample_inputs
from vermilion.partition.bisect import bisect


def operators(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph]


def whole(build) -> ir.Model:
    model = build()
    run_pass(infer_shapes, model)
    return model


def test_one_bad_operator_is_found_alone_and_runs() -> None:
    model = whole(resnet18)
    found = bisect(model, lambda m: "no pooling in 3" if "MaxPool" in operators(m) else "")
    assert found is not None
    assert operators(found.model) == ["MaxPool"]
    assert found.reason == "no pooling in 3"
    assert found.tries < 20
    inputs = sample_inputs(found.model)
    (output,) = run_session(open_session(found.model), inputs).values()
    assert np.isfinite(output).all()


def test_two_that_fail_only_together_stay_together() -> None:
    model = whole(resnet18)

    def fails(part: ir.Model) -> str:
        kinds = operators(part)
        return "clash" if "GlobalAveragePool" in kinds and "MaxPool" in kinds else ""

    found = bisect(model, fails, max_tries=200)
    assert found is not None
    assert sorted(operators(found.model)) == ["GlobalAveragePool", "MaxPool"]


def test_another_fault_does_not_lead_the_search_astray() -> None:
    model = whole(resnet18)

    def fails(part: ir.Model) -> str:
        if "Gemm" in operators(part):
            return "crash in layer 12"
        return "cannot be compiled alone"

    found = bisect(model, fails)
    assert found is not None
    assert operators(found.model) == ["Gemm"]


def test_a_model_that_does_not_fail_has_no_culprit() -> None:
    assert bisect(whole(small_cnn), lambda _: "") is None


def test_the_number_of_tries_is_bounded() -> None:
    found = bisect(whole(resnet18), lambda m: "x" if len(m.graph) > 5 else "", max_tries=4)
    assert found is not None
    assert found.tries <= 4
