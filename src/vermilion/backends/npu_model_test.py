from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.backends import MACHINE_CODE
from vermilion.backends.base import Claim, CompileOptions, ModelFacts, Part, Program
from vermilion.backends.npu_model import NpuModelBackend, column_of
from vermilion.errors import ArtifactError, Refusal
from vermilion.hardware.targets.find import find_target
from vermilion.ir.execute import split_weights

STRIX, PHOENIX, VE2 = (find_target(name) for name in ("strix", "phoenix", "ve2"))
FACTS = ModelFacts("fp32", 17, 20, (), 1)


def claim(op_type: str, facts: ModelFacts = FACTS, domain: str = "") -> Claim | Refusal:
    return NpuModelBackend().claim(ir.node(op_type, [], domain=domain), facts, STRIX)


@pytest.mark.parametrize("op_type", ["Conv", "MatMul", "Softmax", "LayerNormalization"])
def test_claims_what_the_vendor_documents(op_type: str) -> None:
    assert claim(op_type) == Claim()


REFUSED = {
    "operator": (claim("Softplus"), "`Softplus` is not supported in bf16 by strix"),
    "domain": (claim("Gelu", domain="com.microsoft"), "`com.microsoft::Gelu` is not a standard"),
    "open shape": (
        claim("Conv", replace(FACTS, symbolic_dimensions=("batch",))),
        "strix needs fixed shapes; batch is dynamic",
    ),
    "format": (claim("Conv", replace(FACTS, number_format="int4")), "this model is int4"),
    "old resize": (claim("Resize", replace(FACTS, opset=10)), "Resize of opset 10"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_with_a_reason_and_a_hint(case: str) -> None:
    answer, words = REFUSED[case]
    assert isinstance(answer, Refusal)
    assert words in answer.reason
    assert answer.hint


def test_limits_of_a_target_refuse_the_whole_model() -> None:
    limits = replace(STRIX.limits, min_convolutions=5, max_batch=1)
    strict = replace(STRIX, limits=limits)
    node = ir.node("Conv", [])
    few = NpuModelBackend().claim(node, replace(FACTS, convolutions=4), strict)
    assert isinstance(few, Refusal)
    assert "at least 5 convolutions; this one has 4" in few.reason
    wide = NpuModelBackend().claim(node, replace(FACTS, batch=8), strict)
    assert isinstance(wide, Refusal)
    assert "1 entry of a batch; this model has 8" in wide.reason


def test_a_float_model_is_sent_to_the_quantizer_where_the_chip_takes_no_float() -> None:
    answer = NpuModelBackend().claim(ir.node("Conv", []), FACTS, PHOENIX)
    assert isinstance(answer, Refusal)
    assert answer.reason == "phoenix takes a8w8, xint8; this model is fp32"
    assert "vermilion quantize" in answer.hint


def test_the_outermost_q_and_dq_stay_on_the_cpu() -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[4] x) => (float[4] y) <float s = {0.5}, int8 z = {0}> {
      a = QuantizeLinear (x, s, z)  b = DequantizeLinear (a, s, z)
      c = Relu (b)
      d = QuantizeLinear (c, s, z)  y = DequantizeLinear (d, s, z)
    }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    facts = replace(FACTS, number_format="xint8")
    answers = [NpuModelBackend().claim(node, facts, STRIX) for node in model.graph]
    assert [isinstance(answer, Claim) for answer in answers] == [False, True, True, True, False]


def test_floats_are_compiled_as_bfloat16() -> None:
    assert [column_of(name) for name in ("fp32", "fp16", "bf16")] == ["bf16"] * 3
    assert column_of("xint8") == "xint8"
    assert column_of("int4") is None


class Files:
    def __init__(self, folder: Path, weights: dict[str, np.ndarray]) -> None:
        self._folder, self._weights = folder, weights

    def read(self, name: str) -> memoryview:
        return memoryview((self._folder / name).read_bytes())

    def weights(self) -> dict[str, np.ndarray]:
        return self._weights


def test_what_it_computes_is_marked_modelled(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[4] x) => (float[4] y) { y = Relu (x) }"""
    model = ir.from_proto(onnx.parser.parse_model(text))
    part = Part("vaiml_par_0", "npu", "npu_model", model, ("0",), 0.0)
    backend = NpuModelBackend()
    program = backend.compile(part, STRIX, CompileOptions(threads=1), tmp_path)
    assert program.modelled
    files = Files(tmp_path, split_weights(model)[1])
    loaded = backend.load(program, files, STRIX, CompileOptions(threads=1))
    assert loaded.runs_on.startswith("strix (modelled: bfloat16 computed by CPU (native code")
    x = np.array([-1, 0, 1, 2], np.float32)
    np.testing.assert_array_equal(loaded.run({"x": x})["y"], [0, 0, 1, 2])


def test_it_says_that_it_is_a_model() -> None:
    availability = NpuModelBackend().available(STRIX)
    assert availability.usable
    assert "arithmetic runs on the CPU" in availability.reason
    assert availability.hint


def test_a_part_that_names_an_unknown_engine_is_refused(tmp_path: Path) -> None:
    program = Program((), details={"engine": "abacus", "numbers": "bf16"})
    with pytest.raises(ArtifactError, match="computed by `abacus` in `bf16`: not known here"):
        NpuModelBackend().load(program, Files(tmp_path, {}), STRIX, CompileOptions())


def test_machine_code_of_a_modelled_part_is_run_where_it_was_made_only() -> None:
    assert NpuModelBackend.name in MACHINE_CODE
