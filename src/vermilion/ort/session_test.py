"""A session on compiled models: the calls, results and errors of `onnxruntime.InferenceSession`."""

from __future__ import annotations

import gc
import json
import logging
import os
import queue
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state as state

import vermilion
import vermilion.ort as ours
from vermilion.errors import OptionError, UnsupportedError, VermilionError
from vermilion.ort.asked import Asked
from vermilion.ort.engines import Engines
from vermilion.ort.providers import CPU, Plan
from vermilion.ort.source import Source, compiled, look_up, refuse
from vermilion.ort.voice import Voice, heard
from vermilion.runtime.cache import Cache

TEXT = """<ir_version: 8, opset_import: ["" : 17], producer_name: "them", domain: "net",
  model_version: 7, doc_string: "what it is", metadata_props: ["labels": "cat,dog"]>
g (float[2,3] x, int64[2] i) => (float[2,3] y, int64[2] j) {
  [first] y = Relu (x)
  [second] j = Add (i, i)
}"""
OPEN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch,3] x, float[batch,3] z) => (float[batch,3] y) <float[3] b = {1, 2, 3}> {
  s = Add (x, b)
  y = Mul (s, z)
}"""
X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)
FEEDS: dict[str, Any] = {"x": X, "i": np.array([3, 4])}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path / "cache"))
    heard.clear()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def open_path(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(OPEN), tmp_path / "open.onnx")
    return tmp_path / "open.onnx"


@pytest.fixture
def session(path: Path) -> vermilion.InferenceSession:
    return vermilion.InferenceSession(path, compile="now")


def is_right(found: list[Any]) -> bool:
    return np.array_equal(found[0], np.maximum(X, 0)) and found[1].tolist() == [6, 8]


def test_every_form_of_opening(path: Path) -> None:
    artifact = vermilion.compile_model(path).artifact
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    for opened in (
        vermilion.InferenceSession(path),
        vermilion.InferenceSession(str(path), options, ["CPUExecutionProvider"]),
        vermilion.InferenceSession(path.read_bytes(), sess_options=options),
        vermilion.InferenceSession(artifact, providers=ours.get_available_providers()),
        vermilion.InferenceSession(str(artifact), options, ["CPUExecutionProvider"], [{}]),
    ):
        assert opened.is_compiled
        assert is_right(opened.run(None, FEEDS))
        assert not opened.notes
        assert opened.get_providers() == ["VermilionExecutionProvider", "CPUExecutionProvider"]
    assert vermilion.InferenceSession(path, options).get_session_options() is options


def test_onnx_runtime_answers_until_it_is_compiled(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = vermilion.InferenceSession(path.read_bytes())
    assert is_right(session.run(None, FEEDS))
    peer = session._runs.engines._peer
    watched = weakref.ref(peer) if peer is not None else lambda: None
    del peer
    assert session.wait(60)
    assert session.is_compiled
    assert session.runs_on[0].startswith("vaiml_par_0: CPU (native code")
    assert is_right(session.run(None, FEEDS))
    (said,) = [row for row in caplog.records if row.levelno >= logging.WARNING]
    assert "ONNX Runtime answers until it is" in said.message
    gc.collect()
    assert watched() is None  # its memory is let go of
    again = vermilion.InferenceSession(path.read_bytes())
    assert again.is_compiled
    assert not again.notes


def test_runs_stay_right_while_sessions_go_over_to_the_program(path: Path) -> None:
    """Two open the model before it is compiled, which one of their processes does."""
    sessions = [vermilion.InferenceSession(path) for _ in range(2)]
    wrong: list[str] = []
    places: set[str] = set()
    stop = threading.Event()

    def work(session: vermilion.InferenceSession) -> None:
        while not stop.is_set():
            places.update(session.get_providers())
            if not is_right(session.run(None, FEEDS)):
                wrong.append("other numbers")

    threads = [threading.Thread(target=work, args=(one,)) for one in (*sessions, sessions[0])]
    for thread in threads:
        thread.start()
    assert all(session.wait(120) for session in sessions)
    time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
    assert places == {"VermilionExecutionProvider", "CPUExecutionProvider"}


def test_a_file_that_changes_is_another_model(path: Path) -> None:
    assert is_right(vermilion.InferenceSession(path, compile="now").run(None, FEEDS))
    onnx.save(onnx.parser.parse_model(TEXT.replace("Relu", "Neg")), path)
    session = vermilion.InferenceSession(path, compile="now")
    assert np.array_equal(session.run(["y"], FEEDS)[0], -X)


def test_what_cannot_be_compiled_is_left_to_onnx_runtime(path: Path) -> None:
    options = ours.SessionOptions()
    options.add_initializer("nothing", ort.OrtValue.ortvalue_from_numpy(X))
    session = vermilion.InferenceSession(path, options)
    assert is_right(session.run(None, FEEDS))
    assert not session.is_compiled
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.notes == (
        "ONNX Runtime runs m.onnx: `add_initializer` replaces a weight of the model",
    )


def test_every_form_of_running(session: vermilion.InferenceSession) -> None:
    value = ort.OrtValue.ortvalue_from_numpy
    for names in (None, [], ["y", "j"], ("y", "j")):
        assert is_right(session.run(names, FEEDS))
    assert is_right(session.run(None, FEEDS, ort.RunOptions()))
    assert is_right(session.run(None, {"x": X.tolist(), "i": [3, 4]}))
    assert is_right(session.run(None, {"x": value(X), "i": value(FEEDS["i"])}))
    values = {name: value(a) for name, a in FEEDS.items()}
    found = session.run_with_ort_values(None, values)
    assert is_right([one.numpy() for one in found])
    answers: queue.Queue[tuple[Any, ...]] = queue.Queue()
    for feeds in (FEEDS, {**FEEDS, "x": X[0]}):
        session.run_async(None, feeds, lambda *told: answers.put(told), "mine")
    told = [answers.get(timeout=30) for _ in range(2)]
    assert {user for _, user, _ in told} == {"mine"}
    assert is_right(told[0][0])
    assert "has shape 3" in told[1][2]
    feeds, fetches = state.OrtValueVector(), state.OrtValueVector()
    for one in values.values():
        feeds.push_back(one._ortvalue)
    for _ in range(2):  # the second time into what the first has made
        session.run_with_ortvaluevector(None, list(values), feeds, ["y", "j"], fetches, [])
        assert is_right([ort.OrtValue(one).numpy() for one in fetches])
    assert len(fetches) == 2


def test_what_is_made_of_a_value_outlives_it(session: vermilion.InferenceSession) -> None:
    lend = ort.OrtValue.ortvalue_from_numpy
    values = {name: lend(a) for name, a in FEEDS.items()}
    vectors = state.OrtValueVector(), state.OrtValueVector()
    for one in values.values():
        vectors[0].push_back(one._ortvalue)
    session.run_with_ortvaluevector(None, list(values), vectors[0], ["y", "j"], vectors[1], [])
    found = [
        [one.numpy() for one in session.run_with_ort_values(None, values)],
        [ort.OrtValue(one).numpy() for one in vectors[1]],
    ]
    binding = session.io_binding()
    for name, a in FEEDS.items():
        binding.bind_cpu_input(name, a)
    for name in ("y", "j"):
        binding.bind_output(name)
    session.run_with_iobinding(binding)
    found.append([one.numpy() for one in binding.get_outputs()])
    found.append([ort.OrtValue(one).numpy() for one in binding.get_outputs_as_ortvaluevector()])
    binding.clear_binding_outputs()
    # What takes memory that was let go of.
    over = [np.full(a.shape, 7, a.dtype) for a in found[0] for _ in range(20)]
    assert all(map(is_right, found)), over


def test_what_no_memory_has_cannot_be_bound(session: vermilion.InferenceSession) -> None:
    binding = session.io_binding()
    for wrong in ({"buffer_ptr": 0}, {"buffer_ptr": -8}, {"shape": (-1, 3)}, {"element_type": 99}):
        place = {"device_type": "cpu", "device_id": 0, "element_type": np.float32,
                 "shape": (2, 3), "buffer_ptr": X.ctypes.data, **wrong}  # fmt: skip
        for bind in (binding.bind_input, binding.bind_output):
            with pytest.raises(RuntimeError, match=r"no memory of shape|no element type"):
                bind("x" if bind == binding.bind_input else "y", **place)
    with pytest.raises(TypeError):
        binding.bind_input("x", "cpu", 0, np.float32, "23", X.ctypes.data)


def test_what_is_no_option_cannot_be_set() -> None:
    for options in (ours.SessionOptions(), ours.RunOptions()):
        with pytest.raises(AttributeError):
            options.intra_op_num_thread = 1
    assert ours.SessionOptions().entries == {}


def raised(call: Callable[[], object]) -> BaseException | None:
    try:
        call()
    except BaseException as error:
        return error
    return None


def test_errors_are_those_that_scripts_catch(
    path: Path, tmp_path: Path, session: vermilion.InferenceSession
) -> None:
    peer = ort.InferenceSession(path)
    ended = ort.RunOptions()
    ended.terminate = True
    wrong: dict[str, tuple[Any, ...]] = {
        "missing": (None, {"x": X}),
        "unknown": (None, {**FEEDS, "q": X}),
        "output": (["q"], FEEDS),
        "type": (None, {**FEEDS, "x": X.astype(np.float64)}),
        "rank": (None, {**FEEDS, "x": X[0]}),
        "size": (None, {**FEEDS, "x": X[:, :2].copy()}),
        "whole": (None, {"x": X, "i": np.array([3.5, 4])}),
        "ended": (None, FEEDS, ended),
        "options": (None, FEEDS, 5),
        "one name": ("y", FEEDS),
        "a number": ([1], FEEDS),
        "key": (None, {1: X}),
    }
    for what, arguments in wrong.items():
        theirs = raised(lambda a=arguments: peer.run(*a))
        mine = raised(lambda a=arguments: session.run(*a))
        assert theirs is not None, what
        assert isinstance(mine, type(theirs)), (what, mine, theirs)
        assert isinstance(mine, VermilionError) or what in ("options", "one name", "a number")
    for feed in ([X], None, "x"):
        with pytest.raises(TypeError, match="a dictionary of arrays by name"):
            session.run(None, feed)  # type: ignore[arg-type]
    for name in ("", "a\0b"):
        with pytest.raises(TypeError, match="no file can be called"):
            vermilion.InferenceSession(name)
    broken = onnx.parser.parse_model(TEXT)
    broken.graph.node[0].input[0] = "nowhere"
    unknown = onnx.parser.parse_model(TEXT)
    unknown.graph.node[0].op_type = "Nothing"
    models = (
        *(tmp_path / "no.onnx", b"no model", b"", None, 3, ["a"]),
        *(broken.SerializeToString(), unknown.SerializeToString()),
    )
    for model in models:
        theirs = raised(lambda m=model: ort.InferenceSession(m, enable_fallback=0))
        mine = raised(lambda m=model: vermilion.InferenceSession(m))
        assert theirs is not None
        assert isinstance(mine, type(theirs)), (model, mine, theirs)
    for providers, options in ((5, None), ([5], None), (["a"], [1]), (["a"], []), ("a", None)):
        with pytest.raises(ValueError, match="provider"):
            vermilion.InferenceSession(path, providers=providers, provider_options=options)
    with pytest.raises(OptionError, match="`background` or `now`"):
        vermilion.InferenceSession(path, compile="later")  # type: ignore[arg-type]


def test_memory_is_bound_without_copies(session: vermilion.InferenceSession, path: Path) -> None:
    options = ours.SessionOptions()
    options.add_initializer("nothing", ort.OrtValue.ortvalue_from_numpy(X))
    for one in (session, vermilion.InferenceSession(path, options)):
        binding = ours.IOBinding(one)
        x, y = X.copy(), np.zeros((2, 3), np.float32)
        binding.bind_input("x", "cpu", 0, np.float32, x.shape, x.ctypes.data)
        binding.bind_cpu_input("i", FEEDS["i"])
        binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        binding.bind_output("j")
        one.run_with_iobinding(binding)
        assert is_right([y, binding.copy_outputs_to_cpu()[1]])
        assert binding.get_outputs()[0].data_ptr() == y.ctypes.data
        assert len(binding.get_outputs_as_ortvaluevector()) == 2
        x[:] = 9
        one.run_with_iobinding(binding, ort.RunOptions())
        assert (y == 9).all()
        place = one.create_ortvalue_from_shape_and_type([2, 3], np.float32, "cpu")
        binding.bind_ortvalue_output("y", place)
        one.run_with_iobinding(binding)
        assert (place.numpy() == 9).all()
        assert [value.shape() for value in binding.get_outputs()] == [[2, 3], [2]]
        # Its own input, and memory that begins where no array does.
        for address in (x.ctypes.data, np.zeros(40, np.uint8)[1:].ctypes.data):
            binding.bind_output("y", "cpu", 0, onnx.TensorProto.FLOAT, y.shape, address)
            one.run_with_iobinding(binding)
            assert (binding.copy_outputs_to_cpu()[0] == 9).all()
        binding.bind_output("y", "cpu", 0, np.float32, (3, 2), y.ctypes.data)
        with pytest.raises(RuntimeError, match="3"):
            one.run_with_iobinding(binding)
        with pytest.raises(OptionError, match="no output `z`"):
            binding.bind_output("z")
        with pytest.raises(RuntimeError, match="no input `z`"):
            binding.bind_cpu_input("z", X)
        with pytest.raises(OptionError, match="memory of `cuda`"):
            binding.bind_output("y", "cuda", 0, np.float32, (2, 3), 1)
        binding.clear_binding_outputs()
        with pytest.raises(RuntimeError, match="at least one output"):
            one.run_with_iobinding(binding)
    with pytest.raises(ValueError, match="the session that made it"):
        session.run_with_iobinding(binding)


def test_the_program_writes_where_an_output_is_bound(
    session: vermilion.InferenceSession, open_path: Path
) -> None:
    place = np.zeros((2, 3), np.float32)
    found = session._runs.compute(["y"], FEEDS, places={"y": place})
    assert found[0] is place
    opened = vermilion.InferenceSession(open_path, compile="now")
    found = opened._runs.compute(None, {"x": X, "z": X}, places={"y": place})
    assert found[0] is place
    assert np.array_equal(place, (X + np.array([1, 2, 3], np.float32)) * X)
    # A part that ONNX Runtime computes; one place is too small.
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n,2,2] x) => (float[n] y) { y = Det (x) }"""
    other = onnx.parser.parse_model(text).SerializeToString()
    part = vermilion.InferenceSession(other, compile="now")
    assert "ONNX Runtime" in part.runs_on[0]
    feed = {"x": np.array([[[1, 2], [3, 4]], [[2, 0], [0, 2]]], np.float32)}
    line = np.zeros(2, np.float32)
    found = part._runs.compute(None, feed, places={"y": line})
    assert found[0] is line
    assert np.allclose(line, [-2, 4])
    with pytest.raises(RuntimeError, match="has shape"):
        part._runs.compute(None, feed, places={"y": np.zeros(3, np.float32)})
    twice = np.zeros((2, 2), np.float32)[:, 0]  # not in one piece
    found = part._runs.compute(None, feed, places={"y": twice})
    assert found[0] is not twice
    over = X.copy()  # the input itself
    found = session._runs.compute(["y"], {**FEEDS, "x": over}, places={"y": over})
    assert not np.shares_memory(found[0], over)


