"""Where a model is to run, written behind its name: `MODEL.onnx@PLACE`."""

from __future__ import annotations

from pathlib import Path

# What runs a model file as it is; every other place is a target that it is compiled for.
ONNX_RUNTIME = ("onnxruntime", "ort")
LITERAL = "literal"


def named_place(what: str) -> tuple[Path, str]:
    """Take a name and what stands behind its last `@` apart; a file of the whole name has none."""
    file, at, place = what.rpartition("@")
    return (Path(what), "") if not (at and place) or Path(what).exists() else (Path(file), place)
