"""A script that was written for ONNX Runtime: the same on ours, or one line what to write."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import vermilion
from vermilion.errors import OptionError, VermilionError

TEXT = """<ir_version: 8, opset_import: ["" : 17], producer_name: "them", domain: "net",
  model_version: 7, doc_string: "what it is", metadata_props: ["labels": "cat,dog"]>
g (float[2,3] x, int64[2] i) => (float[2,3] y, int64[2] j) {
  y = Relu (x)
  j = Add (i, i)
}"""
X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
FEEDS: dict[str, Any] = {"x": X, "i": np.array([3, 4])}


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path / "cache"))
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def session(path: Path) -> vermilion.Session:
    return vermilion.Session(path)


def is_right(found: list[Any]) -> bool:
    return np.array_equal(found[0], np.maximum(X, 0)) and found[1].tolist() == [6, 8]


def test_every_form_of_opening(path: Path) -> None:
    artifact = vermilion.compile_model(path).artifact
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    for opened in (
        vermilion.Session(path),
        vermilion.Session(str(path), options, ["CPUExecutionProvider"]),
        vermilion.Session(path.read_bytes(), sess_options=options),
        vermilion.Session(artifact, providers=[("CPUExecutionProvider", {"arena": "1"})]),
        vermilion.Session(artifact, options, provider_options=[{}]),
    ):
        assert is_right(opened.run(None, FEEDS))
        assert not opened.notes
    other = vermilion.Session(path, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert "CUDAExecutionProvider not used" in other.notes[0]
    assert vermilion.Session(path, options).get_session_options() is options


@pytest.mark.parametrize("given", [b"", b"no model", 3, None, ["a"]])
def test_what_is_no_model_is_refused_in_words(given: Any, path: Path) -> None:
    with pytest.raises(VermilionError):
        vermilion.Session(given)


def test_every_form_of_running(session: vermilion.Session) -> None:
    value = ort.OrtValue.ortvalue_from_numpy
    for names in (None, [], ["y", "j"], ("y", "j")):
        assert is_right(session.run(names, FEEDS))
    assert is_right(session.run(None, FEEDS, ort.RunOptions()))
    assert is_right(session.run(None, {"x": X.tolist(), "i": [3, 4]}))
    assert is_right(session.run(None, {"x": value(X), "i": value(FEEDS["i"])}))
    found = session.run_with_ort_values(None, {name: value(a) for name, a in FEEDS.items()})
    assert is_right([one.numpy() for one in found])
    answers: queue.Queue[tuple[Any, ...]] = queue.Queue()
    for feeds in (FEEDS, {}):
        session.run_async(None, feeds, lambda *told: answers.put(told), "mine")
    told = [answers.get(timeout=30) for _ in range(2)]
    assert {user for _, user, _ in told} == {"mine"}
    assert sum(is_right(found) for found, _, words in told if not words) == 1
    assert sum("is missing" in words for _, _, words in told) == 1


def test_numbers_of_python_are_not_cut(session: vermilion.Session) -> None:
    with pytest.raises(OptionError, match="input `i` is float64"):
        session.run(None, {"x": X.tolist(), "i": [3.5, 4]})
    options = ort.RunOptions()
    options.terminate = True
    with pytest.raises(OptionError, match="terminated"):
        session.run(None, FEEDS, options)


def test_arrays_are_bound(session: vermilion.Session) -> None:
    binding = session.io_binding()
    x, y = X.copy(), np.zeros((2, 3), np.float32)
    binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    binding.bind_cpu_input("i", FEEDS["i"])
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    binding.bind_output("j")
    session.run_with_iobinding(binding)
    assert is_right([y, binding.copy_outputs_to_cpu()[1]])
    x[:] = 9
    session.run_with_iobinding(binding, ort.RunOptions())
    assert (y == 9).all()
    place = session.create_ortvalue_from_shape_and_type([2, 3], np.float32)
    binding.bind_ortvalue_output("y", place)
    session.run_with_iobinding(binding)
    assert (place.numpy() == 9).all()
    assert [one.numpy().shape for one in binding.get_outputs()] == [(2, 3), (2,)]
    binding.bind_output("y", "cpu", 0, np.float32, (3, 2), y.ctypes.data)
    with pytest.raises(OptionError, match="its memory is bound as"):
        session.run_with_iobinding(binding)
    with pytest.raises(OptionError, match="no output `z`"):
        binding.bind_output("z")
    with pytest.raises(OptionError, match="memory of `cuda`"):
        binding.bind_output("y", "cuda", 0, np.float32, (2, 3), 1)


def test_names_types_and_metadata_are_the_same(path: Path, session: vermilion.Session) -> None:
    peer = ort.InferenceSession(path)
    for mine, theirs in (
        (session.get_inputs(), peer.get_inputs()),
        (session.get_outputs(), peer.get_outputs()),
    ):
        assert [(a.name, a.type, a.shape) for a in mine] == [
            (a.name, a.type, a.shape) for a in theirs
        ]
    meta = session.get_modelmeta(), peer.get_modelmeta()
    for name in (name for name in dir(meta[1]) if not name.startswith("_")):
        assert getattr(meta[0], name) == getattr(meta[1], name), name


def test_all_that_is_left_out_says_what_to_write(session: vermilion.Session) -> None:
    names = [name for name in dir(ort.InferenceSession) if not name.startswith("_")]
    assert [name for name in names if not hasattr(session, name)] == []
    arguments = {"set_ep_dynamic_options": ({},), "set_tuning_results": ([],)}
    for name in (
        *("end_profiling", "get_profiling_start_time_ns", "get_provider_graph_assignment_info"),
        *("get_input_epdevices", "get_input_memory_infos", "get_output_memory_infos"),
        *("get_tuning_results", "set_tuning_results", "set_ep_dynamic_options"),
        *("release_captured_graph", "run_with_ortvaluevector"),
    ):
        with pytest.raises(VermilionError) as caught:
            getattr(session, name)(*arguments.get(name, ()))
        assert name in caught.value.message
        assert caught.value.hint
    session.set_providers(["CPUExecutionProvider"])
    with pytest.raises(OptionError, match="when it was compiled"):
        session.set_providers(["CUDAExecutionProvider"], [{}])
    assert session.get_provider_options() == {name: {} for name in session.get_providers()}