def test_names_types_and_metadata_are_the_same(
    path: Path, open_path: Path, session: vermilion.InferenceSession
) -> None:
    for file, one in (
        (path, session),
        (open_path, vermilion.InferenceSession(open_path, compile="now")),
    ):
        peer = ort.InferenceSession(file)
        for mine, theirs in (
            (one.get_inputs(), peer.get_inputs()),
            (one.get_outputs(), peer.get_outputs()),
        ):
            assert list(map(str, mine)) == list(map(str, theirs))
        meta = one.get_modelmeta(), peer.get_modelmeta()
        for name in (name for name in dir(meta[1]) if not name.startswith("_")):
            assert getattr(meta[0], name) == getattr(meta[1], name), name
        infos = one.get_input_memory_infos(), peer.get_input_memory_infos()
        for a, b in zip(*infos, strict=True):
            assert (a.name, a.mem_type, a.device_id) == (b.name, b.mem_type, b.device_id)
        assert len(one.get_output_memory_infos()) == len(peer.get_outputs())
        assert [d.ep_name for d in one.get_input_epdevices()] == [
            d.ep_name for d in peer.get_input_epdevices()
        ]


def test_open_sizes_and_names_that_stand_for_two(open_path: Path) -> None:
    peer = ort.InferenceSession(open_path)
    session = vermilion.InferenceSession(open_path, compile="now")
    for batch in (1, 2, 7):
        feeds = {"x": np.ones((batch, 3), np.float32), "z": np.full((batch, 3), 2, np.float32)}
        assert np.array_equal(session.run(None, feeds)[0], peer.run(None, feeds)[0])
    uneven = {"x": X, "z": X[:1]}  # one name, two sizes: the operators can
    assert np.array_equal(session.run(None, uneven)[0], peer.run(None, uneven)[0])
    assert "dimension `batch` is 2" in session.notes[-1]
    session.disable_fallback()
    with pytest.raises(VermilionError, match="dimension `batch`"):
        session.run(None, uneven)
    session.enable_fallback()
    assert len(session.run(None, uneven)) == 1


