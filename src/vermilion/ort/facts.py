"""What becomes of every option of ONNX Runtime's here: a table for the code, the page and the test.

Names and defaults are those of ONNX Runtime's Python package, its documented API
(onnxruntime.ai/docs/api/python) and its headers `onnxruntime_session_options_config_keys.h` and
`onnxruntime_run_options_config_keys.h`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

# `works` here as there; `onnxruntime`: what is set makes ONNX Runtime itself compute, or is its own
# class; `named`: it has no meaning for a compiled program, and a warning says so by name.
Kind = Literal["works", "onnxruntime", "named"]


@dataclass(frozen=True)
class Fact:
    """What becomes of one name. `words` are said where its kind is not `works`."""

    kind: Kind
    words: str


def _works(words: str) -> Fact:
    return Fact("works", words)


def _named(words: str) -> Fact:
    return Fact("named", words)


def _theirs(words: str) -> Fact:
    return Fact("onnxruntime", words)


_MEMORY = "the memory of a compiled program is planned when it is compiled"
_ONE_BY_ONE = "steps run one after the other, each on all threads"
_FAST_KERNELS = "it is about kernels and graph rewrites of ONNX Runtime's own"
_SPIN = "workers spin for about a millisecond after a run, then sleep"
_GPU_RUN = "it is about devices of ONNX Runtime's providers"
_DEVICES = "it chooses providers and devices of ONNX Runtime's"

SESSION_OPTIONS: Mapping[str, Fact] = {
    "add_external_initializers": _theirs("replaces weights of the model"),
    "add_external_initializers_from_files_in_memory": _theirs("replaces weights of the model"),
    "add_free_dimension_override_by_denotation": _works(
        "the model is compiled for that size; a denotation that no input has is named"
    ),
    "add_free_dimension_override_by_name": _works(
        "the model is compiled for that size; a dimension that it does not have is named"
    ),
    "add_initializer": _theirs("replaces a weight of the model"),
    "add_provider": _theirs(_DEVICES),
    "add_provider_for_devices": _theirs(_DEVICES),
    "add_session_config_entry": _works("entries are in a table of their own, below"),
    "clear_ep_context_data_read_func": _works("forgets the function again"),
    "enable_cpu_mem_arena": _named(_MEMORY),
    "enable_mem_pattern": _named(_MEMORY),
    "enable_mem_reuse": _named(_MEMORY),
    "enable_profiling": _works("the file has ONNX Runtime's form, an event a step"),
    "execution_mode": _named(_ONE_BY_ONE),
    "execution_order": _named("the order of steps is decided when a model is compiled"),
    "get_session_config_entry": _works("as there"),
    "graph_optimization_level": _named(
        "a compiled program is optimized, and proven against the model run without optimizations"
    ),
    "has_providers": _works("as there"),
    "inter_op_num_threads": _named(_ONE_BY_ONE),
    "intra_op_num_threads": _works("the threads of compiled programs, and of ONNX Runtime's parts"),
    "log_severity_level": _works("3 and more leave out the warnings that are said here"),
    "log_verbosity_level": _named("it is about ONNX Runtime's own log"),
    "logid": _works("stands before the warnings that are said here"),
    "optimized_model_filepath": _works("ONNX Runtime writes it when the session is opened"),
    "profile_file_prefix": _works("as there"),
    "register_custom_ops_library": _theirs("brings operators that only ONNX Runtime can call"),
    "set_ep_context_data_read_func": _theirs("reads programs of ONNX Runtime's providers"),
    "set_load_cancellation_flag": _theirs("ends loading there"),
    "set_provider_selection_policy": _theirs(_DEVICES),
    "set_provider_selection_policy_delegate": _theirs(_DEVICES),
    "use_deterministic_compute": _works("always so: same input, same answer, on any threads"),
    "use_per_session_threads": _named("each session has threads of its own"),
}
"""Every public name of `SessionOptions`."""

DEFAULTS: Mapping[str, object] = {
    "enable_cpu_mem_arena": True,
    "enable_mem_pattern": True,
    "enable_mem_reuse": True,
    "execution_mode": "ORT_SEQUENTIAL",
    "execution_order": "DEFAULT",
    "graph_optimization_level": "ORT_ENABLE_ALL",
    "inter_op_num_threads": 0,
    "log_verbosity_level": 0,
    "use_per_session_threads": True,
}
"""Of properties that are named when they are set to something else; enumerations by name."""

CONFIG_ENTRIES: Mapping[str, Fact] = {
    "ep.": _theirs("is an option of an execution provider"),
    "memory.": _named(_MEMORY),
    "mlas.": _named(_FAST_KERNELS),
    "optimization.": _named(_FAST_KERNELS),
    "session.allow_released_opsets_only": _named("which opsets are taken is decided here"),
    "session.collect_node_memory_stats_to_file": _named(_MEMORY),
    "session.debug_layout_transformation": _named(_FAST_KERNELS),
    "session.disable_aot_function_inlining": _named(_FAST_KERNELS),
    "session.disable_cpu_ep_fallback": _named("what no provider takes runs on the CPU"),
    "session.disable_double_qdq_remover": _named(_FAST_KERNELS),
    "session.disable_prepacking": _named("weights are packed when a model is compiled"),
    "session.disable_qdq_constant_folding": _named(_FAST_KERNELS),
    "session.disable_quant_qdq": _named(_FAST_KERNELS),
    "session.dynamic_block_base": _named(_ONE_BY_ONE),
    "session.enable_dq_matmulnbits_fusion": _named(_FAST_KERNELS),
    "session.enable_quant_qdq_cleanup": _named(_FAST_KERNELS),
    "session.force_spinning_stop": _named(_SPIN),
    "session.graph_optimizations_loop_level": _named(_FAST_KERNELS),
    "session.inter_op.": _named(_ONE_BY_ONE),
    "session.intra_op.": _named(_SPIN),
    "session.intra_op_thread_affinities": _named("threads use the cores that the process may use"),
    "session.load_model_format": _works("`ORT` makes ONNX Runtime run the model"),
    "session.model_external_initializers_file_folder_path": _theirs("says where weights lie"),
    "session.optimized_model_external_initializers_": _works("with the optimized model"),
    "session.qdq_matmulnbits_": _named(_FAST_KERNELS),
    "session.qdqisint8allowed": _named(_FAST_KERNELS),
    "session.record_ep_graph_assignment_info": _works("`get_provider_graph_assignment_info` tells"),
    "session.save_model_format": _works("with the optimized model"),
    "session.set_denormal_as_zero": _named("denormal numbers are computed as they are"),
    "session.strict_shape_type_inference": _named("every model is checked when it is loaded"),
    "session.use_device_allocator_for_initializers": _named(_MEMORY),
    "session.use_env_allocators": _named(_MEMORY),
    "session.use_ort_model_bytes_": _named("it is about models in ONNX Runtime's own format"),
}
"""Entries of a session's configuration; one that ends in `.` or `_` stands for all that begin so.

