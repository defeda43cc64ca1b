"""The functions of the module `onnxruntime_genai`, and what of it is not there, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from vermilion.errors import OptionError, UnsupportedError

# What `set_log_options` takes. Source: onnxruntime-genai 0.18, `src/logging.h`.
_LOG_OPTIONS = (
    "enabled", "ansi_tags", "warning", "generate_next_token", "append_next_tokens", "hit_eos",
    "hit_max_length", "model_input_values", "model_output_shapes", "model_output_values",
    "model_logits", "ort_lib", "value_stats", "filename",
)  # fmt: skip


def is_cuda_available() -> bool:
    """Say that CUDA is not there: our engines run on the CPU."""
    return False


def is_dml_available() -> bool:
    """Say that DirectML is not there: our engines run on the CPU."""
    return False


def is_openvino_available() -> bool:
    """Say that OpenVINO is not there: our engines are our own."""
    return False


def is_qnn_available() -> bool:
    """Say that QNN is not there: our engines run on the CPU."""
    return False


def is_webgpu_available() -> bool:
    """Say that WebGPU is not there: our engines run on the CPU."""
    return False


def set_log_options(**options: object) -> None:
    """Take what turns logging off, which it is.

    Args:
        options: By the names of onnxruntime-genai; what is false changes nothing.

    Raises: OptionError for a name that there is not; UnsupportedError for what would be logged.
    """
    for name, value in options.items():
        if name not in _LOG_OPTIONS:
            raise OptionError(
                f"`{name}` is no option of logging", hint=f"there are {', '.join(_LOG_OPTIONS)}"
            )
        if value and name != "ansi_tags":
            raise UnsupportedError(
                f"`{name}` would be logged, and our engines write no log",
                hint="`Generator.get_logits` gives what a token is chosen from",
            )


def set_log_callback(callback: Callable[[str], None] | None) -> None:
    """Take None; nothing is logged.

    Args:
        callback: None.

    Raises: UnsupportedError for anything else.
    """
    if callback is not None:
        raise UnsupportedError("our engines write no log that a function could be given")


def disable_telemetry_events() -> None:
    """Do nothing: there are none."""


def enable_telemetry_events() -> None:
    """Raise UnsupportedError: nothing is sent anywhere."""
    raise UnsupportedError("there is no telemetry to turn on")


def register_execution_provider_library(name: str, path: str) -> None:
    """Raise UnsupportedError: our engines load no provider.

    Args:
        name: The provider's.
        path: The library.
    """
    raise UnsupportedError(
        f"the provider `{name}` is not loaded: our engines run on the CPU",
        where=str(path),
        hint="onnxruntime-genai runs a folder on it",
    )


def unregister_execution_provider_library(name: str) -> None:
    """Raise OptionError: none was registered.

    Args:
        name: The provider's.
    """
    raise OptionError(f"no provider `{name}` was registered")


def get_current_gpu_device_id() -> int:
    """Raise UnsupportedError: there is no GPU."""
    return _no_gpu()


def set_current_gpu_device_id(device_id: int) -> None:
    """Raise UnsupportedError: there is no GPU.

    Args:
        device_id: Which GPU.
    """
    _no_gpu()


def _no_gpu() -> NoReturn:
    raise UnsupportedError(
        "our engines run on the CPU", hint="onnxruntime-genai runs a folder on a GPU"
    )


# Classes of onnxruntime-genai that are not here, and why.
_VISION = "images and sound are not read: only the text of a model is computed"
_SERVER = "requests that share a batch are not served"
NOT_HERE = {
    "Adapters": "LoRA adapters are not applied: merge them into the weights",
    "Audios": _VISION,
    "Images": _VISION,
    "MultiModalProcessor": _VISION,
    "StreamingProcessor": _VISION,
    "NamedTensors": _VISION,
    "MtpGenerator": "tokens are not drafted: each is computed by the whole model",
    "Engine": _SERVER,
    "Request": _SERVER,
    "RequestOptions": _SERVER,
    "TurnOptions": _SERVER,
}


def not_here(name: str) -> Callable[..., NoReturn]:
    """Return what stands for a class that is not here: making one is an error that says why."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise UnsupportedError(
            f"`{name}` is not there: {NOT_HERE[name]}", hint="`onnxruntime_genai` has it"
        )

    return refuse