def test_free_dimensions_are_bound(open_path: Path) -> None:
    options = ours.SessionOptions()
    options.add_free_dimension_override_by_name("batch", 2)
    options.add_free_dimension_override_by_name("length", 9)
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 2)
    session = vermilion.InferenceSession(open_path, options, compile="now")
    assert [value.shape for value in session.get_inputs()] == [[2, 3], [2, 3]]
    assert "native code" in session.runs_on[0]
    assert session.notes[:2] == (
        "the model has no free dimension `length`",
        "no named dimension of an input denotes `DATA_BATCH`",
    )
    model = onnx.load(open_path)
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = ours.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 2)
    session = vermilion.InferenceSession(model.SerializeToString(), options, compile="now")
    assert session.get_inputs()[0].shape == [2, 3]
    assert not session.notes


def test_weights_that_are_inputs_may_be_replaced(open_path: Path) -> None:
    model = onnx.load(open_path)
    model.graph.input.append(onnx.helper.make_tensor_value_info("b", onnx.TensorProto.FLOAT, [3]))
    data = model.SerializeToString()
    peer = ort.InferenceSession(data)
    session = vermilion.InferenceSession(data, compile="now")
    for one in (session, vermilion.InferenceSession(data)):  # the second from its note
        assert [value.name for value in one.get_inputs()] == ["x", "z"]
        mine, theirs = (s.get_overridable_initializers() for s in (one, peer))
        assert list(map(str, mine)) == list(map(str, theirs))
        for more in ({}, {"b": np.full(3, 8, np.float32)}):
            feeds = {"x": X, "z": X, **more}
            assert np.array_equal(one.run(None, feeds)[0], peer.run(None, feeds)[0])
        assert any("replaces weights" in note for note in one.notes)


