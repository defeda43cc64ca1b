from __future__ import annotations

import pytest

import vermilion.genai as og
from vermilion.errors import OptionError, UnsupportedError
from vermilion.genai.functions import NOT_HERE


def test_nothing_but_the_cpu_is_there() -> None:
    for name in ("cuda", "dml", "openvino", "qnn", "webgpu"):
        assert getattr(og, f"is_{name}_available")() is False


def test_what_is_off_can_be_turned_off() -> None:
    og.set_log_options(enabled=False, model_logits=False, ansi_tags=True)
    og.set_log_callback(None)
    og.disable_telemetry_events()


def test_what_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(OptionError, match="`model_logit` is no option"):
        og.set_log_options(model_logit=True)
    with pytest.raises(UnsupportedError, match="`enabled` would be logged"):
        og.set_log_options(enabled=True)
    with pytest.raises(UnsupportedError, match="write no log"):
        og.set_log_callback(print)
    with pytest.raises(UnsupportedError, match="no telemetry"):
        og.enable_telemetry_events()
    with pytest.raises(UnsupportedError, match="provider `CUDA` is not loaded"):
        og.register_execution_provider_library("CUDA", "lib.so")
    with pytest.raises(OptionError, match="no provider `CUDA`"):
        og.unregister_execution_provider_library("CUDA")
    with pytest.raises(UnsupportedError, match="run on the CPU"):
        og.get_current_gpu_device_id()
    with pytest.raises(UnsupportedError, match="run on the CPU"):
        og.set_current_gpu_device_id(1)


@pytest.mark.parametrize("name", NOT_HERE)
def test_a_class_that_is_not_there_says_why(name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"`{name}` is not there: "):
        getattr(og, name)("model")


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        og.Nothing  # noqa: B018


@pytest.mark.needs("onnxruntime_genai")
def test_every_function_of_the_module_is_known() -> None:
    import onnxruntime_genai

    known = {*og.__all__, *NOT_HERE}
    # Values that its engine gives, which nobody makes.
    given = {
        "EngineCapabilities", "EngineErrorCode", "EngineEvent", "EngineEventBuffer",
        "EngineEventFlags", "FinishReason", "TurnUsage", "onnxruntime_genai",
    }  # fmt: skip
    names = {name for name in dir(onnxruntime_genai) if not name.startswith("_")}
    assert names - known - given == set()
