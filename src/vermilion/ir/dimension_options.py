"""The command-line options that bind every open dimension of a model: what a hint says to write."""

from __future__ import annotations

import onnx_ir as ir

from vermilion.ir.opset import required_inputs
from vermilion.ir.passes.bind_dimensions import dimension_name


def dimension_options(model: ir.Model) -> str:
    """Return `--dim` options that bind all that is open: by name, else an input's whole shape."""
    options: dict[str, None] = {}
    for value in required_inputs(model):
        sizes = value.shape.dims if value.shape is not None else None
        if sizes is None:
            options[f"--dim {value.name}=SIZExSIZE"] = None
            continue
        named = [None if _is_bound(size) else dimension_name(size) or "" for size in sizes]
        if "" in named:
            wanted = [
                size if isinstance(size, int) and size >= 0 else _usual(axis, len(sizes))
                for axis, size in enumerate(sizes)
            ]
            options[f"--dim {value.name}={'x'.join(map(str, wanted))}"] = None
            continue
        for axis, name in enumerate(named):
            if name and not any(option.startswith(f"--dim {name}=") for option in options):
                options[f"--dim {name}={_usual(axis, len(sizes))}"] = None
    return " ".join(options)


def _is_bound(size: object) -> bool:
    return isinstance(size, int) and size >= 0


def _usual(axis: int, rank: int) -> int:
    """Return a size that such a dimension often has: of a batch, a picture, a text."""
    if axis == 0:
        return 1
    if rank >= 4:
        return 3 if axis == 1 else 224
    return 128
