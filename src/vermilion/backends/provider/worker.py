"""The worker: an ONNX Runtime session with the vendor's provider.

Nothing here is trusted to come back: a native library may hang or end the process at any line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from vermilion.backends.provider.contract import CPU, Request, count_events, nodes_that_ran
from vermilion.process.arrays import Array

_SEVERITY_INFO, _SEVERITY_WARNING = 1, 2
_NO_CPU = "session.disable_cpu_ep_fallback"
RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"


def _providers(request: Request) -> list[tuple[str, dict[str, str]]]:
    asked = (request.provider, dict(request.options))
    # Beside a provider that must take every node the CPU's may not even be named.
    alone = request.provider == CPU or request.session_entries.get(_NO_CPU) == "1"
    return [asked] if alone else [asked, (CPU, {})]


def _asked_for(devices: list[Any], request: Request) -> list[Any]:
    """Return the one device that the options name by its number, all where they name none."""
    number = request.options.get("device_id", "")
    return devices[int(number) :][:1] if number.isdigit() else devices


class Worker:
    """The session behind the contract."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._arrays: list[Array] = []
        self._binding: Any = None

    def open(self, request: Mapping[str, Any]) -> dict[str, object]:
        """Make the session; return its providers and which nodes each was assigned."""
        self._request = Request.of_message(request)
        os.environ.update(self._request.environment)
        return self._open(self._request)

    def run(self) -> None:
        """Compute the outputs' files from the inputs' files."""
        self._session.run_with_iobinding(self._binding)

    def close(self) -> dict[str, object]:
        """Return the node runs by provider, where profiling was asked for."""
        if not self._request.profile:
            return {"events": {}}
        profile = Path(self._session.end_profiling()).read_text(encoding="utf-8", errors="replace")
        return {"events": count_events(profile), "nodes": nodes_that_ran(profile)}

    def _open(self, request: Request) -> dict[str, object]:
        import onnxruntime as ort

        options = ort.SessionOptions()
        # The provider's count of operators by device is information: since 1.7 it is printed at
        # that level alone (Ryzen AI documentation, inst.rst, `log_severity_level = 1`).
        options.log_severity_level = _SEVERITY_INFO if request.profile else _SEVERITY_WARNING
        for key, value in request.session_entries.items():
            options.add_session_config_entry(key, value)
        if request.profile:
            options.enable_profiling = True
            options.profile_file_prefix = str(self._folder / "profile")
        model = str(self._folder / request.model)
        if request.library:
            ort.register_execution_provider_library(request.provider, request.library)
            devices = [d for d in ort.get_ep_devices() if d.ep_name == request.provider]
            options.add_provider_for_devices(_asked_for(devices, request), dict(request.options))
            self._session = ort.InferenceSession(model, options)
        else:
            self._session = ort.InferenceSession(
                model,
                options,
                providers=_providers(request),
            )
        self._bind()
        nodes = self._assigned()
        return {
            "providers": self._session.get_providers(),
            "assigned": {provider: len(names) for provider, names in nodes.items()},
            "assigned_nodes": nodes,
        }

    def _bind(self) -> None:
        """Let the session read and write the mapped files themselves."""
        binding = self._session.io_binding()
        sides: tuple[tuple[Any, Callable[..., None]], ...] = (
            (self._request.inputs, binding.bind_input),
            (self._request.outputs, binding.bind_output),
        )
        for tensors, bind in sides:
            for tensor in tensors:
                array = tensor.map(self._folder)
                self._arrays.append(array)
                bind(
                    name=tensor.name,
                    device_type="cpu",
                    device_id=0,
                    element_type=array.dtype.type,
                    shape=list(tensor.shape),
                    buffer_ptr=array.ctypes.data,
                )
        self._binding = binding

    def _assigned(self) -> dict[str, list[str]]:
        """Return the nodes by provider, empty where this ONNX Runtime does not tell."""
        ask = getattr(self._session, "get_provider_graph_assignment_info", None)
        if ask is None or RECORD_ASSIGNMENT not in self._request.session_entries:
            return {}
        found: dict[str, list[str]] = {}
        for region in ask():
            names = [str(getattr(node, "name", "")) for node in region.get_nodes()]
            found.setdefault(str(region.ep_name), []).extend(names)
        return found
