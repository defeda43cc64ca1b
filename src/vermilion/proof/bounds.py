"""How far an output may lie from the expected values, by number format, and why.

Two stages. The bound of a format is what correct kernels stay far below; what is within it passes.
What is beyond it is not wrong yet: a model may amplify roundings. Then noise of the size of the
format's own roundings is put into the literal run, and what it does to the outputs is allowed,
`factor` times, and no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from vermilion.ir.arrays import Array

FormatName = Literal["fp64", "fp32", "fp16", "bf16", "bfp16", "fp8", "exact"]


@dataclass(frozen=True)
class Bound:
    """What an output must keep to in one number format.

    Units: `sqnr_db` in dB over the whole tensor. `row_error` is relative to the largest magnitude
    of the row that the element lies in, `floor` to that of the tensor; the larger of the two
    is allowed at each element, so that one wrong element in a million is seen.
    `result_noise` and `operand_noise` are relative: what one rounding does to the result of an
    operator, and to what products and weights are made of. An error below `least` is none: there
    processors make 0 of what they round to the format.
    """

    sqnr_db: float
    row_error: float
    floor: float
    result_noise: float
    operand_noise: float
    factor: float
    least: float = 0.0


# 2^-53, 2^-24, 2^-11, 2^-9: half a unit in the last place (IEEE 754 binary64, binary32, binary16;
# bfloat16 has 8 significant bits).
BOUNDS: Mapping[FormatName, Bound] = {
    # Sums of a few thousand products in any order are off by tens of units in the last place:
    # 1e-5 of the whole is 170 of them.
    "fp64": Bound(200.0, 1e-12, 1e-14, 2.0**-51, 2.0**-52, 8.0),
    # 2^-20 of the tensor: a row of which a ReLU leaves next to nothing has no size of its own, and
    # 576 products kept in one float32 are off by 2^-21 of the largest sum (a 3x3 convolution of 64
    # channels, AVX2).
    "fp32": Bound(100.0, 1e-5, 2.0**-20, 2.0**-22, 2.0**-23, 8.0),
    # One rounding at the end leaves 78 dB, a chain of them less: beyond 55 the noise run decides.
    "fp16": Bound(55.0, 4e-3, 2.0**-11, 2.0**-11, 2.0**-11, 4.0),
    # One rounding at the end leaves 59 dB. A product instruction makes 0 of terms below 2^-126, of
    # which a sum has some dozens.
    "bf16": Bound(45.0, 1.5e-2, 2.0**-9, 2.0**-9, 2.0**-9, 4.0, 2.0**-120),
    # Blocks of 8 values share an exponent: the smaller ones have fewer bits than bfloat16.
    "bfp16": Bound(40.0, 3e-2, 2.0**-8, 2.0**-9, 2.0**-7, 4.0),
    # Four significant bits at most.
    "fp8": Bound(18.0, 2.0**-3, 2.0**-5, 2.0**-5, 2.0**-4, 4.0),
    # Integers, booleans and text.
    "exact": Bound(200.0, 0.0, 0.0, 2.0**-22, 2.0**-23, 1.0),
}

# Winograd's F(4x4) adds before it multiplies: errors up to 1e-5 of the largest output where a
# direct product has 1e-7 (measured on the 3x3 convolutions of ResNet-50).
_FEWER_PRODUCTS_FLOOR = 3e-5
FEWER_PRODUCTS_NOISE = 16.0


def bound_of(form: FormatName, *, fewer_products: bool = False) -> Bound:
    """Return the bound of a format, for programs that use Winograd's algorithm or do not."""
    bound = BOUNDS[form]
    if not fewer_products or form == "exact":
        return bound
    return replace(bound, floor=max(bound.floor, _FEWER_PRODUCTS_FLOOR))


def format_of(array: Array) -> FormatName:
    """Return the number format that an array of this data type is judged in."""
    name = np.dtype(array.dtype).name
    return {
        "float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16",
    }.get(name, "fp8" if name.startswith("float8") else "exact")  # type: ignore[return-value] # fmt: skip


# From the most exact to the least.
_ORDER: tuple[FormatName, ...] = ("fp64", "fp32", "fp16", "bf16", "bfp16", "fp8")


def coarser(one: FormatName, other: FormatName) -> FormatName:
    """Return the format with fewer bits; what is exact stays exact."""
    if "exact" in (one, other):
        return "exact"
    return max(one, other, key=_ORDER.index)


def format_in(form: FormatName, array: object) -> FormatName:
    """Return the format that an output is judged in where parts compute in `form`."""
    own: FormatName = format_of(array) if isinstance(array, np.ndarray) else "fp32"
    return coarser(own, form)
