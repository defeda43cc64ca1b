"""Open dimensions: few backends compile for them, which is told with the `--dim` that fixes it.

At sizes for which a program is not right ONNX Runtime has the whole model.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vermilion.backends.base import Array, Tensors
from vermilion.forks import renew_after_fork
from vermilion.runtime.artifact import ArtifactReader

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime as ort

    from vermilion.partition.place import NodePlace


# What tells such a note from others.
_SIGN = "need fixed sizes"
# How the backends word it that a node was left to the CPU for this.
_OPEN = (" is dynamic", " are dynamic", "for one size")
# A share of nodes from which it is worth telling.
_MUCH = 0.5


def open_shape_note(model: ir.Model, nodes: Sequence[NodePlace], backend: str) -> tuple[str, ...]:
    """Return a note where dynamic dimensions kept much of a model from a backend."""
    # What reads graphs is loaded by who compiles; who opens a bundle does without.
    from vermilion.ir.passes.bind_dimensions import dimension_options, open_dimensions

    kept_out = sum(any(word in node.reason for word in _OPEN) for node in nodes)
    if kept_out < max(1, _MUCH * len(nodes)):
        return ()
    options = dimension_options(model)
    if not options:
        return ()  # every input is of a fixed shape: a size depends on data
    compiled = sum(node.backend == backend for node in nodes)
    names = ", ".join(f"`{name}`" for name in open_dimensions(model)) or "the rank of an input"
    note = (
        f"{compiled} of {len(nodes)} nodes are compiled by `{backend}`, the others {_SIGN}: "
        f"dynamic is {names}. Fix it to the size that you run: `{options}` (a bundle for each "
        "size is run with `--bucket`)"
    )
    return (note,)


def open_shape_notes(reader: ArtifactReader) -> tuple[str, ...]:
    """Return such notes of a bundle, from its report."""
    shapes = [record.shape for record in reader.manifest.inputs]
    if all(shape is not None and all(isinstance(n, int) for n in shape) for shape in shapes):
        return ()
    from vermilion.runtime.report import read_report

    return tuple(note for note in read_report(reader).notes if _SIGN in note)


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
