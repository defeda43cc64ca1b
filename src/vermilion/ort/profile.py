"""A session's profile as ONNX Runtime writes one: a list of events in Chrome's trace format.

Generated parts run step by step here, one after the other, so that each has a time; steps that a
program lets overlap take a little longer all together. What ONNX Runtime computes, it tells itself.
Source: microsoft/onnxruntime, onnxruntime/core/common/profiler.cc and what version 1.32 writes:
complete events (`X`) of the categories `Session` and `Node`, in microseconds since the start.
"""

from __future__ import annotations

import json
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vermilion.backends import backend
from vermilion.backends.base import Array
from vermilion.runtime.artifact import ArtifactReader, open_artifact
from vermilion.runtime.recompile import runnable
from vermilion.runtime.session import PROVIDERS, Session

if TYPE_CHECKING:
    import onnxruntime as ort

    from vermilion.bench.events import TimedPart

Event = dict[str, Any]


class Profile:
    """What a session's runs took. Safe for several threads: runs that are measured take turns."""

    def __init__(self, prefix: str) -> None:
        """Begin: times count from now. `prefix` is that of the file."""
        self.start_ns = _now_ns()
        self._clock_ns = time.perf_counter_ns() - self.start_ns  # between the two clocks
        now = datetime.now()
        stamp = f"{now:%Y-%m-%d_%H-%M-%S}_{now.microsecond // 1000:03}"
        self._file = Path(f"{prefix}_{stamp}.json")
        self._scratch = tempfile.TemporaryDirectory(
            prefix="vermilion-profile-", ignore_cleanup_errors=True
        )
        self._lock = threading.Lock()
        self._events: list[Event] = []
        self._opened: list[tuple[Session, list[TimedPart]]] = []
        self._peers: list[ort.InferenceSession] = []
        self._is_over = False

    def opened(
        self, artifact: str | os.PathLike[str] | ArtifactReader, *, verify: bool, **options: Any
    ) -> Session:
        """Open a bundle whose parts tell of their steps."""
        from vermilion.bench.events import TimedBackend

        begin_ns = _now_ns()
        reader = (
            artifact
            if isinstance(artifact, ArtifactReader)
            else open_artifact(artifact, verify="as read" if verify else False)
        )
        notes: tuple[str, ...] = ()
        if not options.get("trust_code"):
            reader, notes = runnable(reader)
        parts: list[TimedPart] = []
        folder = Path(self._scratch.name, str(len(self._opened)))
        folder.mkdir()
        timed = {
            name: TimedBackend(backend(name), folder, parts)
            for name in {part.backend for part in reader.manifest.parts}
        }
        session = Session(reader, backends=timed, **options)
        session.notes = (*notes, *session.notes)
        self._opened.append((session, parts))
        self._add("session_initialization", begin_ns)
        return session

    def add_peer(self, peer: ort.InferenceSession) -> None:
        """Take what ONNX Runtime's session of the model writes, in the end."""
        self._peers.append(peer)

    def run(
        self,
        bundle: Session,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        places: Mapping[str, Array] | None,
        is_ended: Callable[[], bool] | None,
    ) -> list[Array]:
        """Run a bundle, and keep what that took."""
        with self._lock:
            begin_ns = _now_ns()
            found = bundle.run(names, feed, places=places, is_ended=is_ended)
            if self._is_over:
                for _, parts in self._opened:
                    for part in parts:
                        part.kept.clear()
            else:
                self._add("model_run", begin_ns)
        return found

    def written(self) -> str:
        """Write the file and return its name; an empty one where it was written before."""
        with self._lock:
            if self._is_over:
                return ""
            self._is_over = True
            events = [*self._events, *self._of_peers()]
            for session, parts in self._opened:
                events += self._of_parts(session, parts)
            self._file.write_text(_listed(sorted(events, key=_begin)), encoding="utf-8")
            return str(self._file)

    def _add(self, name: str, begin_ns: int) -> None:
        duration_us = (_now_ns() - begin_ns) // 1000
        self._events.append(self._event("Session", name, begin_ns, duration_us, {}))

    def _event(
        self, category: str, name: str, begin_ns: float, duration_us: float, args: Mapping[str, Any]
    ) -> Event:
        return {
            "cat": category,
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "dur": round(duration_us),
            "ts": round((begin_ns - self.start_ns) / 1e3),
            "ph": "X",
            "name": name,
            "args": dict(args),
        }

    def _of_peers(self) -> Iterator[Event]:
        for peer in self._peers:
            file = Path(peer.end_profiling())
            shift_us = (peer.get_profiling_start_time_ns() - self.start_ns) // 1000
            for event in json.loads(file.read_text(encoding="utf-8")):
                yield {**event, "ts": event["ts"] + shift_us}
            file.unlink()

    def _of_parts(self, session: Session, parts: Sequence[TimedPart]) -> Iterator[Event]:
        nodes = _nodes(session)
        for record, part in zip(session.manifest.parts, parts, strict=True):
            provider = PROVIDERS.get(record.backend, record.backend)
            for begin_ns, told in part.told():
                for at, event in enumerate(told):
                    about = {"op_name": event.kind, **nodes.get(event.name, {})}
                    about |= {"provider": provider, "node_index": str(at)}
                    about |= {"kernel": event.detail or event.kind}
                    begin = begin_ns - self._clock_ns + event.begin_us * 1e3
                    name = f"{event.name or event.kind}_kernel_time"
                    yield self._event("Node", name, begin, event.duration_us, about)


# ONNX Runtime's times are those of `std::chrono::high_resolution_clock`, which on Linux is the time
# of day, and elsewhere what its documentation names, the clock that never goes back.
_now_ns = time.time_ns if sys.platform == "linux" else time.monotonic_ns


def _begin(event: Event) -> int:
    return int(event["ts"])


def _listed(events: Sequence[Event]) -> str:
    lines = ",\n".join(json.dumps(event) for event in events)
    return f"[\n{lines}\n]\n"


def _nodes(session: Session) -> dict[str, Event]:
    """Return what ONNX Runtime tells of a node beside its time, by the node's name."""
    return {
        node.name: {
            "op_name": node.op_type,
            "input_type_shape": _typed(node.inputs),
            "output_type_shape": _typed(node.outputs),
            "parameter_size": str(_bytes(v for v in node.inputs if _is_weight(v))),
            "activation_size": str(_bytes(v for v in node.inputs if not _is_weight(v))),
            "output_size": str(_bytes(node.outputs)),
        }
        for node in session.model().graph
        if node.name
    }


def _is_weight(value: Any) -> bool:
    return value is not None and value.is_initializer()


def _sizes(value: Any) -> list[int] | None:
    """Return a tensor's sizes where all are known."""
    if value is None or value.shape is None or value.dtype is None:
        return None
    sizes = [size for size in value.shape.dims if isinstance(size, int)]
    return sizes if len(sizes) == len(value.shape.dims) else None


def _typed(values: Sequence[Any]) -> list[dict[str, list[int]]]:
    pairs = [(value, _sizes(value)) for value in values]
    return [{value.dtype.name.lower(): sizes} for value, sizes in pairs if sizes is not None]


def _bytes(values: Any) -> int:
    pairs = [(value, _sizes(value)) for value in values]
    return sum(
        math.prod(sizes) * value.dtype.bitwidth // 8 for value, sizes in pairs if sizes is not None
    )
