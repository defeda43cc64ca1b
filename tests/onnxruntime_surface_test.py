"""Every public name of the installed ONNX Runtime: works here, is its own, or is named in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as theirs
import pytest

import vermilion.ort as ours
from vermilion.ort.facts import (
    CONFIG_ENTRIES,
    DEFAULTS,
    KEYWORDS,
    RUN_CONFIG_ENTRIES,
    RUN_OPTIONS,
    SESSION_OPTIONS,
    Fact,
    fact_of,
)
from vermilion.ort.options import RunOptions, SessionOptions
from vermilion.ort.surface import INFERENCE_SESSION, IO_BINDING, MODULE
from vermilion.ort.voice import heard

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2] x) => (float[2] y) <float[2] w = {0, 0}> { y = Max (x, w) }"""
X = np.array([-1, 2], np.float32)
TABLES = {
    "InferenceSession": INFERENCE_SESSION,
    "IOBinding": IO_BINDING,
    "RunOptions": RUN_OPTIONS,
    "SessionOptions": SESSION_OPTIONS,
}
# Names of a module that every module with such an import has.
_NOT_OF_IT = {"contextlib", "import_capi_exception"}


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path / "cache"))
    heard.clear()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.mark.parametrize("name", TABLES)
def test_the_table_has_every_name_of_a_class(name: str) -> None:
    """Of the version that is installed; older ones have fewer."""
    assert public(getattr(theirs, name)) <= set(TABLES[name])
    assert set(TABLES[name]) <= public(getattr(ours, name))
    for row, fact in TABLES[name].items():
        assert callable(getattr(ours, name).__dict__.get(row, print)) or fact.kind != "works"


def test_the_module_has_every_name() -> None:
    assert set(MODULE) == set(ours.OWN)
    for name in public(theirs) - _NOT_OF_IT:
        mine = getattr(ours, name)
        assert (mine is getattr(theirs, name)) == (name not in MODULE), name
        assert name in dir(ours)
    assert ours.__version__ == theirs.__version__
    assert ours.quantization.__name__ == "onnxruntime.quantization"
    with pytest.raises(AttributeError, match="neither"):
        _ = ours.nothing
    names: dict[str, Any] = {}
    exec("from vermilion.ort import *", names)
    assert names["InferenceSession"] is ours.InferenceSession
    assert names["OrtValue"] is theirs.OrtValue


def test_fields_of_values_are_those_of_onnx_runtime(model: Path) -> None:
    session = ours.InferenceSession(model, compile="now")
    for mine, own in (
        (session.get_inputs()[0], theirs.NodeArg),
        (session.get_modelmeta(), theirs.ModelMetadata),
    ):
        assert public(own) <= public(mine)
    assert isinstance(session.get_inputs()[0], ours.NodeArg)
    assert isinstance(session.get_modelmeta(), ours.ModelMetadata)
    assert isinstance(session.get_session_options(), theirs.SessionOptions)


def said(model: Path, options: Any = None, **keywords: Any) -> tuple[str, ...]:
    session = ours.InferenceSession(model, options, compile="now", **keywords)
    assert session.run(None, {"x": X})[0].tolist() == [0, 2]
    return session.notes


def others() -> Mapping[str, object]:
    """Return a value for each property that is not the usual one."""
    return {
        **{name: not usual for name, usual in DEFAULTS.items() if isinstance(usual, bool)},
        "execution_mode": theirs.ExecutionMode.ORT_PARALLEL,
        "execution_order": theirs.ExecutionOrder.PRIORITY_BASED,
        "graph_optimization_level": theirs.GraphOptimizationLevel.ORT_DISABLE_ALL,
        "inter_op_num_threads": 2,
        "log_verbosity_level": 1,
    }


@pytest.mark.parametrize("kind", [SessionOptions, theirs.SessionOptions])
def test_an_option_without_meaning_is_named(model: Path, kind: Callable[[], Any]) -> None:
    named = {name: fact for name, fact in SESSION_OPTIONS.items() if fact.kind == "named"}
    assert set(named) == set(others()) == set(DEFAULTS)
    assert said(model, kind()) == ()
    options = kind()
    for name, value in others().items():
        setattr(options, name, value)
    notes = said(model, options)
    assert {*notes} == {f"`{name}` does not apply: {named[name].words}" for name in named}


def entries(table: Mapping[str, Fact]) -> Iterator[str]:
    for start in table:
        yield f"{start}x" if start.endswith((".", "_")) else start


def test_a_configuration_entry_is_named_or_honoured(model: Path) -> None:
    for entry in entries(CONFIG_ENTRIES):
        options = ours.SessionOptions()
        options.add_session_config_entry(entry, "0")
        fact = fact_of(entry, CONFIG_ENTRIES)
        assert fact is not None
        if fact.kind == "onnxruntime":
            options.add_session_config_entry(entry, ".")
            expected = (f"ONNX Runtime runs m.onnx: `{entry}` {fact.words}",)
            assert ours.InferenceSession(model, options).notes == expected
        else:
            expected = (f"`{entry}` does not apply: {fact.words}",)
            assert said(model, options) == (expected if fact.kind == "named" else ())
    options = ours.SessionOptions()
    options.add_session_config_entry("session.nothing", "1")
    assert said(model, options) == (
        "`session.nothing` is unknown, here and to ONNX Runtime's documentation: it is not used",
    )