def test_a_run_that_the_program_cannot_is_onnx_runtimes(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[4] x, int64[2] i) => (float[2] y) { y = Gather (x, i) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "g.onnx")
    session = vermilion.InferenceSession(tmp_path / "g.onnx", compile="now")
    feeds = {"x": np.arange(4, dtype=np.float32), "i": np.array([1, 9])}
    theirs = raised(lambda: ort.InferenceSession(tmp_path / "g.onnx").run(None, feeds))
    mine = raised(lambda: session.run(None, feeds))
    assert theirs is not None
    assert type(mine) is type(theirs)
    session.disable_fallback()
    with pytest.raises(VermilionError, match="running the model failed"):
        session.run(None, feeds)


def test_providers_are_chosen_again(path: Path) -> None:
    cuda = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    session = vermilion.InferenceSession(path, providers=cuda, compile="now")
    assert session.notes == (
        "provider `CUDAExecutionProvider` is not available here: it is left out",
    )
    session.set_providers(["CPUExecutionProvider", ("CPUExecutionProvider", {})])
    assert session.is_compiled
    twice = "provider `CPUExecutionProvider` is named twice: the first counts"
    assert session.notes[1:] == (twice,)
    session.set_providers([("CPUExecutionProvider", {"arena": 1})])
    assert "option `arena` of `CPUExecutionProvider` does not apply" in session.notes[-1]
    assert is_right(session.run(None, FEEDS))
    assert session.get_provider_options() == {name: {} for name in session.get_providers()}


