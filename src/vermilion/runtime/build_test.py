from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import onnx_ir as ir
import pytest

import bundles
from vermilion.backends import backend
from vermilion.backends.base import Backend, CompileOptions, Part, Program
from vermilion.backends.native import NativeBackend
from vermilion.backends.npu_model import NpuModelBackend
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import Target
from vermilion.progress import no_progress
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.build import BuildRequest, build_artifact
from vermilion.runtime.prove import WrongNumbersError
from vermilion.runtime.report import Report, read_report

CPU, STRIX = find_target("x86-64-v3"), find_target("strix")

# Three parts of generated code, which has no arc tangent.
CHAIN = """<ir_version: 9, opset_import: ["" : 17]>
net (float[4,64] x) => (float[4,128] z) {
  [first] a = MatMul (x, w1)
  [relu] h = Relu (a)
  [bent] p = Atan (h)
  [second] y = MatMul (p, w2)
  [again] q = Atan (y)
  [third] t = MatMul (q, w1)
  [last] z = Abs (t)
}"""


def compiles_another(base: type[Backend], operator: str, instead: str) -> Backend:
    """Return a backend as it is with a fault: of one operator it makes another."""

    class Faulty(base):  # type: ignore[misc, valid-type]
        def compile(
            self, part: Part, target: Target, options: CompileOptions, folder: Path
        ) -> Program:
            model = part.model.clone()
            for node in model.graph:
                node.op_type = instead if node.op_type == operator else node.op_type
            return cast(
                Program, super().compile(replace(part, model=model), target, options, folder)
            )

    return cast(Backend, Faulty())


def built(model: ir.Model, device: Backend, folder: Path, target: Target = CPU) -> Report:
    request = BuildRequest(
        model, "(in memory)", target, (device, backend("ort")), CompileOptions(threads=1), {},
        fix=False, cache_parts={},
    )  # fmt: skip
    build_artifact(request, folder, no_progress)
    return read_report(open_artifact(folder))


def chain() -> ir.Model:
    return bundles.model_from_text(CHAIN, bundles.small_weights())


def places(report: Report) -> dict[object, object]:
    return {row["name"]: row["backend"] for row in report.nodes}


def test_only_the_wrong_nodes_go_to_onnx_runtime_and_are_named(tmp_path: Path) -> None:
    found = built(chain(), compiles_another(NativeBackend, "Relu", "Abs"), tmp_path / "m")
    wanted = {
        "first": "ort", "relu": "ort", "bent": "ort", "second": "native", "again": "native",
        "third": "native", "last": "native",
    }  # fmt: skip
    assert places(found) == wanted
    (note,) = found.notes
    assert note.startswith("nodes of vaiml_par_0 were left out, and ONNX Runtime computes them")
    assert "another `p` than the model" in note
    (relu,) = (row for row in found.nodes if row["name"] == "relu")
    assert "another `p`" in str(relu["reason"])
    assert found.verification[0]["cosine"] == pytest.approx(1.0)


def test_all_wrong_parts_are_found_at_once(tmp_path: Path) -> None:
    faulty = compiles_another(NativeBackend, "Relu", "Nothing")  # does not even compile
    assert set(places(built(chain(), faulty, tmp_path / "a")).values()) == {"ort", "native"}
    faulty = compiles_another(NativeBackend, "Abs", "Neg")
    model = bundles.model_from_text(CHAIN.replace("Relu", "Abs"), bundles.small_weights())
    found = built(model, faulty, tmp_path / "b")
    assert "`relu`" in found.notes[0]
    assert {n: places(found)[n] for n in ("relu", "second", "last")} == {
        "relu": "ort", "second": "native", "last": "ort",
    }  # fmt: skip


def test_nothing_is_noted_where_all_is_right(tmp_path: Path) -> None:
    found = built(chain(), backend("native"), tmp_path / "m")
    assert found.notes == ()
    assert places(found)["relu"] == "native"