def test_entries_of_onnx_runtimes_own_options_are_found(model: Path) -> None:
    options = theirs.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    (note,) = said(model, options)
    assert note.startswith("`session.intra_op.allow_spinning` does not apply: workers spin")


def test_a_keyword_is_named(model: Path) -> None:
    (note,) = said(model, nothing=1)
    assert note == "`nothing` is no argument of a session: it is not used"
    assert said(model, enable_fallback=1) == ()
    for name, fact in KEYWORDS.items():
        expected = (f"`{name}` does not apply: {fact.words}",) if fact.kind == "named" else ()
        assert said(model, **{name: [] if name == "disabled_optimizers" else 0}) == ()
        assert said(model, **{name: ["x"] if name == "disabled_optimizers" else 1}) == expected


def test_options_of_a_run_are_named(model: Path) -> None:
    session = ours.InferenceSession(model, compile="now")
    options = RunOptions()
    options.only_execute_path_to_fetches = True
    for entry in entries(RUN_CONFIG_ENTRIES):
        options.add_run_config_entry(entry, "1")
    options.add_run_config_entry("nothing", "1")
    for _ in range(2):
        assert session.run(None, {"x": X}, options)[0].tolist() == [0, 2]
    named = [*RUN_OPTIONS, *RUN_CONFIG_ENTRIES]
    assert len(session.notes) == len(RUN_CONFIG_ENTRIES) + 2
    for note in session.notes:
        found = re.match(r"`([\w.]+)` (does not apply|is unknown)", note)
        assert found is not None, note
        assert found[1] == "nothing" or fact_of(found[1], RUN_CONFIG_ENTRIES) or found[1] in named


def test_methods_without_meaning_say_so(model: Path) -> None:
    session = ours.InferenceSession(model, compile="now")
    session.release_captured_graph()
    assert session.get_tuning_results() == []
    session.set_tuning_results([])
    assert session.notes == ()
    session.set_tuning_results([{"ep": "CPUExecutionProvider"}])
    session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
    assert session.notes == (
        "`set_tuning_results` does not apply: nothing is tuned when a session runs",
        "`ep.dynamic.workload_type` does not apply: options of a provider are given when a model"
        " is compiled",
    )


def test_what_only_onnx_runtime_does_is_done_by_it(model: Path, tmp_path: Path) -> None:
    value = theirs.OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32))
    calls: dict[str, tuple[Any, ...]] = {
        "add_external_initializers": (["w"], [value]),
        "add_external_initializers_from_files_in_memory": (["w.bin"], [bytes(8)], [8]),
        "add_initializer": ("w", value),
        "set_ep_context_data_read_func": (print, 1 << 20),
        "set_load_cancellation_flag": (True,),
        "set_provider_selection_policy": (theirs.OrtExecutionProviderDevicePolicy.PREFER_CPU,),
        "set_provider_selection_policy_delegate": (lambda devices, *_: devices[:1],),
        "add_provider_for_devices": ([theirs.get_ep_devices()[0]], {}),
    }
    # These need a library to load, or another provider than this build has.
    left = {"add_provider", "register_custom_ops_library"}
    facts = {name for name, fact in SESSION_OPTIONS.items() if fact.kind == "onnxruntime"}
    assert facts == {*calls, *left}
    proto = onnx.load(model)
    proto.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(value.numpy(), "w"))
    onnx.save(proto, model, save_as_external_data=True, location="w.bin", size_threshold=0)
    for name, arguments in calls.items():
        options = ours.SessionOptions()
        getattr(options, name)(*arguments)
        if name == "set_load_cancellation_flag":
            kind = theirs.capi.onnxruntime_pybind11_state.ModelLoadCanceled
            with pytest.raises(kind):
                ours.InferenceSession(model, options)
            continue
        session = ours.InferenceSession(model, options)
        assert session.notes == (
            f"ONNX Runtime runs m.onnx: `{name}` {SESSION_OPTIONS[name].words}",
        )
        assert session.run(None, {"x": X})[0].tolist() == [0, 2]
    options = ours.SessionOptions()
    options.set_ep_context_data_read_func(print, 1 << 20)
    options.clear_ep_context_data_read_func()
    assert said(model, options) == ()
    for name in left:
        with pytest.raises(Exception, match=r"\w"):
            getattr(ours.SessionOptions(), name)(str(tmp_path / "no.so"))


def test_a_severity_of_errors_leaves_warnings_out(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = ours.SessionOptions()
    options.inter_op_num_threads = 2
    options.logid = "mine"
    assert len(said(model, options)) == 1
    assert [row.message[:6] for row in caplog.records if row.levelname == "WARNING"] == ["[mine]"]
    caplog.clear()
    assert len(said(model, options)) == 1
    assert not caplog.records  # once in a process is enough
    heard.clear()
    options.log_severity_level = 3
    assert len(said(model, options)) == 1
    ours.set_default_logger_severity(3)
    options.log_severity_level = -1
    try:
        assert len(said(model, options)) == 1
    finally:
        ours.set_default_logger_severity(2)
    assert not [row for row in caplog.records if row.levelname == "WARNING"]


def test_a_model_of_onnx_runtimes_own_format_is_its(model: Path, tmp_path: Path) -> None:
    options = ours.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "m.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    assert said(model, options) == ()
    saved = tmp_path / "m.ort"
    for given in (saved, saved.read_bytes()):
        session = ours.InferenceSession(given)
        assert not session.is_compiled
        assert "in ONNX Runtime's own format" in session.notes[0]
        assert session.run(None, {"x": X})[0].tolist() == [0, 2]
