from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from vermilion.backends.base import Claim, ModelFacts
from vermilion.backends.migraphx.rules import TAKEN, TAKEN_CONTRIBUTED, claim
from vermilion.errors import Refusal

FIXED = ModelFacts("fp32", 17, 0, (), 1)


@pytest.mark.parametrize(
    ("domain", "operator", "words"),
    [
        ("", "Conv", ""),
        ("", "LayerNormalization", ""),
        ("com.microsoft", "BiasGelu", ""),
        ("", "NonMaxSuppression", "does not list `NonMaxSuppression`"),
        ("", "BiasGelu", "does not list `BiasGelu`"),
        ("com.microsoft", "Conv", "of the domain `com.microsoft`"),
        ("mine", "Conv", "of the domain `mine`"),
    ],
)
def test_what_the_provider_lists(domain: str, operator: str, words: str) -> None:
    verdict = claim(ir.node(operator, [], domain=domain), FIXED)
    if words:
        assert isinstance(verdict, Refusal)
        assert words in verdict.reason
    else:
        assert isinstance(verdict, Claim)


def test_open_sizes_are_refused_with_what_closes_them() -> None:
    verdict = claim(ir.node("Conv", []), ModelFacts("fp32", 17, 1, ("n",), None, "--dim n=1"))
    assert isinstance(verdict, Refusal)
    assert verdict.hint == "fix it: `--dim n=1`"


def test_every_name_is_an_operator() -> None:
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history()}
    # Of ONNX Runtime, written without a domain by its model builder.
    assert TAKEN - known == {"SimplifiedLayerNormalization"}
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    contributed = {s.name for s in state.get_all_operator_schema() if s.domain == "com.microsoft"}
    assert TAKEN_CONTRIBUTED - contributed <= {"SimplifiedLayerNormalization"}
