from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bundles
from vermilion.api import compile_model
from vermilion.backends.base import CompileOptions, Numerics, Part
from vermilion.backends.native import NativeBackend
from vermilion.backends.npu_model import NpuModelBackend
from vermilion.backends.ort import OrtBackend
from vermilion.errors import OptionError, OtherSizesError
from vermilion.hardware.targets.find import find_target
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.rewrite import run_pass
from vermilion.progress import no_progress
from vermilion.runtime.prove import Proof, WrongNumbersError, prove
from vermilion.runtime.prove_part import StagedFiles
from vermilion.runtime.write import CompiledPart

CPU, STRIX = find_target("x86-64-v3"), find_target("strix")


def proven(original: ir.Model, parts: Sequence[CompiledPart]) -> Proof:
    return prove(original, parts, CPU, no_progress)


def row_of(proof: Proof) -> Mapping[str, object]:
    assert proof.status == "proven", (proof.reason, proof.wrong)
    (row,) = proof.rows
    return row


def replaced(part: CompiledPart, text: str, weights: dict[str, np.ndarray]) -> CompiledPart:
    """Return the part compiled from another graph: a compiler that is wrong."""
    model = bundles.model_from_text(text, weights)
    folder = part.folder.parent / "wrong"
    program = OrtBackend().compile(replace(part.part, model=model), CPU, CompileOptions(), folder)
    return CompiledPart(part.part, program, folder)


def test_a_sample_beyond_float16_judges_no_float16(tmp_path: Path) -> None:
    """Sums of the edges are infinite in float16, whoever computes them."""
    weights = {name: 100 * array for name, array in bundles.small_weights().items()}
    model = bundles.model_from_text(bundles.WHOLE, weights)

    def proof_of(values: frozenset[str], operator: str = "Relu") -> Proof:
        """Return that of parts computed in float16, the first of which says so of `values`."""
        text = f"r = {operator} (a) c = Cast <to = 10> (r) h = Cast <to = 1> (c)"
        half = bundles.FIRST.replace("h = Relu (a)", text)
        folder = tmp_path / f"{operator}{len(values)}"
        one, other = ({name: weights[name]} for name in ("w1", "w2"))
        first = bundles.compiled(folder, "vaiml_par_0", half, one, ("first", "middle"))
        second = bundles.compiled(folder, "cpu_par_0", bundles.SECOND, other, ("last",))
        first = replace(
            first,
            part=replace(first.part, model=bundles.model_from_text(bundles.FIRST, one)),
            program=replace(first.program, numerics=Numerics("fp16", float16=values)),
        )
        return proven(model, (first, second))

    proof = proof_of(frozenset(("a", "h")))
    assert proof.status == "proven"
    assert proof.samples[0] == "ordinary"
    assert "edges" not in proof.samples
    assert "not judged on the sample `edges`: there `a` leaves the range of float16" in proof.notes
    assert proof_of(frozenset()).status == "not proven"
    assert proof_of(frozenset(("a", "h")), "Neg").status == "not proven"