def test_a_modelled_part_that_is_wrong_goes_to_the_cpu(tmp_path: Path) -> None:
    faulty = compiles_another(NpuModelBackend, "Relu", "Abs")
    text = bundles.WHOLE.replace("[n, ", "[4, ")
    model = bundles.model_from_text(text, bundles.small_weights())
    found = built(model, faulty, tmp_path / "m", STRIX)
    assert set(places(found).values()) == {"ort"}
    assert "another `h`" in found.notes[0]


def test_a_graph_that_no_backend_computes_rightly_is_refused(tmp_path: Path) -> None:
    class AlsoWrong(type(backend("ort"))):  # type: ignore[misc]
        def compile(
            self, part: Part, target: Target, options: CompileOptions, folder: Path
        ) -> Program:
            model = part.model.clone()
            for node in model.graph:
                node.op_type = "Abs" if node.op_type == "Relu" else node.op_type
            return cast(
                Program, super().compile(replace(part, model=model), target, options, folder)
            )

    device = compiles_another(NativeBackend, "Relu", "Abs")
    request = BuildRequest(
        chain(), "(in memory)", CPU, (device, AlsoWrong()), CompileOptions(threads=1), {},
        fix=False, cache_parts={},
    )  # fmt: skip
    with pytest.raises(WrongNumbersError, match="gives another `p`"):
        build_artifact(request, tmp_path / "m", no_progress)
    assert not (tmp_path / "m").exists()


# The root of a difference that is nothing but rounding: NaN wherever that came out below zero.
ROOT = """<ir_version: 9, opset_import: ["" : 17]>
f (float[8,32] x) => (float[8,16] y) {
  [a] a = MatMul (x, w) [b] b = MatMul (x, v) [c] c = Sub (a, b) [d] y = Sqrt (c)
}"""


def test_nan_that_rounding_makes_is_told_and_is_no_fault(tmp_path: Path) -> None:
    w = np.random.default_rng(1).standard_normal((32, 16)).astype(np.float32)
    near = (w * np.float32(1 + 2.0**-10)).astype(np.float32)
    model = bundles.model_from_text(ROOT, {"w": w, "v": near})
    found = built(model, backend("npu_model"), tmp_path / "m", STRIX)
    (row,) = found.verification
    assert row["has_nan"]
    unlike = row["unlike_places"]
    assert isinstance(unlike, int)
    assert 0 < unlike < 8 * 16
    assert "NaN or infinite" in found.notes[0]
    assert np.isfinite(cast(float, row["max_abs_error"])), "JSON has no infinity"
    assert places(found)["a"] == "npu_model"


def test_nan_where_the_device_s_own_numbers_have_none_is_a_fault(tmp_path: Path) -> None:
    text = ROOT.replace("Sub (a, b)", "Mul (a, a)")
    w = np.random.default_rng(1).standard_normal((32, 16)).astype(np.float32)
    model = bundles.model_from_text(text, {"w": w, "v": w})
    faulty = compiles_another(NpuModelBackend, "Mul", "Sub")  # a - a: no NaN, but no root either
    assert set(places(built(model, faulty, tmp_path / "a", STRIX)).values()) == {"ort"}
    faulty = compiles_another(NpuModelBackend, "Sqrt", "Log")
    model = bundles.model_from_text(text.replace("Mul (a, a)", "Sub (a, a)"), {"w": w, "v": w})
    assert set(places(built(model, faulty, tmp_path / "b", STRIX)).values()) == {"ort"}


def test_an_output_without_a_number_proves_nothing_and_says_so(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    f (float[8] x) => (float[8] y) {
      [a] b = Abs (x) [b] c = Neg (b) [c] d = Sub (c, o) [d] y = Log (d)
    }"""
    model = bundles.model_from_text(text, {"o": np.array(1.0, np.float32)})
    found = built(model, backend("native"), tmp_path / "m")
    assert found.notes == ("`y` is not proven: it is NaN everywhere on every sample",)
