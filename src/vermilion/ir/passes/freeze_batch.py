"""Giving an open batch the size 1, and saying which other sizes somebody has to choose."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.ir.opset import required_inputs
from vermilion.ir.passes.bind_dimensions import bind_in_place, dimension_name
from vermilion.ir.passes.report import Notes

_BATCH_NAMES = frozenset(("b", "batch", "batch_size", "bs", "n", "n_batch", "num_batch"))


def freeze_batch(model: ir.Model, notes: Notes) -> None:
    """Before → after: `x[N, 3, 224, 224]` → `x[1, 3, 224, 224]`.

    An input's first size is its batch if it has a batch's name, or if the input has rank 4 (images;
    exporters name their batch `unk__653` or not at all). Every other open size is refused: what it
    should be, only the user knows.
    """
    sizes: dict[str, int] = {}
    for value in required_inputs(model):
        if value.shape is None:
            notes.refuse(f"input `{value.name}`", "its rank is not known", "export it with a shape")
            continue
        _freeze_unnamed(value, notes)
        for axis, size in enumerate(value.shape.dims):
            if isinstance(size, int) and size >= 0:
                continue
            name = dimension_name(size)
            if axis == 0 and name and (name.lower() in _BATCH_NAMES or len(value.shape) == 4):
                sizes[name] = 1
            elif name not in sizes:
                hint = f"`--dim {name}=…`" if name else f"`--dim {value.name}=1x…`"
                notes.refuse(f"input `{value.name}`", f"axis {axis} is open", f"choose it: {hint}")
    if sizes:
        bind_in_place(model, sizes, notes)


def _freeze_unnamed(value: ir.Value, notes: Notes) -> None:
    assert value.shape is not None, "the caller has looked"
    first = value.shape.dims[0] if len(value.shape) == 4 else 1
    if isinstance(first, int) and first >= 0:
        return
    if dimension_name(first):
        return
    value.shape = ir.Shape([1, *value.shape.dims[1:]])
    notes.fired += 1
