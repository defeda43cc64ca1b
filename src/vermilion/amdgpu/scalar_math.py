"""What the instructions of the scalar unit compute: tables by name.

Source: AMD's instruction set guides, "Scalar ALU operations" (SOP1, SOP2, SOPK).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vermilion.amdgpu import float_math as m


def _not_zero(found: Any) -> Any:
    return found != 0


def _carry_out(a: Any, b: Any, scc: Any) -> tuple[Any, Any]:
    total = a.astype(np.uint64) + b.astype(np.uint64) + scc.astype(np.uint64)
    return total.astype(np.uint32), total > np.uint64(0xFFFFFFFF)


def _borrow_out(a: Any, b: Any, scc: Any) -> tuple[Any, Any]:
    total = a.astype(np.int64) - b.astype(np.int64) - scc.astype(np.int64)
    return (total & 0xFFFFFFFF).astype(np.uint32), total < 0


def _overflow(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    def compute(a: Any, b: Any, scc: Any) -> tuple[Any, Any]:
        wide = function(a.view(np.int32).astype(np.int64), b.view(np.int32).astype(np.int64))
        narrow = (wide & 0xFFFFFFFF).astype(np.uint32)
        return narrow, narrow.view(np.int32) != wide

    return compute


def _logic(function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    def compute(a: Any, b: Any, scc: Any) -> tuple[Any, Any]:
        found = function(a, b)
        return found, _not_zero(found)

    return compute


def _shift(function: Any) -> Callable[..., tuple[Any, Any]]:
    return _logic(lambda a, b: function(a, (b & b.dtype.type(8 * a.itemsize - 1)).astype(a.dtype)))


def _signed(function: Any) -> Callable[..., tuple[Any, Any]]:
    def compute(a: Any, b: Any, scc: Any) -> tuple[Any, Any]:
        signed: Any = np.int32 if a.itemsize == 4 else np.int64
        found = function(a.view(signed), b.astype(a.dtype).view(signed)).view(a.dtype)
        return found, _not_zero(found)

    return compute


def _field(a: Any, b: Any, *, signed: bool) -> Any:
    kind = a.dtype.type
    size = 8 * a.itemsize
    start, width = (b & b.dtype.type(size - 1)), (b >> b.dtype.type(16)) & b.dtype.type(127)
    start, width = start.astype(a.dtype), np.minimum(width, size).astype(a.dtype)
    left = np.where(width == 0, 0, size - np.minimum(start + width, size)).astype(a.dtype)
    right = np.where(width == 0, 0, size - width).astype(a.dtype)
    if signed:
        view: Any = np.int32 if size == 32 else np.int64
        moved = (a << left).view(view) >> right.view(view)
        return np.where(width == 0, kind(0), moved.view(a.dtype))
    return np.where(width == 0, kind(0), (a << left) >> right)


def _extreme(function: Any, kind: Any) -> Callable[..., tuple[Any, Any]]:
    def compute(a: Any, b: Any, scc: Any) -> tuple[Any, Any]:
        a, b = a.view(kind), b.view(kind)
        found = function(a, b)
        return found.view(np.uint32), found == a

    return compute


def _none(function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    return lambda a, b, scc: (function(a, b), scc)


def _real(function: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    def compute(a: Any, b: Any, scc: Any) -> tuple[Any, Any]:
        found = function(a.view(np.float32), b.view(np.float32))
        return np.ascontiguousarray(found, np.float32).view(np.uint32), scc

    return compute


BINARY: dict[str, Callable[..., tuple[Any, Any]]] = {
    "add_u32": lambda a, b, scc: _carry_out(a, b, np.zeros_like(scc)),
    "add_co_u32": lambda a, b, scc: _carry_out(a, b, np.zeros_like(scc)),
    "addc_u32": _carry_out,
    "add_co_ci_u32": _carry_out,
    "sub_u32": lambda a, b, scc: _borrow_out(a, b, np.zeros_like(scc)),
    "sub_co_u32": lambda a, b, scc: _borrow_out(a, b, np.zeros_like(scc)),
    "subb_u32": _borrow_out,
    "sub_co_ci_u32": _borrow_out,
    **{name: _overflow(lambda a, b: a + b) for name in ("add_i32", "add_co_i32", "addk_i32")},
    **{name: _overflow(lambda a, b: a - b) for name in ("sub_i32", "sub_co_i32")},
    "add_nc_u64": _none(lambda a, b: a + b),
    "add_u64": _none(lambda a, b: a + b),
    "sub_nc_u64": _none(lambda a, b: a - b),
    "mul_i32": _none(lambda a, b: a * b),
    "mulk_i32": _none(lambda a, b: a * b),
    "mul_u64": _none(lambda a, b: a * b),
    "mul_hi_u32": _none(lambda a, b: (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32)),
    "mul_hi_i32": _none(
        lambda a, b: (a.view(np.int32).astype(np.int64) * b.view(np.int32) >> np.int64(32)).astype(
            np.uint32
        )
    ),
    "min_u32": _extreme(np.minimum, np.uint32),
    "max_u32": _extreme(np.maximum, np.uint32),
    "min_i32": _extreme(np.minimum, np.int32),
    "max_i32": _extreme(np.maximum, np.int32),
    **{
        f"{name}_{kind}": _logic(function)
        for kind in ("b32", "b64")
        for name, function in (
            ("and", np.bitwise_and),
            ("or", np.bitwise_or),
            ("xor", np.bitwise_xor),
            ("andn2", lambda a, b: a & ~b),
            ("and_not1", lambda a, b: a & ~b),
            ("orn2", lambda a, b: a | ~b),
            ("or_not1", lambda a, b: a | ~b),
            ("nand", lambda a, b: ~(a & b)),
            ("nor", lambda a, b: ~(a | b)),
            ("xnor", lambda a, b: ~(a ^ b)),
        )
    },
    **{f"lshl_{kind}": _shift(np.left_shift) for kind in ("b32", "b64")},
    **{f"lshr_{kind}": _shift(np.right_shift) for kind in ("b32", "b64")},
    **{
        f"ashr_{kind}": _signed(lambda a, b: a >> (b & b.dtype.type(8 * a.itemsize - 1)))
        for kind in ("i32", "i64")
    },
    **{f"bfe_{kind}": _logic(lambda a, b: _field(a, b, signed=False)) for kind in ("u32", "u64")},
    **{f"bfe_{kind}": _logic(lambda a, b: _field(a, b, signed=True)) for kind in ("i32", "i64")},
    "bfm_b32": _none(lambda a, b: ((np.uint32(1) << (a & 31)) - np.uint32(1)) << (b & 31)),
    **{
        f"lshl{n}_add_u32": (
            lambda a, b, scc, n=n: _carry_out(a << np.uint32(n), b, np.zeros_like(scc))
        )
        for n in (1, 2, 3, 4)
    },
    "pack_ll_b32_b16": _none(lambda a, b: (a & 0xFFFF) | (b << np.uint32(16))),
    "pack_lh_b32_b16": _none(lambda a, b: (a & 0xFFFF) | (b & np.uint32(0xFFFF0000))),
    "pack_hh_b32_b16": _none(lambda a, b: (a >> np.uint32(16)) | (b & np.uint32(0xFFFF0000))),
    "cselect_b32": lambda a, b, scc: (np.where(scc, a, b), scc),
    "cselect_b64": lambda a, b, scc: (np.where(scc, a, b), scc),
    "add_f32": _real(lambda a, b: a + b),
    "sub_f32": _real(lambda a, b: a - b),
    "mul_f32": _real(lambda a, b: a * b),
    "min_num_f32": _real(m.minimum),
    "max_num_f32": _real(m.maximum),
    "min_f32": _real(m.minimum),
    "max_f32": _real(m.maximum),
}


def _reversed(a: Any) -> Any:
    raw = np.ascontiguousarray(a).view(np.uint8).reshape(len(a), a.itemsize)
    flipped = np.packbits(np.unpackbits(raw, axis=1, bitorder="little"), axis=1)[:, ::-1]
    return np.ascontiguousarray(flipped).view(a.dtype)[:, 0]


def _first_one(a: Any) -> Any:
    lowest = a & (~a + a.dtype.type(1))
    found = np.log2(np.maximum(lowest, 1).astype(np.float64)).astype(np.int64)
    return np.where(a == 0, 0xFFFFFFFF, found).astype(np.uint32)


def _leading(a: Any) -> Any:
    size = 8 * a.itemsize
    raw = np.ascontiguousarray(a).view(np.uint8).reshape(len(a), a.itemsize)
    flags = np.unpackbits(raw, axis=1, bitorder="little")[:, ::-1]
    return np.where(a == 0, 0xFFFFFFFF, np.argmax(flags, axis=1) % size).astype(np.uint32)


def _f32(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda a: np.ascontiguousarray(function(a.view(np.float32)), np.float32).view(np.uint32)


def _half(a: Any) -> Any:
    return a.astype(np.uint16).view(np.float16).astype(np.float32).view(np.uint32)


# Name → what is computed, whether SCC says that it is not zero.
UNARY: dict[str, tuple[Callable[[Any], Any], bool]] = {
    **{f"mov_{k}": (lambda a: a, False) for k in ("b32", "b64")},
    "movk_i32": (lambda a: a, False),
    **{f"not_{k}": (np.invert, True) for k in ("b32", "b64")},
    **{f"brev_{k}": (_reversed, False) for k in ("b32", "b64")},
    **{f"ff1_i32_{k}": (_first_one, False) for k in ("b32", "b64")},
    **{f"ctz_i32_{k}": (_first_one, False) for k in ("b32", "b64")},
    **{f"flbit_i32_{k}": (_leading, False) for k in ("b32", "b64")},
    **{f"clz_i32_{k}": (_leading, False) for k in ("u32", "u64")},
    **{
        f"bcnt1_i32_{k}": (lambda a: np.bitwise_count(a).astype(np.uint32), True)
        for k in ("b32", "b64")
    },
    "sext_i32_i8": (lambda a: (a << np.uint32(24)).view(np.int32) >> np.int32(24), False),
    "sext_i32_i16": (lambda a: (a << np.uint32(16)).view(np.int32) >> np.int32(16), False),
    "abs_i32": (lambda a: np.abs(a.view(np.int32)), True),
    "cvt_f32_i32": (
        lambda a: a.view(np.int32).astype(np.float32).view(np.uint32),
        False,
    ),
    "cvt_f32_u32": (lambda a: a.astype(np.float32).view(np.uint32), False),
    "cvt_f32_f16": (_half, False),
    "cvt_hi_f32_f16": (lambda a: _half(a >> np.uint32(16)), False),
    "cvt_i32_f32": (lambda a: m.to_integer("i32")(a.view(np.float32)), False),
    "cvt_u32_f32": (lambda a: m.to_integer("u32")(a.view(np.float32)), False),
    "floor_f32": (_f32(np.floor), False),
    "ceil_f32": (_f32(np.ceil), False),
    "trunc_f32": (_f32(np.trunc), False),
    "rndne_f32": (_f32(np.rint), False),
}
