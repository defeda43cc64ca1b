"""The names of `onnxruntime_genai`, on our own engines: `import vermilion.genai as og`."""

from typing import Any

from vermilion.genai.functions import (
    NOT_HERE,
    disable_telemetry_events,
    enable_telemetry_events,
    get_current_gpu_device_id,
    is_cuda_available,
    is_dml_available,
    is_openvino_available,
    is_qnn_available,
    is_webgpu_available,
    not_here,
    register_execution_provider_library,
    set_current_gpu_device_id,
    set_log_callback,
    set_log_options,
    unregister_execution_provider_library,
)
from vermilion.genai.generator import Generator, GeneratorParams, Tensor
from vermilion.genai.model import Config, Model
from vermilion.genai.tokenizer import Tokenizer, TokenizerStream

__all__ = [
    "Config",
    "Generator",
    "GeneratorParams",
    "Model",
    "Tensor",
    "Tokenizer",
    "TokenizerStream",
    "disable_telemetry_events",
    "enable_telemetry_events",
    "get_current_gpu_device_id",
    "is_cuda_available",
    "is_dml_available",
    "is_openvino_available",
    "is_qnn_available",
    "is_webgpu_available",
    "register_execution_provider_library",
    "set_current_gpu_device_id",
    "set_log_callback",
    "set_log_options",
    "unregister_execution_provider_library",
]


def __getattr__(name: str) -> Any:
    """Return what stands for a class of `onnxruntime_genai` that is not here."""
    if name in NOT_HERE:
        return not_here(name)
    raise AttributeError(f"module `{__name__}` has no attribute `{name}`")
