"""What became of every public name of ONNX Runtime's session, bindings and module."""

from __future__ import annotations

from collections.abc import Mapping

from vermilion.ort.facts import Fact

_CPU_ONLY = "memory is the CPU's"


def _works(words: str) -> Fact:
    return Fact("works", words)


def _named(words: str) -> Fact:
    return Fact("named", words)


INFERENCE_SESSION: Mapping[str, Fact] = {
    "create_ortvalue_from_shape_and_type": _works(_CPU_ONLY),
    "disable_fallback": _works("what a compiled program cannot run is an error"),
    "enable_fallback": _works("ONNX Runtime computes what a compiled program cannot run"),
    "end_profiling": _works("writes the file and returns its name"),
    "get_input_epdevices": _works("ONNX Runtime's device of the CPU"),
    "get_input_memory_infos": _works(_CPU_ONLY),
    "get_inputs": _works("as there"),
    "get_modelmeta": _works("as there"),
    "get_output_memory_infos": _works(_CPU_ONLY),
    "get_outputs": _works("as there"),
    "get_overridable_initializers": _works("as there; of a bundle none, its weights are packed"),
    "get_profiling_start_time_ns": _works("as there"),
    "get_provider_graph_assignment_info": _works("the nodes of each provider together"),
    "get_provider_options": _works("those of what computes now"),
    "get_providers": _works("`VermilionExecutionProvider` first, once a compiled program answers"),
    "get_session_options": _works("the options that were given"),
    "get_tuning_results": _works("none, as there on the CPU"),
    "io_binding": _works("as there"),
    "release_captured_graph": _works("nothing is captured, as there on the CPU"),
    "run": _works("as there"),
    "run_async": _works("in a thread of its own"),
    "run_with_iobinding": _works("outputs are written where they are bound, without a copy"),
    "run_with_ort_values": _works("values are not copied"),
    "run_with_ortvaluevector": _works("as there"),
    "set_ep_dynamic_options": _named("options of a provider are given when a model is compiled"),
    "set_providers": _works("the model is opened again"),
    "set_tuning_results": _named("nothing is tuned when a session runs"),
}
"""Every public name of `InferenceSession`."""

IO_BINDING: Mapping[str, Fact] = {
    "bind_cpu_input": _works("the array is read where it lies"),
    "bind_input": _works(_CPU_ONLY),
    "bind_ortvalue_input": _works("the value is read where it lies"),
    "bind_ortvalue_output": _works("written in place"),
    "bind_output": _works("written in place where memory is named; " + _CPU_ONLY),
    "clear_binding_inputs": _works("as there"),
    "clear_binding_outputs": _works("as there"),
    "copy_outputs_to_cpu": _works("as there"),
    "get_outputs": _works("as there"),
    "get_outputs_as_ortvaluevector": _works("as there"),
    "synchronize_inputs": _works("there is nothing to wait for"),
    "synchronize_outputs": _works("there is nothing to wait for"),
}
"""Every public name of `IOBinding`."""

MODULE: Mapping[str, Fact] = {
    "IOBinding": _works("ours, see below"),
    "InferenceSession": _works("ours, see below"),
    "ModelMetadata": _works("ours, with the same fields"),
    "NodeArg": _works("ours, with the same fields"),
    "RunOptions": _works("ONNX Runtime's, which remembers what was added; see below"),
    "SessionOptions": _works("ONNX Runtime's, which remembers what was added; see below"),
    "get_available_providers": _works("with `VermilionExecutionProvider` before the others"),
    "set_default_logger_severity": _works("for ONNX Runtime's messages and ours"),
}
"""The names of the module that are not ONNX Runtime's own objects."""

THE_SAME = Fact("onnxruntime", "ONNX Runtime's own object")