def test_a_provider_of_another_device_is_onnx_runtimes(path: Path) -> None:
    """One that ONNX Runtime says it has; here it takes the CPU instead, and says so itself."""
    asked = Asked()
    plan = Plan(("XPU", CPU), ({}, {}), elsewhere=("XPU",))
    voice = Voice(asked.severity, "")
    with (
        pytest.warns(UserWarning, match="'XPU' is not in available provider names"),
        suppress(ValueError, RuntimeError),
    ):
        Engines(Source(file=path), asked, plan, voice)
    artifact = vermilion.compile_model(path).artifact
    engines = Engines(Source(bundle=artifact), asked, plan, voice)
    assert engines.bundle is not None
    assert voice.notes[-1].startswith("`XPU` does not apply: where a compiled bundle runs")
    with pytest.raises(OptionError, match="needs ONNX Runtime and the model"):
        engines.peer()


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no forks")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_process_opens_onnx_runtime_again(path: Path) -> None:
    options = ours.SessionOptions()
    options.add_initializer("nothing", ort.OrtValue.ortvalue_from_numpy(X))
    session = vermilion.InferenceSession(path, options)
    assert is_right(session.run(None, FEEDS))
    answers: queue.Queue[tuple[Any, ...]] = queue.Queue()
    session.run_async(None, FEEDS, lambda *told: answers.put(told))
    assert is_right(answers.get(timeout=30)[0])
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # rather than wait for ever
        right = is_right(session.run(None, FEEDS))
        session.run_async(None, FEEDS, lambda *told: answers.put(told))
        right = right and is_right(answers.get(timeout=20)[0])
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_nodes_are_assigned(path: Path) -> None:
    with pytest.raises(VermilionError, match="was not recorded") as caught:
        vermilion.InferenceSession(path, compile="now").get_provider_graph_assignment_info()
    assert isinstance(caught.value, state.Fail)
    options = ours.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = vermilion.InferenceSession(path, options)
    told = [(part.ep_name, [node.op_type for node in part.get_nodes()]) for part in
            session.get_provider_graph_assignment_info()]  # fmt: skip
    assert told == [("VermilionExecutionProvider", ["Relu", "Add"])]


