"""The child: one ONNX Runtime session with the vendor's provider, opened, run and closed on order.

Nothing here is trusted to come back: a native library may hang or end the process at any line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from vermilion.backends.process.contract import LOG_FILE, Array, Request
from vermilion.backends.process.profile import CPU, count_events

_SEVERITY_WARNING = 2
_NO_CPU = "session.disable_cpu_ep_fallback"
RECORD_ASSIGNMENT = "session.record_ep_graph_assignment_info"


def main() -> None:
    """Serve the folder that the first argument names."""
    leave_interrupts_to_parent()
    folder = Path(sys.argv[1])
    replies = private_stdout(folder)
    request = Request.read(folder)
    os.environ.update(request.environment)
    try:
        serve(OnnxRuntime(request, folder), replies)
    except Exception as error:  # ONNX Runtime's exceptions share no base but Exception
        reply(replies, "failed", reason=f"{type(error).__name__}: {error}")


def leave_interrupts_to_parent() -> None:
    """Go on when Ctrl-C is pressed: it reaches both, and the parent may want the next run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def private_stdout(folder: Path) -> TextIO:
    """Keep the real stdout for replies; whatever else prints goes to the log."""
    kept = os.dup(sys.stdout.fileno())
    log = os.open(folder / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    return os.fdopen(kept, "w", encoding="utf-8")


def reply(replies: TextIO, event: str, **facts: object) -> None:
    """Say one thing to the parent."""
    replies.write(json.dumps({"event": event, **facts}) + "\n")
    replies.flush()


def serve(session: Any, replies: TextIO) -> None:
    """Open, then run and close as the lines on standard input say."""
    begin = time.perf_counter()
    opened = session.open()
    reply(replies, "opened", **opened, seconds=time.perf_counter() - begin)
    for line in sys.stdin:
        if line.strip() == "run":
            begin = time.perf_counter()
            session.run()
            reply(replies, "ran", seconds=time.perf_counter() - begin)
        else:
            break
    reply(replies, "closed", events=session.close())


def _providers(request: Request) -> list[tuple[str, dict[str, str]]]:
    asked = (request.provider, dict(request.options))
    # Beside a provider that must take every node the CPU's may not even be named.
    alone = request.provider == CPU or request.session_entries.get(_NO_CPU) == "1"
    return [asked] if alone else [asked, (CPU, {})]


def _asked_for(devices: list[Any], request: Request) -> list[Any]:
    """Return the one device that the options name by its number, all where they name none."""
    number = request.options.get("device_id", "")
    return devices[int(number) :][:1] if number.isdigit() else devices


class OnnxRuntime:
    """The session behind the contract."""

    def __init__(self, request: Request, folder: Path) -> None:
        self._request = request
        self._folder = folder
        self._session: Any = None
        self._binding: Any = None
        self._arrays: list[Array] = []

    def open(self) -> dict[str, object]:
        """Make the session; give its providers and which nodes each was assigned."""
        import onnxruntime as ort

        request = self._request
        options = ort.SessionOptions()
        options.log_severity_level = _SEVERITY_WARNING
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
        return {"providers": self._session.get_providers(), "assigned": self._assigned()}

    def run(self) -> None:
        """Compute the outputs' files from the inputs' files."""
        self._session.run_with_iobinding(self._binding)

    def close(self) -> dict[str, int]:
        """End the session; give the node runs by provider, where profiling was asked for."""
        if not self._request.profile:
            return {}
        profile = Path(self._session.end_profiling())
        return count_events(profile.read_text(encoding="utf-8"))

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

    def _assigned(self) -> dict[str, int]:
        """Return the nodes by provider, empty where this ONNX Runtime does not tell."""
        ask = getattr(self._session, "get_provider_graph_assignment_info", None)
        if ask is None or RECORD_ASSIGNMENT not in self._request.session_entries:
            return {}
        counts: Counter[str] = Counter()
        for region in ask():
            counts[str(region.ep_name)] += len(region.get_nodes())
        return dict(counts)
