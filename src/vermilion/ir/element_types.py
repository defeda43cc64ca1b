"""ONNX Runtime's names of element types, and numpy's types for them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

_ORT_TYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(uint8)": np.uint8,
    "tensor(int16)": np.int16,
    "tensor(uint16)": np.uint16,
    "tensor(int32)": np.int32,
    "tensor(uint32)": np.uint32,
    "tensor(int64)": np.int64,
    "tensor(uint64)": np.uint64,
    "tensor(bool)": np.bool_,
    "tensor(string)": np.object_,
}

UNUSUAL_TYPES = {
    "tensor(bfloat16)": np.dtype(ml_dtypes.bfloat16),
    "tensor(float8e4m3fn)": np.dtype(ml_dtypes.float8_e4m3fn),
    "tensor(float8e4m3fnuz)": np.dtype(ml_dtypes.float8_e4m3fnuz),
    "tensor(float8e5m2)": np.dtype(ml_dtypes.float8_e5m2),
    "tensor(float8e5m2fnuz)": np.dtype(ml_dtypes.float8_e5m2fnuz),
}
"""Types that numpy lacks, as arrays have them with `ml_dtypes`."""


def numpy_type(ort_type: str) -> np.dtype[Any] | None:
    """Return numpy's type for ONNX Runtime's spelling, None where numpy has none (bfloat16)."""
    found = _ORT_TYPES.get(ort_type)
    return None if found is None else np.dtype(found)
