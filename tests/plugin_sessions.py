"""Sessions of ONNX Runtime with our plugin, for the tests that hold them against ours."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import onnx
import onnx_ir as ir
import onnxruntime as ort

from vermilion.clib.library import plugin_library

PROVIDER = "VermilionExecutionProvider"


def plugin_options(**entries: str) -> ort.SessionOptions:
    """Return options of a session that our plugin takes part in."""
    with suppress(ort.capi.onnxruntime_pybind11_state.Fail):  # it is registered already
        if not any(one.ep_name == PROVIDER for one in ort.get_ep_devices()):
            ort.register_execution_provider_library("vermilion", str(plugin_library()))
    options = ort.SessionOptions()
    devices = [one for one in ort.get_ep_devices() if one.ep_name == PROVIDER]
    own = {name: value for name, value in entries.items() if name == "threads"}
    options.add_provider_for_devices(devices, own)
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.log_severity_level = 4
    return options


def opened(model: Path | bytes, **entries: str) -> ort.InferenceSession:
    """Open a model with our plugin; it is never let fall back to another provider."""
    source = model if isinstance(model, bytes) else str(model)
    return ort.InferenceSession(source, plugin_options(**entries), enable_fallback=0)


def placed(session: ort.InferenceSession) -> dict[str, list[str]]:
    """Return the operators that each provider was given."""
    found: dict[str, list[str]] = {}
    for part in session.get_provider_graph_assignment_info():
        found.setdefault(part.ep_name, []).extend(node.op_type for node in part.get_nodes())
    return found


def with_attributes(file: Path, new: Path, changes: Mapping[str, object]) -> Path:
    """Write a model whose context nodes have other attributes; None takes one away."""
    model = onnx.load(str(file))
    for node in model.graph.node:
        if node.op_type != "EPContext":
            continue
        kept = [one for one in node.attribute if one.name not in changes]
        made = [
            onnx.helper.make_attribute(name, value)
            for name, value in changes.items()
            if value is not None
        ]
        del node.attribute[:]
        node.attribute.extend([*kept, *made])
    onnx.save(model, str(new))
    return new


def text_model(text: str, weights: Mapping[str, object]) -> ir.Model:
    """Return the model of a text and its weights."""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return ir.from_proto(proto)
