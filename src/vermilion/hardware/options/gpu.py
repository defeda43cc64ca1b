"""The options of the providers for AMD GPUs, by build.

Sources: microsoft/onnxruntime, migraphx_execution_provider_info.h, migraphx_execution_provider.h
(upstream main at 03c1250), rocm_execution_provider_info.cc (1.22), and its page on the CUDA
provider; the PyPI wheel onnxruntime-migraphx 1.27.1, whose library holds the names as text;
github.com/onnxruntime/onnxruntime-ep-amdgpu, docs/MIGraphX-ExecutionProvider.md, src/.
"""

from __future__ import annotations

from collections.abc import Mapping

from vermilion.hardware.options.option import Option, OptionTable, Values

MIGRAPHX = "MIGraphXExecutionProvider"
AMDGPU = "AMDGPUExecutionProvider"
ROCM = "ROCMExecutionProvider"
CUDA = "CUDAExecutionProvider"

PLUGIN = "plugin"
BUILT_IN = "built-in"
BUILT_IN_WHEEL = "built-in-1.27.1"
BUILT_IN_ROCM = "built-in-rocm7.2"

_PLUGIN_SOURCE = "onnxruntime/onnxruntime-ep-amdgpu, docs/MIGraphX-ExecutionProvider.md and src"
_CORE_SOURCE = "microsoft/onnxruntime, migraphx_execution_provider_info.h at 03c1250"

_BUILT_IN_COMMON: tuple[Option, ...] = (
    Option("device_id", "integer", "which GPU", default="0"),
    Option("migraphx_fp16_enable", "flag", "compute in FP16", default="0"),
    Option("migraphx_bf16_enable", "flag", "compute in BF16", default="0"),
    Option("migraphx_fp8_enable", "flag", "compute in FP8", default="0"),
    Option("migraphx_int8_enable", "flag", "compute in INT8; needs a calibration table"),
    Option("migraphx_int8_calibration_table_name", "path", "file of the calibration table"),
    Option("migraphx_int8_use_native_calibration_table", "flag", "MIGraphX' own form of it"),
    Option("migraphx_exhaustive_tune", "flag", "measure every kernel; compiling takes long"),
    Option("migraphx_mem_limit", "integer", "bytes that the arena may take", default="no limit"),
    Option(
        "migraphx_arena_extend_strategy",
        "choice",
        "how the arena grows",
        default="kNextPowerOfTwo",
        choices=("kNextPowerOfTwo", "kSameAsRequested"),
    ),
    Option("migraphx_external_alloc", "address", "the caller's allocator"),
    Option("migraphx_external_free", "address", "the caller's allocator"),
    Option("migraphx_external_empty_cache", "address", "the caller's allocator"),
    Option("migraphx_model_cache_dir", "path", "folder of compiled programs (`.mxr`)"),
)
_MAX_BATCH = Option("migraphx_max_dynamic_batch", "integer", "largest batch compiled ahead")
_MAX_MODELS = Option(
    "migraphx_max_compiled_models", "integer", "how many batch sizes are compiled", default="1"
)
_AMD_BUILDS = (
    Option("migraphx_compile_batches", "text", "batch sizes to compile ahead"),
    Option("migraphx_hip_graph_enable", "flag", "replay launches as one graph"),
)

# Removed in ROCm 6.4; the page kept them (https://github.com/microsoft/onnxruntime/issues/25379).
_REMOVED: Mapping[str, str] = {
    "migraphx_save_compiled_model": "",
    "migraphx_save_compiled_path": "migraphx_model_cache_dir",
    "migraphx_load_compiled_model": "",
    "migraphx_load_compiled_path": "migraphx_model_cache_dir",
}

# The plugin still reads these prefixed names, and no others.
_PLUGIN_ALIASES = frozenset(
    (
        "fp16_enable",
        "bf16_enable",
        "fp8_enable",
        "int8_enable",
        "int8_calibration_table_name",
        "int8_use_native_calibration_table",
        "exhaustive_tune",
    )
)


