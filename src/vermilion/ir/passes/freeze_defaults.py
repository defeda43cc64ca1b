"""Making weights of inputs that have a default."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.ir.passes.report import Notes


def freeze_defaults(model: ir.Model, notes: Notes) -> None:
    """Before → after: an input that is also an initializer → just an initializer.

    Before IR version 4 every weight had to be listed as an input (ONNX IR specification,
    "Graphs"); as long as a caller may override it, nothing can be folded into it.
    """
    for graph in model.graphs():
        kept = [value for value in graph.inputs if not value.is_initializer()]
        gone = len(graph.inputs) - len(kept)
        if gone:
            graph.inputs.clear()
            graph.inputs.extend(kept)
            notes.fired += gone
