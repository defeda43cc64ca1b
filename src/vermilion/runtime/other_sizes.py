"""Runs at sizes for which a program is not right: ONNX Runtime has the whole model then."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vermilion.backends.base import Array, Tensors
from vermilion.forks import renew_after_fork
from vermilion.runtime.artifact import ArtifactReader

if TYPE_CHECKING:
    import onnxruntime as ort


class WholeModel:
    """The model of a bundle in ONNX Runtime without its optimizations, opened when first needed."""

    def __init__(self, reader: ArtifactReader, threads: int) -> None:
        """Take a bundle; nothing is opened yet."""
        self._reader, self._threads = reader, threads
        self._session: ort.InferenceSession | None = None
        self._lock = threading.Lock()
        renew_after_fork(self)

    def run(self, names: Sequence[str], inputs: Tensors) -> list[Array]:
        """Compute the outputs that are named. Raises: UnsupportedError where that fails."""
        # Graphs and ONNX Runtime's options are loaded by who needs them.
        from vermilion.ir.execute import open_session, run_session

        with self._lock:
            if self._session is None:
                self._session = open_session(
                    self._reader.model(), threads=self._threads, optimize=False
                )
        known = {value.name for value in self._session.get_inputs()}
        given = {name: array for name, array in inputs.items() if name in known}
        made = run_session(self._session, given, names)
        return [made[name] for name in names]

    def after_fork(self) -> None:
        """Renew the lock in a forked process: whoever held it is not there."""
        self._lock = threading.Lock()
