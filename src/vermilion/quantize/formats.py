"""Number formats and schemes, as rows of two tables.

A scheme says which integer format each kind of tensor takes. Adding one is adding a row, provided
that `choose.py` knows how its scales are picked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from vermilion.errors import OptionError


@dataclass(frozen=True)
class IntegerFormat:
    """A symmetric integer format: zero point 0, values from `-high` to `high`."""

    name: str
    data_type: ir.DataType
    high: int

    @property
    def numpy_type(self) -> np.dtype[Any]:
        """Give numpy's type of the stored integers."""
        return self.data_type.numpy()


# -128 is left unused, so that the range is symmetric and a product of two never overflows a sign.
# Source: AMD Quark for ONNX, symmetric signed ranges.
INT8 = IntegerFormat("int8", ir.DataType.INT8, 127)


@dataclass(frozen=True)
class Scheme:
    """What each kind of tensor becomes. All scales are powers of two, one a tensor."""

    name: str
    title: str
    activation: IntegerFormat
    weight: IntegerFormat
    bias: IntegerFormat


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme(
            name="xint8",
            title="int8 activations, weights and biases, power-of-two scales",
            activation=INT8,
            weight=INT8,
            bias=INT8,
        ),
    )
}


def scheme_named(name: str) -> Scheme:
    """Give the scheme of that name.

    Raises: OptionError that lists the known ones.
    """
    found = SCHEMES.get(name)
    if found is None:
        known = ", ".join(f"`{known}`" for known in sorted(SCHEMES))
        raise OptionError(f"unknown quantization scheme `{name}`", hint=f"known schemes: {known}")
    return found


def scale_of(position: int) -> np.float32:
    """Give the scale of a tensor whose binary point lies at `position`: 2^-position."""
    return np.float32(2.0**-position)


def to_integers(values: np.ndarray, position: int, number: IntegerFormat) -> np.ndarray:
    """Round `values` to the format at `position`, half to even, out of range to the ends."""
    scaled = np.rint(values.astype(np.float64) * 2.0**position)
    clipped: np.ndarray = np.clip(scaled, -number.high, number.high).astype(number.numpy_type)
    return clipped
