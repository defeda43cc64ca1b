from __future__ import annotations

import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import bundles
from vermilion.api import compile_model
from vermilion.backends.base import CompileOptions, Part, Tensors
from vermilion.backends.ort import OrtBackend
from vermilion.errors import ArtifactError, DeviceError, OptionError
from vermilion.hardware.targets.find import find_target
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.session import Session
from vermilion.runtime.write import ArtifactContent, CompiledPart, pack, write_artifact

# float32 sums of 128 products in another order: 128 × 2^-24 of values near 100.
TOLERANCE = 1e-3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    bundles.write_small(tmp_path / "bundle", tmp_path / "scratch")
    return tmp_path / "bundle"


@pytest.fixture
def session(folder: Path) -> Session:
    return Session(folder, threads=1)


def x_of(rows: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, 64), dtype=np.float32)


def bundle_of(text: str, weights: Mapping[str, np.ndarray], tmp_path: Path) -> Path:
    """Write a bundle of one part that is the whole model."""
    model = bundles.model_from_text(text, weights)
    names = tuple(node.name or "" for node in model.graph)
    made = _without_constant_outputs(model)
    parts: tuple[CompiledPart, ...] = ()
    if names:
        part = Part("cpu_par_0", "cpu", "ort", made, names, 0.0)
        scratch = tmp_path / "scratch-one"
        program = OrtBackend().compile(part, find_target("cpu"), CompileOptions(), scratch)
        parts = (CompiledPart(part, program, scratch),)
    content = ArtifactContent(model, parts, "cpu", {}, {"model": text}, bundles.small_summary())
    write_artifact(tmp_path / "one", content)
    return tmp_path / "one"


def _without_constant_outputs(model: ir.Model) -> ir.Model:
    clone = ir.from_proto(ir.to_proto(model))
    graph = clone.graph
    made = [value for value in graph.outputs if value.producer() is not None]
    graph.outputs.clear()
    graph.outputs.extend(made)
    for name in [name for name, value in graph.initializers.items() if not value.uses()]:
        del graph.initializers[name]
    return clone


@pytest.mark.parametrize("form", ["folder", "rai", "reader"])
def test_runs_like_onnx_runtime(form: str, folder: Path, tmp_path: Path) -> None:
    pack(folder, tmp_path / "b.rai")
    opened = {"folder": folder, "rai": str(tmp_path / "b.rai"), "reader": open_artifact(folder)}
    with Session(opened[form], threads=1) as session:
        x = x_of(3)
        y, h = session.run(None, {"x": x})
        expected_y, expected_h = bundles.small_answer(x)
        np.testing.assert_allclose(y, expected_y, atol=TOLERANCE)
        np.testing.assert_allclose(h, expected_h, atol=TOLERANCE)
        (only,) = session.run(["h"], {"x": x})
        np.testing.assert_array_equal(only, h)
        assert [(i.name, i.type, i.shape) for i in session.get_inputs()] == [
            ("x", "tensor(float)", ["n", 64])
        ]
        assert [output.name for output in session.get_outputs()] == ["y", "h"]
        assert session.get_providers() == ["CPUExecutionProvider"]
        assert session.get_modelmeta().custom_metadata_map == {"labels": "cat,dog"}
        assert [line.split(":")[0] for line in session.runs_on] == ["vaiml_par_0", "cpu_par_0"]


def test_a_closed_session_says_so(session: Session) -> None:
    session.close()
    with pytest.raises(OptionError, match="the session is closed"):
        session.run(None, {"x": x_of(1)})


WRONG_INPUTS: dict[str, tuple[dict[str, object], str, str]] = {
    "misspelt": ({"X": x_of(1)}, "no input `X`", "it|x"),
    "missing": ({}, "`x` is missing", "tensor"),
    "extra": ({"x": x_of(1), "z": x_of(1)}, "no input `z`", "inputs are `x`"),
    "float64": ({"x": x_of(1).astype(np.float64)}, "is float64, the model wants float32", "astype"),
    "int64": ({"x": np.ones((1, 64), np.int64)}, "is int64", "astype"),
    "rank": ({"x": x_of(1)[0]}, "has shape 64, the model wants n×64", "--dim"),
    "size": ({"x": np.ones((1, 65), np.float32)}, "has shape 1×65", "--dim"),
    "scalar": ({"x": np.float32(1)}, "has shape scalar", "--dim"),
    "ragged": ({"x": [[1.0], [1.0, 2.0]]}, "not an array", "numpy array of shape n×64"),
    "words": ({"x": "abc"}, "is <U3", "astype"),
    "nothing": ({"x": None}, "is object", "astype"),
}


