"""What a user may give for a model: a file, its bytes, a protobuf message, or a graph."""

from __future__ import annotations

import os

import onnx
import onnx_ir as ir

from vermilion.files import resolved
from vermilion.ir.load import IN_MEMORY, load_model

ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model
"""An ONNX file, its bytes, what `onnx.load` returns, or a graph of `onnx_ir`."""


def open_source(source: ModelSource) -> ir.Model:
    """Return the graph of what was given; all but a graph is checked as `load_model` does.

    Raises: as `load_model`.
    """
    return source if isinstance(source, ir.Model) else load_model(source)


def label_of(source: ModelSource) -> str:
    """Return what reports call it: the file with its folder, or that it came from none."""
    if isinstance(source, str | os.PathLike):
        return str(resolved(source))
    return IN_MEMORY
