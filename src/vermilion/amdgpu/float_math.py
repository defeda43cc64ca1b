"""Arithmetic of the vector units that numpy has no function of the same meaning for.

Source: AMD's instruction set guides (CDNA 3, RDNA 3), the descriptions of the instructions.
Transcendental functions are exact to a unit in the last place on the chip, and nearer here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

_NAN = np.float32(np.nan)


def fma(a: Any, b: Any, c: Any) -> Any:
    """Return a·b + c, rounded once: the product of two float32 is exact in float64."""
    if a.dtype == np.float64:
        return a * b + c
    return (a.astype(np.float64) * b + c).astype(np.float32)


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller; of a number and a NaN the number."""
    return np.fmin(a, b)


def maximum(a: Any, b: Any) -> Any:
    """Return the larger; of a number and a NaN the number."""
    return np.fmax(a, b)


def median(a: Any, b: Any, c: Any) -> Any:
    """Return the one in the middle."""
    return np.maximum(np.minimum(a, b), np.minimum(np.maximum(a, b), c))


def _wide(function: Any) -> Any:
    return lambda x: function(x.astype(np.float64)).astype(np.float32)


exp2, log2 = _wide(np.exp2), _wide(np.log2)
reciprocal = _wide(lambda x: 1.0 / x)
rsqrt = _wide(lambda x: 1.0 / np.sqrt(x))
square_root = _wide(np.sqrt)
sine = _wide(lambda x: np.sin(2 * np.pi * x))  # in turns
cosine = _wide(lambda x: np.cos(2 * np.pi * x))


def fraction(x: Any) -> Any:
    """Return what is above the next lower whole number."""
    return np.minimum(x - np.floor(x), np.float32(0.99999994)).astype(x.dtype)


def ldexp(x: Any, exponent: Any) -> Any:
    """Return x·2ⁿ."""
    return np.ldexp(x, np.clip(exponent, -2000, 2000).astype(np.int32)).astype(x.dtype)


def frexp_exponent(x: Any) -> Any:
    """Return n of m·2ⁿ with m in [0.5, 1); 0 of what is no finite number."""
    return np.where(np.isfinite(x), np.frexp(x)[1], 0).astype(np.int32)


def to_integer(kind: str) -> Any:
    """Return the conversion to an integer type: toward zero, kept within it, NaN to 0."""
    low, high = (-(1 << 31), (1 << 31) - 1) if kind == "i32" else (0, (1 << 32) - 1)

    def convert(x: Any) -> Any:
        whole = np.trunc(np.nan_to_num(x.astype(np.float64), nan=0.0, posinf=1e18, neginf=-1e18))
        return np.clip(whole, low, high).astype(np.int64).astype(np.uint32)

    return convert


def _exponent(x: F32) -> NDArray[np.int32]:
    """Return the biased exponent of a float32, as its bits have it."""
    word = np.ascontiguousarray(x).view(np.uint32)
    return ((word >> np.uint32(23)) & np.uint32(0xFF)).astype(np.int32)


def _is_denormal(x: F32) -> NDArray[np.bool_]:
    return np.asarray((_exponent(x) == 0) & (x != 0))


def div_scale(s0: F32, s1: F32, s2: F32) -> tuple[F32, NDArray[np.bool_]]:
    """Return the operand scaled for a division s2 / s1, and whether the quotient is scaled back."""
    s0, s1, s2 = np.broadcast_arrays(s0, s1, s2)
    quotient_tiny = _is_denormal((s2.astype(np.float64) / s1).astype(np.float32))
    inverse_tiny = _is_denormal((1.0 / s1.astype(np.float64)).astype(np.float32))
    is_s1, is_s2 = s0 == s1, s0 == s2
    far = _exponent(s2) - _exponent(s1) >= 96
    both = inverse_tiny & quotient_tiny
    up = np.ldexp(s0, 64).astype(np.float32)
    down = np.ldexp(s0, -64).astype(np.float32)
    conditions = [
        (s1 == 0) | (s2 == 0),
        far,
        _is_denormal(s1),
        both,
        inverse_tiny,
        quotient_tiny,
        _exponent(s2) <= 23,
    ]
    values = [
        np.full_like(s0, _NAN),
        np.where(is_s1, up, s0),
        up,
        np.where(is_s1, up, s0),
        down,
        np.where(is_s2, up, s0),
        up,
    ]
    flags = [False, True, False, True, False, True, False]
    scaled = np.select(conditions, [np.asarray(flag) for flag in flags], False)
    return np.select(conditions, values, s0), scaled


def div_fmas(a: F32, b: F32, c: F32, scaled: NDArray[np.bool_]) -> F32:
    """Return a·b + c, scaled back where `div_scale` said so."""
    found = fma(a, b, c)
    factor = np.where(_exponent(c) > 127, np.float32(2.0**64), np.float32(2.0**-64))
    result: F32 = np.where(scaled, found * factor, found)
    return result


def div_fixup(quotient: F32, s1: F32, s2: F32) -> F32:
    """Return the quotient s2 / s1 with its sign and its special cases."""
    quotient, s1, s2 = np.broadcast_arrays(quotient, s1, s2)
    negative = np.signbit(s1) ^ np.signbit(s2)
    signed = np.where(negative, np.float32(-1), np.float32(1))
    infinite, nothing = signed * np.float32(np.inf), signed * np.float32(0)
    conditions = [
        np.isnan(s2),
        np.isnan(s1),
        ((s1 == 0) & (s2 == 0)) | (np.isinf(s1) & np.isinf(s2)),
        (s1 == 0) | np.isinf(s2),
        np.isinf(s1) | (s2 == 0),
        _exponent(s2) - _exponent(s1) < -150,
        _exponent(s1) == 255,
    ]
    values = [s2, s1, np.full_like(s1, _NAN), infinite, nothing, nothing, infinite]
    found: F32 = np.select(conditions, values, np.copysign(quotient, signed))
    return found


def is_of_class(x: F32, classes: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Say whether a number is of a class whose bit is set: signaling NaN, quiet NaN, -inf, …."""
    tiny = _is_denormal(x)
    negative = np.signbit(x)
    finite, normal = np.isfinite(x), np.isfinite(x) & (x != 0) & ~tiny
    word = np.ascontiguousarray(x).view(np.uint32)
    quiet = np.isnan(x) & ((word & np.uint32(1 << 22)) != 0)
    flags = [
        np.isnan(x) & ~quiet,
        quiet,
        np.isinf(x) & negative,
        normal & negative,
        tiny & negative,
        finite & (x == 0) & negative,
        finite & (x == 0) & ~negative,
        tiny & ~negative,
        normal & ~negative,
        np.isinf(x) & ~negative,
    ]
    found = np.zeros(np.broadcast_shapes(x.shape, classes.shape), np.bool_)
    for number, flag in enumerate(flags):
        found |= flag & ((classes >> np.uint32(number)) & np.uint32(1)).astype(np.bool_)
    return found
