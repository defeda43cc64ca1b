"""The path as a function: cache, gate, single file, fallbacks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import vermilion.backends
from models import branching_cnn, mobilenet, small_cnn
from vermilion.api import Compiled, compile_model
from vermilion.backends import BACKENDS
from vermilion.backends.base import CompileOptions, Part, Program
from vermilion.backends.npu_model import NpuModelBackend
from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import Target
from vermilion.inspection import inspect_model
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.samples import sample_inputs
from vermilion.runtime import build
from vermilion.runtime.session import Session

HEADER = '<ir_version: 9, opset_import: ["" : 17, "com.microsoft" : 1]>\n'

# Simplified and as it came differ by float32 roundings alone; on an NPU floats are bfloat16, whose
# every rounding is off by 2^-9, with up to ten of them on the way here.
TOLERANCE, BFLOAT16_TOLERANCE = 1e-4, 2.0**-5


def parse(text: str, **weights: np.ndarray) -> ir.Model:
    proto = onnx.parser.parse_model(HEADER + text)
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return ir.from_proto(proto)


def square(size: int = 64) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((size, size), dtype=np.float32) / 8


def check_runs(model: ir.Model, compiled: Compiled) -> None:
    inputs = sample_inputs(model, seed=3)
    expected = run_session(open_session(model), inputs)
    with compiled.session(threads=1) as session:
        found = session.run(list(expected), inputs)
    for name, array in zip(expected, found, strict=True):
        most = BFLOAT16_TOLERANCE if compiled.target.kind == "npu" else TOLERANCE
        largest = max(1.0, float(np.abs(expected[name]).max()))
        np.testing.assert_allclose(array, expected[name], rtol=most, atol=most * largest)


@pytest.mark.parametrize("target", ["cpu", "strix"])
def test_from_a_file_to_a_folder_that_runs(target: str, tmp_path: Path) -> None:
    file = tmp_path / "small.onnx"
    ir.save(small_cnn(bn=True), file)
    told: list[str] = []
    compiled = compile_model(
        file,
        target=target,
        cache_dir=tmp_path / "cache",
        progress=lambda stage, done, total: told.append(stage),
    )
    check_runs(small_cnn(bn=True), compiled)
    assert list(dict.fromkeys(told)) == ["simplify", "compile", "prove"]
    assert not compiled.cache_hit
    assert compiled.artifact == tmp_path / "cache" / compiled.cache_key
    assert compiled.report.summary.model == str(file.resolve())
    assert compiled.report.summary.operators == 8, "batch norms are folded"
    assert compiled.summary_path.read_text().startswith("--------- Final Summary of VAIML Pass")
    fired = {row["name"]: row["fired"] for row in compiled.report.passes}
    assert fired["fold-batch-norm"] == 2
    (row,) = compiled.report.verification
    assert row["name"] == "output"
    assert compiled.report.predicted_ms is None, "so small a network says nothing"
    assert bool(compiled.report.predicted_reason) == (target == "strix")


def test_the_second_time_comes_from_the_cache(tmp_path: Path) -> None:
    first = compile_model(small_cnn(), cache_dir=tmp_path)
    again = compile_model(small_cnn(), cache_dir=tmp_path)
    assert (first.cache_hit, again.cache_hit) == (False, True)
    assert (again.digest, again.artifact) == (first.digest, first.artifact)
    assert again.report == first.report
    for other in (
        compile_model(small_cnn(bn=True), cache_dir=tmp_path),
        compile_model(small_cnn(), target="x86-64-v3", cache_dir=tmp_path),
        compile_model(small_cnn(batch="n"), dims={"n": 1}, cache_dir=tmp_path),
        compile_model(small_cnn(batch="n"), dims={"n": 2}, cache_dir=tmp_path),
    ):
        assert not other.cache_hit
        assert other.digest != first.digest


def test_a_file_its_bytes_its_message_and_its_graph_are_one_model(tmp_path: Path) -> None:
    file = tmp_path / "small.onnx"
    ir.save(small_cnn(bn=True), file)
    first = compile_model(file, cache_dir=tmp_path)
    assert first.report.summary.model == str(file.resolve())
    for source in (file.read_bytes(), onnx.load(file), ir.load(file)):
        again = compile_model(source, cache_dir=tmp_path)
        assert (again.cache_hit, again.digest) == (True, first.digest)
    assert inspect_model(onnx.load(file)).path == "(in memory)"


def test_the_same_name_for_another_model_compiles_again_and_says_so(tmp_path: Path) -> None:
    compile_model(small_cnn(), cache_dir=tmp_path, cache_key="mine")
    other = compile_model(branching_cnn(), cache_dir=tmp_path, cache_key="mine")
    assert (other.cache_hit, other.cache_key) == (False, "mine")
    assert other.cache_reason == "key `mine` held another model"
    changed = compile_model(branching_cnn(), target="strix", cache_dir=tmp_path, cache_key="mine")
    assert "another" in changed.cache_reason
    assert "`target`" in changed.cache_reason
    check_runs(branching_cnn(), changed)


def test_one_file_is_the_same_as_the_folder(tmp_path: Path) -> None:
    model = mobilenet()
    compiled = compile_model(
        model, target="strix", cache_dir=tmp_path / "cache", output=tmp_path / "out" / "m.rai"
    )
    assert compiled.artifact == tmp_path / "out" / "m.rai"
    check_runs(model, compiled)
    inputs = sample_inputs(model)
    one = Session(compiled.artifact, threads=1).run(None, inputs)
    other = Session(compiled.cache_dir / compiled.cache_key, threads=1).run(None, inputs)
    np.testing.assert_array_equal(one[0], other[0])


def test_a_gate_that_is_met_lets_the_file_through(tmp_path: Path) -> None:
    compile_model(
        small_cnn(),
        target="strix",
        cache_dir=tmp_path,
        output=tmp_path / "m.rai",
        min_offload="gops=100%",
    )
    assert (tmp_path / "m.rai").is_file()


def half_supported() -> ir.Model:
    """Two products of which an unsupported operator between makes two parts."""
    return parse(
        """g (float[32,64] x) => (float[32,64] y) {
          [m1] a = MatMul (x, w) [s] b = Softplus (a) [m2] y = MatMul (b, w)
        }""",
        w=square(),
    )


def test_a_gate_that_is_not_met_writes_no_file_and_loses_none(tmp_path: Path) -> None:
    earlier = compile_model(small_cnn(), cache_dir=tmp_path, output=tmp_path / "m.rai")
    before = earlier.artifact.read_bytes()
    with pytest.raises(UnsupportedError, match=r"66\.667% of the operators .* 90% were asked"):
        compile_model(
            half_supported(),
            target="strix",
            cache_dir=tmp_path,
            output=tmp_path / "m.rai",
            min_offload="operators=90%",
        )
    assert (tmp_path / "m.rai").read_bytes() == before
    with pytest.raises(UnsupportedError):
        compile_model(
            half_supported(),
            target="strix",
            cache_dir=tmp_path,
            output=tmp_path / "new.rai",
            min_offload="operators=90%",
        )
    assert not list(tmp_path.glob("*new*"))


def test_wrong_use_is_found_before_any_work(tmp_path: Path) -> None:
    for arguments, words in (
        ({"target": "strx"}, "unknown target `strx`"),
        ({"min_offload": "95%"}, "not a gate"),
        ({"output": tmp_path / "m.zip"}, "does not end in .rai"),
        ({"dims": {"batch": 1}}, "batch"),
        ({"cache_key": "../up"}, "cache key"),
    ):
        with pytest.raises(OptionError, match=words):
            compile_model(small_cnn(), cache_dir=tmp_path, **arguments)  # type: ignore[arg-type]
    assert not list(tmp_path.glob("*.rai"))


def test_a_target_that_nothing_compiles_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vermilion.backends.iree.toolchain.PACKAGES", ("no-such-compiler",))
    with pytest.raises(UnsupportedError, match="nothing here compiles for gfx942") as error:
        compile_model(small_cnn(), target="gfx942", cache_dir=tmp_path)
    assert "no-such-compiler is not installed" in error.value.where
    assert "pip install 'vermilion[gpu]'" in error.value.hint


def test_what_no_runtime_knows_fails_and_leaves_nothing(tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[4] y) { y = com.microsoft.Teleport (x) }"
    with pytest.raises(UnsupportedError, match="Teleport"):
        compile_model(parse(text), cache_dir=tmp_path)
    assert not [entry for entry in tmp_path.iterdir() if not entry.name.startswith(".")]


def test_a_damaged_file_is_the_files_fault(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    ir.save(small_cnn(), file)
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(ModelError):
        compile_model(file, cache_dir=tmp_path)


class NarrowBackend(NpuModelBackend):
    """A device whose compiler gives up on products wider than it has memory for."""

    name = "narrow"

    def compile(self, part: Part, target: Target, options: CompileOptions, folder: Path) -> Program:
        for node in part.model.graph:
            shape = node.outputs[0].shape
            if shape is not None and 128 in shape:
                raise UnsupportedError("L1 placement failure", hint="split the product")
        return super().compile(part, target, options, folder)


def test_a_part_that_fails_to_compile_goes_to_the_cpu_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Registered as any backend is: a name and where its class lies.
    table = {**BACKENDS, "narrow": f"{__name__}:NarrowBackend"}
    monkeypatch.setattr(vermilion.backends, "BACKENDS", table)
    monkeypatch.setitem(build._BACKENDS, "npu", ("narrow",))
    wide = np.random.default_rng(1).standard_normal((64, 128), dtype=np.float32) / 8
    model = parse(
        """g (float[32,64] x) => (float[32,64] y) {
          [m1] a = MatMul (x, w) [r] b = Relu (a) [s] c = Softplus (b)
          [m2] d = MatMul (c, wide) [m3] y = MatMul (d, back)
        }""",
        w=square(),
        wide=wide,
        back=np.ascontiguousarray(wide.T),
    )
    compiled = compile_model(model, target="strix", cache_dir=tmp_path)
    fallback = compiled.report.summary.fallback
    assert (fallback.compile_error, fallback.below_gops_threshold) == (1, 0)
    assert compiled.report.summary.subgraphs_supported == 2
    assert compiled.report.summary.offloaded_operators == 2
    places = {
        row["name"]: (row["device"], row["reason"], row["hint"]) for row in compiled.report.nodes
    }
    assert places["m1"] == places["r"] == ("npu", "", "")
    failed = ("cpu", "its region failed to compile: L1 placement failure", "split the product")
    assert places["m2"] == places["m3"] == failed
    assert "Softplus" in places["s"][1]
    text = compiled.summary_path.read_text()
    assert "with compilation errors (fall back to CPU): 1" in text
    rows = json.loads((compiled.summary_path.parent / "summary.json").read_text())["nodes"]
    assert [row["reason"] for row in rows if row["name"] == "m2"] == [failed[1]]
    check_runs(model, compiled)


CROSSINGS = {
    "into the device": """g (float[32,64] x) => (float[32,64] y) {
      [g] a = com.microsoft.SampleOp (x) [m] b = MatMul (a, w) [r] y = Relu (b) }""",
    "past the device": """g (float[32,64] x) => (float[32,64] y) {
      [g] a = com.microsoft.SampleOp (x) [m] b = MatMul (x, w) [s] d = Softplus (b)
      [p] y = Add (d, a) }""",
}


@pytest.mark.parametrize("case", CROSSINGS)
def test_values_that_onnx_cannot_type_may_cross_between_parts(case: str, tmp_path: Path) -> None:
    model = parse(CROSSINGS[case], w=square())
    compiled = compile_model(model, target="strix", cache_dir=tmp_path)
    places = {row["name"]: row["device"] for row in compiled.report.nodes}
    assert (places["g"], places["m"]) == ("cpu", "npu")
    assert compiled.report.summary.fallback.compile_error == 0
    check_runs(model, compiled)


def test_an_open_batch_takes_any_size_on_the_cpu(tmp_path: Path) -> None:
    model = small_cnn(batch="batch")
    session = compile_model(model, cache_dir=tmp_path).session(threads=1)
    assert session.get_inputs()[0].shape == ["batch", 3, 16, 16]
    reference = open_session(model)
    for batch in (1, 5):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 16, 16), dtype=np.float32)
        (found,) = session.run(None, {"input": x})
        assert found.shape == (batch, 10)
        expected = run_session(reference, {"input": x})["output"]
        np.testing.assert_allclose(found, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_an_open_batch_on_a_device_is_refused_with_the_option_that_binds_it(
    tmp_path: Path,
) -> None:
    compiled = compile_model(small_cnn(batch="batch"), target="strix", cache_dir=tmp_path)
    reasons: Sequence[object] = [row["reason"] for row in compiled.report.nodes]
    assert set(reasons) == {"strix needs fixed shapes; batch is dynamic"}
    assert all("--dim batch=1" in str(row["hint"]) for row in compiled.report.nodes)
    bound = compile_model(
        small_cnn(batch="batch"), target="strix", dims={"batch": 1}, cache_dir=tmp_path
    )
    assert bound.report.summary.offloaded_operators == 8


def test_int8_is_for_models_that_have_it(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="the model is fp32") as error:
        compile_model(small_cnn(), precision="int8", cache_dir=tmp_path)
    assert "vermilion quantize" in error.value.hint
    assert list(tmp_path.glob("*")) == []


def test_an_npu_takes_floats_in_the_format_that_is_asked_for(tmp_path: Path) -> None:
    model = small_cnn()
    errors = {}
    for precision in ("auto", "bf16", "bfp16"):
        compiled = compile_model(model, target="strix", precision=precision, cache_dir=tmp_path)
        (row,) = compiled.report.verification
        assert row["modelled_in"] == ("bfp16" if precision == "bfp16" else "bf16")
        errors[precision] = row["sqnr_db"]
        check_runs(model, compiled)
    assert errors["auto"] == errors["bf16"] > errors["bfp16"]


@pytest.mark.parametrize(
    ("target", "precision", "words"),
    [
        ("strix", "int8", "unknown precision `int8`"),
        ("phoenix", "bf16", "phoenix computes in the model's own number format"),
    ],
)
def test_an_npu_refuses_other_formats(target: str, precision: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        compile_model(small_cnn(), target=target, precision=precision)


def test_a_float_format_is_refused_for_a_quantized_model() -> None:
    model = parse(
        """g (float[1,8] x) => (float[1,8] y) <float s = {0.5}, int8 z = {0}> {
          a = QuantizeLinear (x, s, z) b = DequantizeLinear (a, s, z) c = Relu (b)
          d = QuantizeLinear (c, s, z) y = DequantizeLinear (d, s, z)
        }"""
    )
    with pytest.raises(OptionError, match="the model is xint8, which strix computes as it is"):
        compile_model(model, target="strix", precision="bf16")


def test_generated_code_of_a_modelled_part_says_what_it_needs(tmp_path: Path) -> None:
    compiled = compile_model(small_cnn(), target="strix", cache_dir=tmp_path)
    with compiled.session(threads=1) as session:
        assert "native code" in session.runs_on[0]
        assert set(session.manifest.features) == find_target("cpu").features