def test_every_output_gets_a_row_and_every_kind_of_sample_is_tried(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    proof = prove(
        bundles.small_model(), bundles.small_parts(tmp_path), CPU, lambda *step: told.append(step)
    )
    assert [row["name"] for row in proof.rows] == ["y", "h"]
    for row in proof.rows:
        assert (row["status"], row["format"]) == ("proven", "fp32")
        assert row["samples"] == ["ordinary", "edges", "large"]
        assert float(str(row["sqnr_db"])) > 100
    assert told[0] == ("prove", 0, 4)
    assert told[-1] == ("prove", 4, 4)


def faulty(case: str) -> str:
    """Return the first part with a fault behind its Relu."""
    if case in ("another function", "no numbers"):
        return bundles.FIRST.replace("Relu", "Neg" if case == "another function" else "Log")
    extra = {
        "twice as large": "h = Add (r, r)",
        "a ten-thousandth more": "k = Constant <value_float = 1.0001> () h = Mul (r, k)",
        "half precision": "k = Cast <to = 10> (r) h = Cast <to = 1> (k)",
    }[case]
    return bundles.FIRST.replace("h = Relu (a)", f"r = Relu (a) {extra}")


@pytest.mark.parametrize(
    "case",
    ["another function", "no numbers", "twice as large", "a ten-thousandth more", "half precision"],
)
def test_a_wrong_part_is_found(case: str, tmp_path: Path) -> None:
    first, second = bundles.small_parts(tmp_path)
    wrong = replaced(first, faulty(case), bundles.small_weights())
    proof = proven(bundles.small_model(), (wrong, second))
    assert proof.status == "not proven"
    (name,) = proof.wrong
    assert name == first.part.name
    assert "another `h`" in proof.wrong[name].refusal.reason


SMALL = """<ir_version: 9, opset_import: ["" : 17]>
g (float[1,64] x) => (float[1,64] y) {
  [a] s = Mul (x, k)
  [b] y = Mul (s, t)
}"""


def test_a_small_output_is_judged_as_a_large_one_is(tmp_path: Path) -> None:
    small = {"k": np.array(1e-4, np.float32), "t": np.array(1e-4, np.float32)}
    model = bundles.model_from_text(SMALL, small)
    part = Part("cpu_par_0", "cpu", "ort", model, (), 0.0)
    program = OrtBackend().compile(part, CPU, CompileOptions(), tmp_path / "m")
    compiled = CompiledPart(part, program, tmp_path / "m")
    assert row_of(proven(model, (compiled,)))["name"] == "y"
    wrong = replaced(compiled, SMALL, small | {"t": np.array(-1e-4, np.float32)})
    assert proven(model, (wrong,)).wrong


NO_SAMPLE = """<ir_version: 9, opset_import: ["" : 17]>
g (float[4] x, int64[1] n) => (float[k] y) {
  w = Expand (x, n) d = Mod (n, n) e = Div (n, d) y = Expand (w, e)
}"""


def test_without_a_sample_nothing_is_proven_and_nothing_refused(tmp_path: Path) -> None:
    model = ir.from_proto(onnx.parser.parse_model(NO_SAMPLE))
    part = Part("cpu_par_0", "cpu", "ort", model, (), 0.0)
    program = OrtBackend().compile(part, CPU, CompileOptions(), tmp_path)
    proof = proven(model, [CompiledPart(part, program, tmp_path)])
    assert (proof.status, proof.wrong) == ("not proven", {})
    assert proof.rows[0]["status"] == "not proven"
    assert proof.reason
    assert proof.notes[0].startswith("not proven: ")


def test_a_sample_of_the_user_s_own_is_tried_first(tmp_path: Path) -> None:
    given = {"x": np.ones((1, 64), np.float32)}
    model = bundles.model_from_text(SMALL, {"k": np.float32(2), "t": np.float32(3)})
    part = Part("cpu_par_0", "cpu", "ort", model, (), 0.0)
    program = OrtBackend().compile(part, CPU, CompileOptions(), tmp_path)
    compiled = CompiledPart(part, program, tmp_path)
    row = row_of(prove(model, [compiled], CPU, no_progress, given=given))
    assert row["samples"] == ["given", "ordinary", "edges", "large"]
    wide = {"x": np.ones((1, 65), np.float32)}
    with pytest.raises(OptionError, match="does not run on the given inputs"):
        prove(model, [compiled], CPU, no_progress, given=wide)


DEEP = """<ir_version: 9, opset_import: ["" : 17]>
g (float[2,3,17,19] x) => (float[2,5] y) {
  [conv] c = Conv <pads = [1,1,1,1]> (x, w) [relu] r = Relu (c)
  [pool] p = MaxPool <kernel_shape = [3,3], strides = [2,2]> (r)
  [mean] m = GlobalAveragePool (p) [flat] f = Flatten (m) [head] h = MatMul (f, v)
  [soft] y = Softmax <axis = 1> (h)
}"""


def deep_weights(random: np.random.Generator) -> dict[str, np.ndarray]:
    shapes = {"w": (16, 3, 3, 3), "v": (16, 5)}
    return {name: random.standard_normal(shape).astype("f4") for name, shape in shapes.items()}


def native(model: ir.Model, folder: Path, precision: str = "auto") -> CompiledPart:
    run_pass(infer_shapes, model)
    part = Part("vaiml_par_0", "cpu", "native", model, (), 0.0)
    options = CompileOptions(precision=precision, threads=2)
    program = NativeBackend().compile(part, find_target("cpu"), options, folder)
    return CompiledPart(part, program, folder)


def test_other_sizes_are_drawn_where_a_program_is_not_for_the_first(tmp_path: Path) -> None:
    """Of one row there is a dimension less: this program is for more of them."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[1,N,4] x) => (float[N,M] y) { s = Squeeze (x) y = Softplus (s) }"""
    model = bundles.model_from_text(text, {})
    run_pass(infer_shapes, model)
    part = Part("vaiml_par_0", "cpu", "native", model, (), 0.0)
    compiled = CompiledPart(
        part, NativeBackend().compile(part, CPU, CompileOptions(), tmp_path), tmp_path
    )
    loaded = NativeBackend().load(
        compiled.program, StagedFiles(compiled), CPU, CompileOptions(threads=1)
    )
    with pytest.raises(OtherSizesError):
        loaded.run({"x": np.zeros((1, 1, 4), np.float32)})
    row = row_of(proven(model, [compiled]))
    assert row["samples"] == ["ordinary", "edges", "large"]


def test_what_a_last_softmax_hides_is_found_where_it_is_computed(tmp_path: Path) -> None:
    weights = deep_weights(np.random.default_rng(0))
    weights["v"] *= 1000.0  # the largest is 1.0 to the last bit, whatever the others are
    right = native(bundles.model_from_text(DEEP, weights), tmp_path / "right")
    target = find_target("cpu")
    assert prove(right.part.model, [right], target, no_progress).status == "proven"
    other = weights | {"w": weights["w"] * np.float32(1.0005)}
    wrong = native(bundles.model_from_text(DEEP, other), tmp_path / "wrong")
    mixed = CompiledPart(right.part, wrong.program, wrong.folder)
    proof = prove(right.part.model, [mixed], target, no_progress)
    (found,) = proof.wrong.values()
    assert "`conv` (Conv)" in found.refusal.reason
    assert "c" in found.results
    assert "h" not in found.results, "it is right for what it got"


CLASSES = """<ir_version: 9, opset_import: ["" : 17]>
g (float[64,32] x) => (int64[64] kind) {
  s = MatMul (x, w) kind = ArgMax <axis = 1, keepdims = 0> (s)
}"""


def test_classes_are_judged_at_the_scores_that_decide_them(tmp_path: Path) -> None:
    w = np.random.default_rng(2).standard_normal((32, 400)).astype(np.float32)
    right = native(bundles.model_from_text(CLASSES, {"w": w}), tmp_path / "right", "bf16")
    proof = prove(right.part.model, [right], find_target("cpu"), no_progress, "bf16")
    row = row_of(proof)
    assert (row["cosine"], row["amplified"]) == (1.0, True)
    assert "is decided by roundings" in proof.notes[0]
    other = CLASSES.replace("ArgMax", "ArgMin")
    wrong = native(bundles.model_from_text(other, {"w": w}), tmp_path / "wrong", "bf16")
    mixed = CompiledPart(right.part, wrong.program, wrong.folder)
    proof = prove(right.part.model, [mixed], find_target("cpu"), no_progress, "bf16")
    assert "another `kind`" in proof.wrong["vaiml_par_0"].refusal.reason


def test_a_pass_that_changed_the_model_is_named(tmp_path: Path) -> None:
    weights = deep_weights(np.random.default_rng(1))
    weights["v"] *= 0.05
    original = bundles.model_from_text(DEEP, weights)
    changed = bundles.model_from_text(DEEP, weights | {"v": weights["v"] * np.float32(1.01)})
    part = native(changed, tmp_path)
    with pytest.raises(WrongNumbersError, match="though every part computes what its nodes say"):
        prove(original, [part], find_target("cpu"), no_progress)


SEQUENCE = """<ir_version: 9, opset_import: ["" : 17]>
g (float[4] x) => (seq(float) y) { a = Relu (x)  y = SplitToSequence (a) }"""


def test_a_sequence_is_compared_number_by_number(tmp_path: Path) -> None:
    model = ir.from_proto(onnx.parser.parse_model(SEQUENCE))
    part = Part("cpu_par_0", "cpu", "ort", model, (), 0.0)
    program = OrtBackend().compile(part, CPU, CompileOptions(), tmp_path)
    row = row_of(proven(model, [CompiledPart(part, program, tmp_path)]))
    assert (row["name"], row["cosine"]) == ("y", 1.0)


# The difference of two products that are nearly one: what is left in bfloat16 is all rounding.
FAR = """<ir_version: 9, opset_import: ["" : 17]>
g (float[8,32] x) => (float[8,16] y) {
  a = MatMul (x, w)  b = MatMul (x, v)  y = Sub (a, b)
}"""


def modelled(text: str, weights: dict[str, np.ndarray], folder: Path) -> CompiledPart:
    model = bundles.model_from_text(text, weights)
    run_pass(infer_shapes, model)
    part = Part("vaiml_par_0", "npu", "npu_model", model, (), 0.0)
    program = NpuModelBackend().compile(part, STRIX, CompileOptions(threads=1), folder)
    return CompiledPart(part, program, folder)


def test_what_is_modelled_is_held_to_the_device_s_own_numbers(tmp_path: Path) -> None:
    w = np.random.default_rng(1).standard_normal((32, 16)).astype(np.float32)
    near = (w * np.float32(1 + 2.0**-10)).astype(np.float32)
    part = modelled(FAR, {"w": w, "v": near}, tmp_path / "right")
    proof = prove(part.part.model, [part], STRIX, no_progress)
    assert not proof.wrong
    row = proof.rows[0]
    assert row["status"] == "not proven", "the model decides nothing in bfloat16"
    assert "the model amplifies the roundings of bf16" in str(row["reason"])
    assert row["modelled_in"] == "bf16"
    assert float(str(row["cosine"])) < 0.99, "bfloat16 does not tell the two weights apart"
    assert row["amplified"]


def test_a_device_s_numbers_excuse_no_wrong_graph(tmp_path: Path) -> None:
    w = np.random.default_rng(1).standard_normal((32, 16)).astype(np.float32)
    weights = {"w": w, "v": -w}
    right = modelled(FAR, weights, tmp_path / "right")
    wrong = modelled(FAR.replace("Sub (a, b)", "Add (a, b)"), weights, tmp_path / "wrong")
    mixed = CompiledPart(right.part, wrong.program, wrong.folder)
    proof = prove(right.part.model, [mixed], STRIX, no_progress)
    assert "another `y`" in proof.wrong["vaiml_par_0"].refusal.reason


def test_a_kernel_of_onnx_runtime_that_loses_small_numbers_is_no_changed_model(
    tmp_path: Path,
) -> None:
    """Its LRN takes squares off again that it added; the LSTM has the interpreter run the model."""
    text = """<ir_version: 8, opset_import: ["" : 15]>
    g (float[1,8,3,13] x, float[2,5,4] s) => (float[1,8,3,13] y, float[2,1,2] h) {
      [y] y = LRN <alpha = 0.3, beta = 0.5, bias = 2.0, size = 3> (x)
      [h] "", "", h = LSTM <hidden_size = 2, layout = 1> (s, w, r) }"""
    random = np.random.default_rng(0)
    shapes = {"w": (1, 8, 4), "r": (1, 8, 2)}
    weights = {name: random.standard_normal(shape).astype("f4") for name, shape in shapes.items()}
    model = bundles.model_from_text(text, weights)
    parts = []
    for number, name in enumerate(("y", "h")):
        piece = ir.from_proto(ir.to_proto(model))
        for value in [v for v in piece.graph.outputs if v.name != name]:
            piece.graph.outputs.remove(value)
        for node in [n for n in piece.graph if n.name != name]:
            piece.graph.remove(node, safe=False)
        unread = {"y": "s", "h": "x"}[name]
        piece.graph.inputs.remove(next(v for v in piece.graph.inputs if v.name == unread))
        run_pass(infer_shapes, piece)
        chosen = OrtBackend() if name == "y" else NativeBackend()
        part = Part(f"part_{number}", "cpu", "ort" if name == "y" else "native", piece, (), 0.0)
        folder = tmp_path / name
        program = chosen.compile(part, CPU, CompileOptions(), folder)
        parts.append(CompiledPart(part, program, folder))
    proof = prove(model, parts, CPU, no_progress)
    assert not proof.wrong
    assert "edges" in proof.samples
    assert any("`y`: ONNX Runtime and the interpreter" in note for note in proof.notes)


def test_what_overflows_in_half_precision_is_no_changed_model(tmp_path: Path) -> None:
    """Squares of the samples' large values are infinite, in ONNX Runtime only where it stores."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
    f (float16[8,16] x) => (float16[8,16] y, float16[8,1] m, float16[8,3] z) {
      [s] s = Mul (x, x) [m] m = ReduceMean <axes = [-1]> (s) [e] e = Add (m, eps)
      [r] r = Sqrt (e) [i] i = Div (one, r) [y] y = Mul (x, i) [z] z = MatMul (m, w)
    }"""
    half = {"eps": np.float16(1e-3), "one": np.float16(1), "w": np.ones((1, 3), np.float16)}
    model = bundles.model_from_text(text, half)
    part = native(model, tmp_path / "part")
    proof = prove(model, [part], find_target("cpu"), no_progress)
    assert not proof.wrong
    assert "edges" in proof.samples


@pytest.mark.parametrize("default", [False, True])
def test_what_a_sigmoid_leaves_of_low_sums_is_held_against_float64(
    tmp_path: Path, default: bool
) -> None:
    """ONNX Runtime's sigmoid is 0 below -18, where the model's numbers are small ones."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
        g (float[N,64] x) => (float[N,64] y) {
            s = MatMul (x, w) b = Add (s, c) f = Mul (b, k) y = Sigmoid (f) }"""
    draw = np.random.default_rng(5)
    weights = {"w": draw.standard_normal((64, 64)), "c": np.full(64, -60.0), "k": np.ones(64)}
    model = bundles.model_from_text(text, {k: a.astype(np.float32) for k, a in weights.items()})
    if default:  # an input that the caller may leave out
        model.graph.inputs.append(model.graph.initializers["k"])
    compiled = compile_model(ir.to_proto(model), cache_dir=tmp_path, target="cpu")
    (row,) = compiled.report.verification
    assert (row["status"], row["format"]) == ("proven", "fp32")
    assert row["sqnr_db"] > 70
    assert any("activation" in note for note in compiled.report.notes)