def test_a_profile_has_onnx_runtimes_form(path: Path, tmp_path: Path) -> None:
    options, others = ort.SessionOptions(), ort.SessionOptions()
    for one, prefix in ((options, "ours"), (others, "theirs")):
        one.enable_profiling = True
        one.profile_file_prefix = str(tmp_path / prefix)
    before = ort.InferenceSession(path, others).get_profiling_start_time_ns()
    session = vermilion.InferenceSession(path, options)
    session.run(None, FEEDS)  # by ONNX Runtime
    after = ort.InferenceSession(path, others).get_profiling_start_time_ns()
    assert before < session.get_profiling_start_time_ns() < after
    assert session.wait(60)
    session.run(None, FEEDS)
    file = Path(session.end_profiling())
    assert file.parent == tmp_path
    assert session.end_profiling() == ""
    events = json.loads(file.read_text(encoding="utf-8"))
    assert all(
        event.keys() == {"cat", "pid", "tid", "dur", "ts", "ph", "name", "args"}
        and event["ph"] == "X"
        and event["cat"] in ("Session", "Node")
        for event in events
    )
    assert sum(event["name"] == "model_run" for event in events) == 2
    nodes = [event for event in events if event["cat"] == "Node"]
    assert {event["args"]["provider"] for event in nodes} == {
        "CPUExecutionProvider", "VermilionExecutionProvider",
    }  # fmt: skip
    mine = [e for e in nodes if e["args"]["provider"].startswith("Vermilion")]
    assert {event["args"]["op_name"] for event in mine} == {"Relu", "Add"}
    assert all(event["name"].endswith("_kernel_time") for event in nodes)
    runs = [event for event in events if event["name"] == "model_run"]
    assert runs[1]["ts"] <= mine[0]["ts"] <= runs[1]["ts"] + runs[1]["dur"]
    assert [*tmp_path.glob("ours*")] == [file]
    assert session.run(None, FEEDS)
    assert vermilion.InferenceSession(path).end_profiling() == ""


