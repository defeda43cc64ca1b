"""ONNX Runtime's own values, for numbers that numpy lacks: bfloat16, float8, and four bits."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from numpy.typing import NDArray

from vermilion.ir.element_types import UNUSUAL_TYPES

Array = NDArray[Any]

# Two in a byte at ONNX Runtime, one at `ml_dtypes`.
_FOUR_BITS = {
    "tensor(int4)": np.dtype(ml_dtypes.int4),
    "tensor(uint4)": np.dtype(ml_dtypes.uint4),
}
_TYPES = UNUSUAL_TYPES | _FOUR_BITS
_NOT_NUMPY = frozenset(_TYPES.values())


def ort_value(array: Array) -> ort.OrtValue:
    """Lend an array to ONNX Runtime; it must live as long as the value does."""
    contiguous = _contiguous(array)
    if contiguous.dtype.kind == "V" or contiguous.dtype in _NOT_NUMPY:
        # ml_dtypes arrays: ONNX Runtime wants the bits and ONNX's number of the type.
        bits = contiguous.view(np.dtype(f"u{contiguous.dtype.itemsize}"))
        kind = ir.DataType.from_numpy(contiguous.dtype)
        if contiguous.dtype in _FOUR_BITS.values():
            bits = _packed(bits)
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, int(kind))
    return ort.OrtValue.ortvalue_from_numpy(contiguous)


def owned_value(array: Array) -> ort.OrtValue:
    """Hand an array over to ONNX Runtime: it lives as long as the value and arrays made of that.

    ONNX Runtime keeps what came by DLPack. What DLPack cannot tell of is copied, and so is all
    where ONNX Runtime is older than that.
    """
    contiguous = _contiguous(array)
    told = contiguous.dtype.kind in "biuf" and contiguous.dtype not in _NOT_NUMPY
    if told and contiguous.flags.writeable and hasattr(ort.OrtValue, "from_dlpack"):
        return ort.OrtValue.from_dlpack(contiguous)
    lent = ort_value(contiguous)
    own = ort.OrtValue.ortvalue_from_shape_and_type(list(contiguous.shape), lent.element_type())
    if contiguous.size:
        ctypes.memmove(own.data_ptr(), lent.data_ptr(), lent.tensor_size_in_bytes())
    return own


def _contiguous(array: Array) -> Array:
    """Return the array in one piece, a scalar as one: numpy makes a vector of it."""
    return np.ascontiguousarray(array).reshape(np.shape(array))


def _packed(bits: Array) -> Array:
    """Return four-bit elements as ONNX Runtime reads them: the first half of the bytes is used."""
    flat = np.zeros(bits.size + bits.size % 2, np.uint8)
    flat[: bits.size] = bits.ravel() & 0xF
    packed = np.zeros(bits.size, np.uint8)
    packed[: flat.size // 2] = flat[0::2] | flat[1::2] << 4
    return packed.reshape(bits.shape)


def needs_values(session: ort.InferenceSession, inputs: Mapping[str, Array]) -> bool:
    """Say whether inputs or outputs are numbers that only ONNX Runtime's own values hold."""
    given = any(getattr(array, "dtype", None) in _NOT_NUMPY for array in inputs.values())
    return given or any(value.type in _TYPES for value in session.get_outputs())


def run_with_values(
    session: ort.InferenceSession,
    names: Sequence[str],
    inputs: Mapping[str, Array],
    options: ort.RunOptions | None,
) -> list[Any]:
    """Do what `session.run` does, for numbers of every kind.

    Raises: what ONNX Runtime raises.
    """
    held = {name: _contiguous(array) for name, array in inputs.items()}
    values = {name: ort_value(array) for name, array in held.items()}
    types = {value.name: value.type for value in session.get_outputs()}
    unusual = [name for name in names if types.get(name) in _TYPES]
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
    dtype = _TYPES[value.data_type()]
    array = np.empty(value.shape(), dtype)
    if dtype not in _FOUR_BITS.values():
        if array.size:
            ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
        return array
    raw = ctypes.string_at(value.data_ptr(), (array.size + 1) // 2) if array.size else b""
    packed = np.frombuffer(raw, np.uint8)
    elements = np.stack([packed & 0xF, packed >> 4], -1).ravel()[: array.size].astype(np.int8)
    if dtype == np.dtype(ml_dtypes.int4):
        elements = np.where(elements > 7, elements - 16, elements)
    return elements.astype(dtype).reshape(array.shape)
