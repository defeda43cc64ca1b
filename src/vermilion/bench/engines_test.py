from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import onnx_ir as ir
import onnxruntime as ort
import pytest

import models
from vermilion.bench.engines import PROVIDERS, Request, engines_here, ort_session, parse_engine
from vermilion.errors import DeviceError, UnsupportedError


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("models") / "small.onnx"
    ir.save(models.small_cnn(), path)
    return str(path)


@pytest.mark.parametrize("engine", sorted(set(PROVIDERS) - {"ort"}))
def test_a_provider_that_is_not_in_the_wheel_never_becomes_the_cpu(engine: str, small: str) -> None:
    if PROVIDERS[engine] in ort.get_available_providers():
        pytest.skip(f"this machine has {PROVIDERS[engine]}")
    with pytest.raises(DeviceError, match=f"built without {PROVIDERS[engine]}"):
        ort_session(Request(engine, "fp32", small, 1))


def test_no_provider_computes_a_float_model_in_bf16(small: str) -> None:
    with pytest.raises(UnsupportedError, match="bf16") as raised:
        ort_session(Request("migraphx", "bf16", small, 1))
    assert "--against migraphx@fp32" in raised.value.hint


def test_a_profile_is_written_where_it_was_asked_for(small: str, tmp_path: Path) -> None:
    session = ort_session(Request("ort", "fp32", small, 1), tmp_path / "p")
    assert Path(session.end_profiling()).parent == tmp_path
    ort_session(Request("ort", "fp32", small, 1))
    assert len(list(tmp_path.iterdir())) == 1


def test_the_same_engine_by_its_whole_name() -> None:
    assert parse_engine("onnxruntime@fp32", "bf16") == parse_engine("ort@fp32", "bf16")


def test_the_engines_of_this_machine_are_those_that_run() -> None:
    names, reasons = engines_here()
    assert names[0] == "ort"
    assert ("openvino" in names) == (find_spec("openvino") is not None)
    built = {name for name, provider in PROVIDERS.items() if provider in _available()}
    assert set(names) - {"openvino"} <= built
    assert all("does not load" in words for words in reasons)


def _available() -> list[str]:
    found: list[str] = ort.get_available_providers()
    return found