def _plugin_option(name: str, values: Values, meaning: str) -> Option:
    choices = ("eager", "balanced", "maximum") if values == "choice" else ()
    aliases = (f"migraphx_{name}",) if name in _PLUGIN_ALIASES else ()
    return Option(name, values, meaning, choices=choices, other_spellings=aliases)


_SHARED_PLUGIN: tuple[tuple[str, Values, str], ...] = (
    ("device_id", "integer", "which GPU"),
    ("disable_caching", "flag", "keep no compiled programs"),
    ("force_recompile", "flag", "compile although a program is there"),
    ("exhaustive_tune", "flag", "measure every kernel; compiling takes long"),
    ("cache_dir", "path", "folder of compiled programs; use one a model and precision"),
    ("mlss_use_specific_ops", "text", "operators for the shader library"),
    ("cpu_control_flow", "flag", "control flow on the CPU"),
    ("model_arch", "text", "the kind of model, for routing"),
    ("hip_graph_enable", "flag", "replay launches as one graph"),
    ("static_pad_seq", "flag", "pad sequences to a fixed length"),
    ("static_pad_seq_len", "integer", "that length"),
    ("static_pad_inputs", "text", "inputs that are padded"),
    ("static_pad_outputs", "text", "outputs that are cut"),
)
_MIGRAPHX_PLUGIN: tuple[tuple[str, Values, str], ...] = (
    *_SHARED_PLUGIN,
    ("fp16_enable", "flag", "compute in FP16"),
    ("bf16_enable", "flag", "compute in BF16"),
    ("fp8_enable", "flag", "compute in FP8"),
    ("int8_enable", "flag", "compute in INT8; needs a calibration table"),
    ("int8_calibration_table_name", "path", "file of the calibration table"),
    ("int8_use_native_calibration_table", "flag", "MIGraphX' own form of it"),
    ("compute_mode", "choice", "how much is compiled ahead"),
    ("dump_subgraphs", "flag", "write each region as ONNX"),
    ("max_dynamic_batch", "integer", "largest batch compiled ahead"),
    ("compile_batches", "text", "batch sizes to compile ahead"),
    ("coalesce_io", "flag", "one copy for all inputs"),
)
_AMDGPU_PLUGIN: tuple[tuple[str, Values, str], ...] = (
    *_SHARED_PLUGIN,
    ("profile", "flag", "write a profile"),
    ("model_fw", "text", "the framework that the model came from, for routing"),
)

_ROCM_OPTIONS: tuple[Option, ...] = (
    Option("device_id", "integer", "which GPU", default="0"),
    Option("gpu_mem_limit", "integer", "bytes that the arena may take"),
    Option(
        "arena_extend_strategy",
        "choice",
        "how the arena grows",
        choices=("kNextPowerOfTwo", "kSameAsRequested"),
    ),
    Option("miopen_conv_exhaustive_search", "flag", "measure every convolution kernel"),
    Option("miopen_conv_use_max_workspace", "flag", "as much scratch memory as they want"),
    Option("do_copy_in_default_stream", "flag", "which stream copies"),
    Option("has_user_compute_stream", "flag", "the caller's stream"),
    Option("user_compute_stream", "address", "the caller's stream"),
    Option("gpu_external_alloc", "address", "the caller's allocator"),
    Option("gpu_external_free", "address", "the caller's allocator"),
    Option("gpu_external_empty_cache", "address", "the caller's allocator"),
    Option("tunable_op_enable", "flag", "choose kernels by measuring"),
    Option("tunable_op_tuning_enable", "flag", "measure now"),
    Option("tunable_op_max_tuning_duration_ms", "integer", "for how long"),
    Option("enable_hip_graph", "flag", "replay launches as one graph"),
)