What is not here is unknown, and a warning says so.
"""

RUN_OPTIONS: Mapping[str, Fact] = {
    "add_active_adapter": _theirs("computes with another adapter's weights"),
    "add_run_config_entry": _works("entries are in a table of their own, below"),
    "get_run_config_entry": _works("as there"),
    "log_severity_level": _works("as there, for what ONNX Runtime computes"),
    "log_verbosity_level": _works("as there, for what ONNX Runtime computes"),
    "logid": _works("as there, for what ONNX Runtime computes"),
    "only_execute_path_to_fetches": _named("a compiled program computes all its outputs"),
    "terminate": _works("looked at before each part of a compiled model"),
}
"""Every public name of `RunOptions`."""

RUN_CONFIG_ENTRIES: Mapping[str, Fact] = {
    "disable_synchronize_execution_providers": _named(_GPU_RUN),
    "gpu_graph_id": _named(_GPU_RUN),
    "memory.enable_memory_arena_shrinkage": _named(_MEMORY),
    "qnn.": _named(_GPU_RUN),
    "ep.": _named(_GPU_RUN),
}
"""Entries of a run's configuration; the rest is as above."""

KEYWORDS: Mapping[str, Fact] = {
    "disabled_optimizers": _named(_FAST_KERNELS),
    "enable_fallback": _works("0: what a compiled program cannot run is an error at once"),
    "read_config_from_model": _named("options in a model's metadata are not read"),
}
"""Keywords of `InferenceSession` that ONNX Runtime takes beside its documented arguments."""


def fact_of(entry: str, table: Mapping[str, Fact]) -> Fact | None:
    """Return the fact of a configuration's entry, None for one that is not known."""
    if entry in table:
        return table[entry]
    starts = [start for start in table if start.endswith((".", "_")) and entry.startswith(start)]
    return table[max(starts, key=len)] if starts else None
