"""ONNX Runtime's own values, for numbers that numpy lacks: bfloat16 and floats of eight bits."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from vermilion.ir.element_types import UNUSUAL_TYPES

Array = NDArray[Any]

_NOT_NUMPY = frozenset(UNUSUAL_TYPES.values())


def ort_value(array: Array) -> ort.OrtValue:
    """Lend an array to ONNX Runtime; it must live as long as the value does."""
    contiguous = np.ascontiguousarray(array)
    if contiguous.dtype.kind == "V" or contiguous.dtype in _NOT_NUMPY:
        # ml_dtypes arrays: ONNX Runtime wants the bits and ONNX's number of the type.
        bits = contiguous.view(np.dtype(f"u{contiguous.dtype.itemsize}"))
        kind = ir.DataType.from_numpy(contiguous.dtype)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, int(kind))
    return ort.OrtValue.ortvalue_from_numpy(contiguous)


def needs_values(session: ort.InferenceSession, inputs: Mapping[str, Array]) -> bool:
    """Say whether inputs or outputs are numbers that only ONNX Runtime's own values hold."""
    given = any(getattr(array, "dtype", None) in _NOT_NUMPY for array in inputs.values())
    return given or any(value.type in UNUSUAL_TYPES for value in session.get_outputs())


def run_with_values(
    session: ort.InferenceSession,
    names: Sequence[str],
    inputs: Mapping[str, Array],
    options: ort.RunOptions | None,
) -> list[Any]:
    """Do what `session.run` does, for numbers of every kind.

    Raises: what ONNX Runtime raises.
    """
    held = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
    values = {name: ort_value(array) for name, array in held.items()}
    types = {value.name: value.type for value in session.get_outputs()}
    unusual = [name for name in names if types.get(name) in UNUSUAL_TYPES]
    # Its values do not give sequences and maps as Python's; a plain run gives no bfloat16. Rarely
    # a model has both: it runs twice.
    others = [name for name in names if name not in unusual]
    found: dict[str, Any] = {}
    if unusual:
        made = session.run_with_ort_values(unusual, values, options)
        found.update(zip(unusual, map(_array, made), strict=True))
    if others:
        found.update(zip(others, session.run(others, values, options), strict=True))
    return [found[name] for name in names]


def _array(value: ort.OrtValue) -> Array:
    array = np.empty(value.shape(), UNUSUAL_TYPES[value.data_type()])
    if array.size:
        ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
    return array