@pytest.mark.parametrize("case", WRONG_INPUTS)
def test_wrong_inputs_get_a_clear_answer(case: str, session: Session) -> None:
    inputs, words, hint = WRONG_INPUTS[case]
    with pytest.raises(OptionError, match=words) as error:
        session.run(None, inputs)
    assert hint.split("|")[-1] in error.value.hint


def test_a_misspelt_output_gets_the_nearest_name(folder: Path, tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[2] image) => (float[2] score) { [a] score = Relu (image) }"""
    session = Session(bundle_of(text, {}, tmp_path), threads=1)
    with pytest.raises(OptionError, match="no output `scores`") as error:
        session.run(["scores"], {"image": np.ones(2, np.float32)})
    assert error.value.hint == "did you mean `score`?"
    with pytest.raises(OptionError, match="no input `imgae`") as error:
        session.run(None, {"imgae": np.ones(2, np.float32)})
    assert error.value.hint == "did you mean `image`?"


def test_one_name_is_one_size_in_all_inputs(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[batch] a, float[batch] b) => (float[batch] c) { [a] c = Concat <axis = 0> (a, b) }"""
    session = Session(bundle_of(text, {}, tmp_path), threads=1)
    with pytest.raises(OptionError, match="`batch` is 2 in input `a` and 3 in input `b`"):
        session.run(None, {"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)})


def test_a_question_mark_is_no_name(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[q] a, float[r] b) => (float[s] c) { [a] c = Concat <axis = 0> (a, b) }"""
    proto = onnx.parser.parse_model(text)
    for value in proto.graph.input:
        value.type.tensor_type.shape.dim[0].dim_param = "?"
    model = ir.from_proto(proto)
    part = Part("cpu_par_0", "cpu", "ort", model, ("a",), 0.0)
    program = OrtBackend().compile(part, find_target("cpu"), CompileOptions(), tmp_path / "s")
    compiled = CompiledPart(part, program, tmp_path / "s")
    content = ArtifactContent(model, (compiled,), "cpu", {}, {}, bundles.small_summary())
    write_artifact(tmp_path / "b", content)
    session = Session(tmp_path / "b", threads=1)
    (c,) = session.run(None, {"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)})
    assert c.shape == (5,)


def test_outputs_that_no_part_makes(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y, float[2] x, float[2, 5000] w) { [a] y = Relu (x) }"""
    weight = np.arange(10000, dtype=np.float32).reshape(2, 5000)
    session = Session(bundle_of(text, {"w": weight}, tmp_path), threads=1)
    x = np.array([-1, 1], np.float32)
    y, same, constant = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, [0, 1])
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(constant, weight)


def test_types_that_numpy_has_in_several_forms(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (string[n] s, bool[] b) => (string[n] t, bool[] c) {
      [a] t = Identity (s)
      [b] c = Not (b)
    }"""
    session = Session(bundle_of(text, {}, tmp_path), threads=1)
    for strings in (np.array(["a", "bc"]), np.array(["a", "bc"], object)):
        t, c = session.run(None, {"s": strings, "b": np.bool_(True)})
        assert list(t) == ["a", "bc"]
        assert not c


def test_many_threads_at_once(session: Session) -> None:
    def run(seed: int) -> bool:
        x = x_of(1 + seed % 5, seed)
        y, h = session.run(None, {"x": x})
        expected_y, expected_h = bundles.small_answer(x)
        return np.allclose(y, expected_y, atol=TOLERANCE) and np.allclose(
            h, expected_h, atol=TOLERANCE
        )

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(run, range(400)))


class CountingBackend(OrtBackend):
    """Notes what each part is given."""

    def __init__(self) -> None:
        self.given: list[list[str]] = []

    def load(self, program, files, target, options):  # type: ignore[no-untyped-def]
        inner = super().load(program, files, target, options)
        given = self.given

        class Executable:
            runs_on = inner.runs_on

            def run(self, inputs: Tensors) -> dict[str, np.ndarray]:
                given.append(sorted(inputs))
                return inner.run(inputs)

        return Executable()


def test_backends_may_be_given_and_parts_get_only_what_they_want(folder: Path) -> None:
    counting = CountingBackend()
    session = Session(folder, threads=1, backends={"ort": counting})
    session.run(None, {"x": x_of(1)})
    assert counting.given == [["x"], ["h"]]
    with pytest.raises(ArtifactError, match="compiled by `ort`, which is not among"):
        Session(folder, backends={})


def test_a_tensor_is_dropped_after_its_last_use(folder: Path) -> None:
    session = Session(folder, threads=1)
    dropped = {step.part.name: set(step.dropped) for step in session._steps}
    # `h` is also an output of the model; `x` is wanted by the first part alone.
    assert dropped == {"vaiml_par_0": {"x"}, "cpu_par_0": set()}


class WatchingBackend(OrtBackend):
    """Holds on to nothing; notes, at each part, which earlier results are still alive."""

    def __init__(self) -> None:
        self.made: dict[str, weakref.ref[np.ndarray]] = {}
        self.alive: list[list[str]] = []

    def load(self, program, files, target, options):  # type: ignore[no-untyped-def]
        inner, watcher = super().load(program, files, target, options), self

        class Executable:
            runs_on = inner.runs_on

            def run(self, inputs: Tensors) -> dict[str, np.ndarray]:
                alive = [name for name, made in watcher.made.items() if made() is not None]
                watcher.alive.append(sorted(alive))
                outputs = inner.run(inputs)
                watcher.made.update({name: weakref.ref(made) for name, made in outputs.items()})
                return outputs

        return Executable()


def test_memory_of_a_dropped_tensor_is_free_before_the_next_part(tmp_path: Path) -> None:
    scratch, weights = tmp_path / "scratch", bundles.small_weights()
    head = '<ir_version: 9, opset_import: ["" : 17]>\n'
    third = head + "third (float[n, 64] y) => (float[n, 64] z) { [end] z = Relu (y) }"
    whole = bundles.WHOLE.replace("(float[n, 64] y, float[n, 128] h)", "(float[n, 64] z)").replace(
        "y = MatMul (h, w2)", "y = MatMul (h, w2)\n  [end] z = Relu (y)"
    )
    content = ArtifactContent(
        bundles.model_from_text(whole, weights),
        (
            *bundles.small_parts(scratch),
            bundles.compiled(scratch, "cpu_par_1", third, {}, ("end",)),
        ),
        "cpu",
        {},
        {},
        bundles.small_summary(),
    )
    write_artifact(tmp_path / "b", content)
    watching = WatchingBackend()
    Session(tmp_path / "b", threads=1, backends={"ort": watching}).run(None, {"x": x_of(1)})
    assert watching.alive == [[], ["h"], ["y"]]


def test_machine_code_for_another_machine_is_not_run(folder: Path) -> None:
    bundles.edit_manifest(folder, lambda rows: rows.update(features=["warp-drive"]))
    with pytest.raises(DeviceError, match="has no warp-drive") as error:
        Session(folder)
    assert "compile the model again" in error.value.hint


def test_a_part_that_does_not_make_what_it_should(folder: Path) -> None:
    def change(rows: dict[str, object]) -> None:
        parts = rows["parts"]
        assert isinstance(parts, list)
        parts[1]["outputs"] = ["y", "more"]

    bundles.edit_manifest(folder, change)
    with pytest.raises(ArtifactError, match="`cpu_par_0` did not make `more`"):
        Session(folder, threads=1).run(None, {"x": x_of(1)})


def test_an_output_out_of_nothing(folder: Path) -> None:
    bundles.edit_manifest(
        folder,
        lambda rows: rows.update(outputs=[{"name": "q", "type": "tensor(float)", "shape": None}]),
    )
    with pytest.raises(ArtifactError, match="no part makes the output `q`"):
        Session(folder, threads=1)


def test_a_target_or_backend_of_another_version(folder: Path) -> None:
    def change(rows: dict[str, object]) -> None:
        parts = rows["parts"]
        assert isinstance(parts, list)
        parts[0]["backend"] = "teleport"

    bundles.edit_manifest(folder, change)
    with pytest.raises(ArtifactError, match="no backend is called `teleport`"):
        Session(folder, threads=1)


def test_options_that_make_no_sense(folder: Path) -> None:
    with pytest.raises(OptionError, match="-1 threads"):
        Session(folder, threads=-1)


def test_sizes_that_a_program_is_not_for_are_run_by_onnx_runtime(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n,length] x) => (float[n,length] y) { a = Relu(x)  y = Exp(a) }"""
    graph = ir.from_proto(onnx.parser.parse_model(text))
    session = compile_model(graph, cache_dir=tmp_path).session()
    some = np.ones((2, 3), np.float32)
    np.testing.assert_allclose(session.run(None, {"x": some})[0], np.exp(some), rtol=1e-6)
    assert not session.notes
    assert session.run(None, {"x": some[:0]})[0].shape == (0, 3)
    (note,) = session.notes
    assert note.startswith("ONNX Runtime runs the model at some sizes: `x` has the shape [0, 3]")
    assert [record.message for record in caplog.records] == [note]
    np.testing.assert_allclose(session.run(None, {"x": some})[0], np.exp(some), rtol=1e-6)