# Of the CUDA provider: recognised where they stand in settings for an AMD GPU.
CUDA_OPTIONS = frozenset(
    (
        "cudnn_conv_algo_search",
        "cudnn_conv1d_pad_to_nc1d",
        "cudnn_conv_use_max_workspace",
        "enable_cuda_graph",
        "enable_skip_layer_norm_strict_mode",
        "fuse_conv_bias",
        "prefer_nhwc",
        "sdpa_kernel",
        "use_ep_level_unified_stream",
        "use_tf32",
    )
)

# What an option of the ROCm or CUDA provider is called in the built-in MIGraphX provider; empty
# where it has no counterpart.
TO_MIGRAPHX: Mapping[str, str] = {
    "device_id": "device_id",
    "gpu_mem_limit": "migraphx_mem_limit",
    "arena_extend_strategy": "migraphx_arena_extend_strategy",
    "miopen_conv_exhaustive_search": "migraphx_exhaustive_tune",
    "tunable_op_enable": "migraphx_exhaustive_tune",
    "tunable_op_tuning_enable": "migraphx_exhaustive_tune",
    "gpu_external_alloc": "migraphx_external_alloc",
    "gpu_external_free": "migraphx_external_free",
    "gpu_external_empty_cache": "migraphx_external_empty_cache",
    "enable_hip_graph": "migraphx_hip_graph_enable",
}

# Built-in name → plugin name, where it is not just the prefix that goes; empty: no counterpart.
TO_PLUGIN: Mapping[str, str] = {
    "migraphx_model_cache_dir": "cache_dir",
    "migraphx_mem_limit": "",
    "migraphx_arena_extend_strategy": "",
    "migraphx_external_alloc": "",
    "migraphx_external_free": "",
    "migraphx_external_empty_cache": "",
    "migraphx_max_compiled_models": "",
}

TABLES: tuple[OptionTable, ...] = (
    OptionTable(
        MIGRAPHX,
        BUILT_IN,
        "MIGraphX provider, built into ONNX Runtime (upstream main)",
        _CORE_SOURCE,
        (*_BUILT_IN_COMMON, _MAX_BATCH, _MAX_MODELS),
        _REMOVED,
    ),
    OptionTable(
        MIGRAPHX,
        BUILT_IN_WHEEL,
        "MIGraphX provider of the wheel onnxruntime-migraphx 1.27.1",
        "the names in the wheel's libonnxruntime_providers_migraphx.so",
        _BUILT_IN_COMMON,
        _REMOVED,
    ),
    OptionTable(
        MIGRAPHX,
        BUILT_IN_ROCM,
        "MIGraphX provider of AMD's wheels for ROCm 7.2 to 7.14",
        "github.com/ROCm/onnxruntime; 7.14 is the last with a built-in provider",
        (*_BUILT_IN_COMMON, _MAX_BATCH, *_AMD_BUILDS),
        _REMOVED,
    ),
    OptionTable(
        MIGRAPHX,
        PLUGIN,
        "MIGraphX provider as a plugin library (onnxruntime-ep-migraphx)",
        _PLUGIN_SOURCE,
        tuple(_plugin_option(*row) for row in _MIGRAPHX_PLUGIN),
    ),
    OptionTable(
        AMDGPU,
        PLUGIN,
        "AMD's umbrella provider as a plugin library (onnxruntime-ep-amdgpu)",
        _PLUGIN_SOURCE,
        tuple(_plugin_option(*row) for row in _AMDGPU_PLUGIN),
    ),
    OptionTable(
        ROCM,
        "1.22",
        "ROCm provider, last in ONNX Runtime 1.22",
        "microsoft/onnxruntime, rocm_execution_provider_info.cc, 1.22; removed by pull request"
        " 25181",
        _ROCM_OPTIONS,
    ),
)


def gpu_table(provider: str, build: str) -> OptionTable | None:
    """Return the table of a provider's build; the first of the provider where none is named."""
    mine = [table for table in TABLES if table.provider == provider]
    named = [table for table in mine if table.build == build]
    return next(iter(named or mine), None)