def test_a_closed_session_runs_nothing(session: vermilion.InferenceSession) -> None:
    with session:
        assert is_right(session.run(None, FEEDS))
    with pytest.raises(VermilionError, match="is closed"):
        session.run(None, FEEDS)


def test_the_optimized_model_is_written(path: Path, tmp_path: Path) -> None:
    options = ours.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    session = vermilion.InferenceSession(path, options, compile="now")
    assert session.is_compiled
    onnx.checker.check_model(tmp_path / "optimized.onnx")


def test_what_cannot_be_compiled_is_not_tried_again(path: Path) -> None:
    source = Source(file=path)
    refuse(source, Asked(), look_up(source, Asked()), "no such thing here")
    for when in ("now", "background"):
        session = vermilion.InferenceSession(path, compile=when)  # type: ignore[arg-type]
        assert session.notes == (
            "ONNX Runtime runs m.onnx: it cannot be compiled: no such thing here",
        )
        assert is_right(session.run(None, FEEDS))
    with pytest.raises(UnsupportedError, match="no such thing here"):
        compiled(source, Asked())
    with pytest.raises(UnsupportedError, match="no such thing here") as caught:
        vermilion.InferenceSession(path, enable_fallback=0)
    assert isinstance(caught.value, state.NotImplemented)


def test_what_our_door_does_not_take_is_onnx_runtimes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vermilion.ir.sparse.MAX_DENSE_BYTES", 4)
    model = onnx.load(path)
    values = onnx.numpy_helper.from_array(np.array([1], np.float32), "w")
    places = onnx.numpy_helper.from_array(np.array([4], np.int64), "w_places")
    model.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, places, [2, 3]))
    data = model.SerializeToString()
    for _ in range(2):  # the second time from a note
        session = vermilion.InferenceSession(data)
        assert is_right(session.run(None, FEEDS))
        assert "sparse weights" in session.notes[0]
        assert not session.is_compiled


def test_a_note_that_is_no_longer_true_is_written_anew(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(OPEN)
    weight = model.graph.initializer[0]
    weight.CopyFrom(onnx.numpy_helper.from_array(np.array([1, 2, 3], np.float32), "b"))
    file = tmp_path / "apart.onnx"
    onnx.save(model, file, save_as_external_data=True, location="w.bin", size_threshold=0)
    for number in (1, 2):
        (tmp_path / "w.bin").write_bytes(np.full(3, number, np.float32).tobytes())
        for _ in range(2):
            session = vermilion.InferenceSession(file, compile="now")
            found = session.run(None, {"x": np.zeros((1, 3), np.float32), "z": X[:1]})[0]
            assert np.array_equal(found, X[:1] * number)
    assert look_up(Source(file=file), Asked()).artifact is not None
    first = store_notes(tmp_path)
    look_up(Source(file=file), Asked())
    assert store_notes(tmp_path) == first  # it is found, not written
    Cache().store.prune(everything=True)
    assert store_notes(tmp_path) == []  # it goes with what it tells of


def store_notes(folder: Path) -> list[int]:
    return sorted(path.stat().st_ino for path in (folder / "cache" / "model-notes").iterdir())
