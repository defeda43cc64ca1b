"""The vector unit: one row an instruction, what it reads, what it computes, what it writes.

Source: AMD's instruction set guides, "Vector ALU operations" (VOP1, VOP2, VOP3, VOPC).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vermilion.amdgpu import float_math as m
from vermilion.amdgpu.assembly import Instruction
from vermilion.amdgpu.formats import reader, writer
from vermilion.amdgpu.operands import VCC, NotInterpretedError, Operand
from vermilion.amdgpu.results import finished
from vermilion.amdgpu.waves import Step

Row = tuple[str, str, Callable[..., Any]]

_32 = np.uint64(32)


def _shift(function: Callable[..., Any], bits: int) -> Callable[..., Any]:
    """Return a shift of the second operand by the first, whose lower bits count."""
    return lambda by, x: function(x, (by & (bits - 1)).astype(x.dtype))


def _u(x: Any) -> Any:
    return np.asarray(x).astype(np.uint32)


def _high(a: Any, b: Any) -> Any:
    kind = np.int64 if a.dtype.kind == "i" else np.uint64
    return (a.astype(kind) * b.astype(kind) >> kind(32)).astype(np.uint32)


def _field(x: Any, start: Any, width: Any) -> Any:
    start, width = start & 31, width & 31
    mask = (np.uint32(1) << width.astype(np.uint32)) - np.uint32(1)
    return (x >> start.astype(np.uint32)) & mask


def _signed_field(x: Any, start: Any, width: Any) -> Any:
    left = np.clip(32 - (start & 31) - (width & 31), 0, 31).astype(np.int32)
    right = np.clip(32 - (width & 31), 0, 31).astype(np.int32)
    found = (x.astype(np.int32) << left) >> right
    return np.where((width & 31) == 0, 0, found)


def _permute_bytes(a: Any, b: Any, chosen: Any) -> Any:
    wide = (_u(a).astype(np.uint64) << _32) | _u(b).astype(np.uint64)
    found = np.zeros(np.broadcast_shapes(wide.shape, chosen.shape), np.uint32)
    for byte in range(4):
        which = (chosen >> np.uint32(8 * byte)) & np.uint32(0xFF)
        taken = (wide >> (np.uint64(8) * (which & 7).astype(np.uint64))).astype(np.uint32)
        sign = (
            wide >> (np.uint64(8) * ((which & 3) * 2 + 1).astype(np.uint64) + np.uint64(7))
        ).astype(np.uint32) & np.uint32(1)
        taken = np.where(which >= 13, np.uint32(0xFF), taken & np.uint32(0xFF))
        taken = np.where(which == 12, np.uint32(0), taken)
        taken = np.where((which >= 8) & (which < 12), sign * np.uint32(0xFF), taken)
        found |= taken.astype(np.uint32) << np.uint32(8 * byte)
    return found


def _align(high: Any, low: Any, by: Any, unit: int) -> Any:
    wide = (high.astype(np.uint64) << _32) | low
    shift = (by & (31 if unit == 1 else 3)).astype(np.uint64) * np.uint64(unit)
    return (wide >> shift).astype(np.uint32)


def _leading(x: Any) -> Any:
    found = np.frexp(x.astype(np.float64))[1].astype(np.int64)
    return np.where(x == 0, 0xFFFFFFFF, 32 - found).astype(np.uint32)


def _trailing(x: Any) -> Any:
    lowest = x & (np.uint32(0) - x)
    found = np.frexp(lowest.astype(np.float64))[1].astype(np.int64) - 1
    return np.where(x == 0, 0xFFFFFFFF, found).astype(np.uint32)


def _reversed(x: Any) -> Any:
    raw = np.ascontiguousarray(x)[..., None].view(np.uint8)
    flipped = np.packbits(np.unpackbits(raw, axis=-1, bitorder="little"), axis=-1)
    return np.ascontiguousarray(flipped[..., ::-1]).view(np.uint32)[..., 0]


def _counted(x: Any) -> Any:
    return np.bitwise_count(x).astype(np.uint32)


def _dot(a: Any, b: Any, c: Any, *, signed_a: bool, signed_b: bool) -> Any:
    def parts(x: Any, signed: bool) -> Any:
        raw = np.ascontiguousarray(x)[..., None].view(np.int8 if signed else np.uint8)
        return raw.astype(np.int64)

    total = (parts(a, signed_a) * parts(b, signed_b)).sum(axis=-1) + c.astype(np.int64)
    return (total & 0xFFFFFFFF).astype(np.uint32)


ROWS: dict[str, Row] = {
    "mov_b32": ("b32", "b32", lambda x: x),
    "mov_b16": ("b16", "b16", lambda x: x),
    "mov_b64": ("b64", "b64", lambda x: x),
    "accvgpr_read_b32": ("b32", "b32", lambda x: x),
    "accvgpr_write_b32": ("b32", "b32", lambda x: x),
    "not_b32": ("b32", "b32", np.invert),
    "bfrev_b32": ("b32", "b32", _reversed),
    "cndmask_b32": ("b32", "b32 b32 mask", lambda a, b, chosen: np.where(chosen, b, a)),
    "cndmask_b16": ("b16", "b16 b16 mask", lambda a, b, chosen: np.where(chosen, b, a)),
    "and_b32": ("b32", "b32 b32", np.bitwise_and),
    "or_b32": ("b32", "b32 b32", np.bitwise_or),
    "xor_b32": ("b32", "b32 b32", np.bitwise_xor),
    "xnor_b32": ("b32", "b32 b32", lambda a, b: ~(a ^ b)),
    "and_b16": ("b16", "b16 b16", np.bitwise_and),
    "or_b16": ("b16", "b16 b16", np.bitwise_or),
    "xor_b16": ("b16", "b16 b16", np.bitwise_xor),
    "or3_b32": ("b32", "b32 b32 b32", lambda a, b, c: a | b | c),
    "xor3_b32": ("b32", "b32 b32 b32", lambda a, b, c: a ^ b ^ c),
    "and_or_b32": ("b32", "b32 b32 b32", lambda a, b, c: (a & b) | c),
    "bfi_b32": ("b32", "b32 b32 b32", lambda m, a, b: (m & a) | (~m & b)),
    "bfe_u32": ("u32", "u32 u32 u32", _field),
    "bfe_i32": ("i32", "u32 i32 i32", _signed_field),
    "bfm_b32": (
        "b32",
        "u32 u32",
        lambda w, s: ((np.uint32(1) << (w & 31)) - np.uint32(1)) << (s & 31),
    ),
    "perm_b32": ("b32", "b32 b32 b32", _permute_bytes),
    "alignbit_b32": ("b32", "u32 u32 u32", lambda a, b, c: _align(a, b, c, 1)),
    "alignbyte_b32": ("b32", "u32 u32 u32", lambda a, b, c: _align(a, b, c, 8)),
    "bcnt_u32_b32": ("u32", "u32 u32", lambda a, b: _counted(a) + b),
    "ffbh_u32": ("u32", "u32", _leading),
    "ffbl_b32": ("u32", "u32", _trailing),
    # Integers
    "add_u32": ("u32", "u32 u32", lambda a, b: a + b),
    "sub_u32": ("u32", "u32 u32", lambda a, b: a - b),
    "subrev_u32": ("u32", "u32 u32", lambda a, b: b - a),
    "add_i32": ("u32", "u32 u32", lambda a, b: a + b),
    "sub_i32": ("u32", "u32 u32", lambda a, b: a - b),
    "add_u16": ("u16", "u16 u16", lambda a, b: a + b),
    "sub_u16": ("u16", "u16 u16", lambda a, b: a - b),
    "subrev_u16": ("u16", "u16 u16", lambda a, b: b - a),
    "mul_lo_u16": ("u16", "u16 u16", lambda a, b: a * b),
    "mad_u16": ("u16", "u16 u16 u16", lambda a, b, c: a * b + c),
    "mul_lo_u32": ("u32", "u32 u32", lambda a, b: a * b),
    "mul_lo_i32": ("u32", "u32 u32", lambda a, b: a * b),
    "mul_hi_u32": ("u32", "u32 u32", _high),
    "mul_hi_i32": ("u32", "i32 i32", _high),
    "mul_u32_u24": ("u32", "u24 u24", lambda a, b: a * b),
    "mul_i32_i24": ("i32", "i24 i24", lambda a, b: a * b),
    "mul_hi_u32_u24": ("u32", "u24 u24", _high),
    "mad_u32_u24": ("u32", "u24 u24 u32", lambda a, b, c: a * b + c),
    "mad_i32_i24": ("i32", "i24 i24 i32", lambda a, b, c: a * b + c),
    "mad_u32_u16": ("u32", "u16 u16 u32", lambda a, b, c: _u(a) * _u(b) + c),
    "add3_u32": ("u32", "u32 u32 u32", lambda a, b, c: a + b + c),
    "xad_u32": ("u32", "u32 u32 u32", lambda a, b, c: (a ^ b) + c),
    "lshl_add_u32": ("u32", "u32 u32 u32", lambda a, b, c: (a << (b & 31)) + c),
    "add_lshl_u32": ("u32", "u32 u32 u32", lambda a, b, c: (a + b) << (c & 31)),
    "lshl_or_b32": ("u32", "u32 u32 u32", lambda a, b, c: (a << (b & 31)) | c),
    "lshl_add_u64": ("u64", "u64 u32 u64", lambda a, b, c: (a << (b & 7).astype(np.uint64)) + c),
    "add_u64": ("u64", "u64 u64", lambda a, b: a + b),
    "lshlrev_b32": ("b32", "u32 u32", _shift(np.left_shift, 32)),
    "lshrrev_b32": ("b32", "u32 u32", _shift(np.right_shift, 32)),
    "ashrrev_i32": ("i32", "u32 i32", _shift(np.right_shift, 32)),
    "lshlrev_b16": ("b16", "u16 u16", _shift(np.left_shift, 16)),
    "lshrrev_b16": ("b16", "u16 u16", _shift(np.right_shift, 16)),
    "ashrrev_i16": ("i16", "u16 i16", _shift(np.right_shift, 16)),
    "lshlrev_b64": ("b64", "u32 u64", _shift(np.left_shift, 64)),
    "lshrrev_b64": ("b64", "u32 u64", _shift(np.right_shift, 64)),
    "ashrrev_i64": ("i64", "u32 i64", _shift(np.right_shift, 64)),
    **{f"min_{k}": (k, f"{k} {k}", np.minimum) for k in ("u32", "i32", "u16", "i16")},
    **{f"max_{k}": (k, f"{k} {k}", np.maximum) for k in ("u32", "i32", "u16", "i16")},
    **{
        f"min3_{k}": (k, f"{k} {k} {k}", lambda a, b, c: np.minimum(np.minimum(a, b), c))
        for k in ("u32", "i32", "u16", "i16")
    },
    **{
        f"max3_{k}": (k, f"{k} {k} {k}", lambda a, b, c: np.maximum(np.maximum(a, b), c))
        for k in ("u32", "i32", "u16", "i16")
    },
    **{f"med3_{k}": (k, f"{k} {k} {k}", m.median) for k in ("u32", "i32", "u16", "i16")},
    "maxmin_i32": ("i32", "i32 i32 i32", lambda a, b, c: np.minimum(np.maximum(a, b), c)),
    "minmax_i32": ("i32", "i32 i32 i32", lambda a, b, c: np.maximum(np.minimum(a, b), c)),
    "dot4_i32_i8": (
        "u32",
        "u32 u32 u32",
        lambda a, b, c: _dot(a, b, c, signed_a=True, signed_b=True),
    ),
    "dot4_u32_u8": (
        "u32",
        "u32 u32 u32",
        lambda a, b, c: _dot(a, b, c, signed_a=False, signed_b=False),
    ),
    # Conversions
    "cvt_f32_i32": ("f32", "i32", lambda x: x.astype(np.float32)),
    "cvt_f32_u32": ("f32", "u32", lambda x: x.astype(np.float32)),
    "cvt_f32_f16": ("f32", "f16", lambda x: x),
    "cvt_f32_bf16": ("f32", "bf16", lambda x: x),
    "cvt_f16_f32": ("f16", "f32", lambda x: x),
    "cvt_f16_u16": ("f16", "u16", lambda x: x.astype(np.float32)),
    "cvt_f16_i16": ("f16", "i16", lambda x: x.astype(np.float32)),
    "cvt_i32_f32": ("i32", "f32", m.to_integer("i32")),
    "cvt_u32_f32": ("u32", "f32", m.to_integer("u32")),
    "cvt_i16_f16": ("i16", "f16", lambda x: np.clip(np.trunc(x), -32768, 32767)),
    "cvt_u16_f16": ("u16", "f16", lambda x: np.clip(np.trunc(x), 0, 65535)),
    "cvt_f64_f32": ("f64", "f32", lambda x: x.astype(np.float64)),
    "cvt_f64_i32": ("f64", "i32", lambda x: x.astype(np.float64)),
    "cvt_f64_u32": ("f64", "u32", lambda x: x.astype(np.float64)),
    "cvt_f32_f64": ("f32", "f64", lambda x: x.astype(np.float32)),
    "cvt_i32_f64": ("i32", "f64", m.to_integer("i32")),
    "cvt_u32_f64": ("u32", "f64", m.to_integer("u32")),
    **{
        f"cvt_f32_ubyte{n}": (
            "f32",
            "u32",
            lambda x, n=n: ((x >> np.uint32(8 * n)) & np.uint32(255)).astype(np.float32),
        )
        for n in range(4)
    },
    "cvt_i32_i16": ("i32", "i16", lambda x: x.astype(np.int32)),
    "cvt_u32_u16": ("u32", "u16", _u),
    # Floating point, in each of the sizes
    **{
        f"{n}_{k}": (k, f"{k} {k}", f)
        for k in ("f32", "f16", "f64")
        for n, f in (
            ("add", lambda a, b: a + b),
            ("sub", lambda a, b: a - b),
            ("subrev", lambda a, b: b - a),
            ("mul", lambda a, b: a * b),
            ("min", m.minimum),
            ("max", m.maximum),
        )
    },
    **{
        f"{n}_{k}": (k, f"{k} {k} {k}", f)
        for k in ("f32", "f16", "f64")
        for n, f in (
            ("fma", m.fma),
            ("fmaak", m.fma),
            ("fmamk", m.fma),
            ("mad", m.fma),
            ("min3", lambda a, b, c: m.minimum(m.minimum(a, b), c)),
            ("max3", lambda a, b, c: m.maximum(m.maximum(a, b), c)),
            ("med3", m.median),
            ("maxmin", lambda a, b, c: m.minimum(m.maximum(a, b), c)),
            ("minmax", lambda a, b, c: m.maximum(m.minimum(a, b), c)),
        )
    },
    **{
        f"{n}_{k}": (k, k, f)
        for k in ("f32", "f16", "f64")
        for n, f in (
            ("floor", np.floor),
            ("ceil", np.ceil),
            ("trunc", np.trunc),
            ("rndne", np.rint),
            ("fract", m.fraction),
            ("frexp_mant", lambda x: np.frexp(x)[0]),
        )
    },
    **{
        f"{n}_{k}": (k, k, f)
        for k in ("f32", "f16")
        for n, f in (
            ("exp", m.exp2),
            ("log", m.log2),
            ("rcp", m.reciprocal),
            ("rcp_iflag", m.reciprocal),
            ("rsq", m.rsqrt),
            ("sqrt", m.square_root),
            ("sin", m.sine),
            ("cos", m.cosine),
        )
    },
    "rcp_f64": ("f64", "f64", lambda x: 1.0 / x),
    "rsq_f64": ("f64", "f64", lambda x: 1.0 / np.sqrt(x)),
    "mul_legacy_f32": ("f32", "f32 f32", lambda a, b: np.where((a == 0) | (b == 0), 0, a * b)),
    "ldexp_f32": ("f32", "f32 i32", m.ldexp),
    "ldexp_f16": ("f16", "f16 i16", m.ldexp),
    "ldexp_f64": ("f64", "f64 i32", m.ldexp),
    "frexp_exp_i32_f32": ("i32", "f32", m.frexp_exponent),
    "frexp_exp_i32_f64": ("i32", "f64", m.frexp_exponent),
    "div_fixup_f32": ("f32", "f32 f32 f32", m.div_fixup),
    "div_fixup_f16": ("f16", "f16 f16 f16", m.div_fixup),
    "pack_b32_f16": ("b32", "b16 b16", lambda a, b: _u(a) | (_u(b) << np.uint32(16))),
    "mbcnt_lo_u32_b32": ("u32", "u32 u32", None),  # type: ignore[dict-item]
}
_SAME = {
    "add_nc_u32": "add_u32",
    "sub_nc_u32": "sub_u32",
    "subrev_nc_u32": "subrev_u32",
    "add_nc_i32": "add_i32",
    "sub_nc_i32": "sub_i32",
    "add_nc_u16": "add_u16",
    "sub_nc_u16": "sub_u16",
    "mad_legacy_u16": "mad_u16",
    "clz_i32_u32": "ffbh_u32",
    "ctz_i32_b32": "ffbl_b32",
    "lshlrev_b64": "lshlrev_b64",
    "max_num_f64": "max_f64",
    **{
        f"{n}_num_{k}": f"{n}_{k}"
        for k in ("f32", "f16")
        for n in ("min", "max", "min3", "max3", "med3", "minmax", "maxmin")
    },
    "mul_dx9_zero_f32": "mul_legacy_f32",
    "cvt_f32_f16": "cvt_f32_f16",
    "mul_legacy_f16": "mul_f16",
    "fma_legacy_f32": "fma_f32",
    "dot4_i32_iu8": "dot4_i32_i8",
}
del ROWS["mbcnt_lo_u32_b32"]


def plain_name(name: str) -> str:
    """Return the name of an instruction's row: without `v_`, generations' own names made one."""
    plain = name.removeprefix("v_")
    return _SAME.get(plain, plain)


def vector_step(instruction: Instruction) -> Step | None:
    """Return what carries out an instruction of the table, None where it is not in it."""
    name = plain_name(instruction.name)
    if name in ("fmac_f32", "fmac_f16", "fmac_f64", "dot4c_i32_i8"):
        # What is added to is the destination.
        name = name.replace("fmac", "fma").replace("dot4c", "dot4")
        operands = (*instruction.operands, instruction.operands[0])
    else:
        operands = instruction.operands
    if name not in ROWS:
        return None
    kind, sources, function = ROWS[name]
    kinds = sources.split()
    given = operands[1:]
    if name.startswith("cndmask") and len(given) == 2:
        given = (*given, Operand("s", VCC, 2))
    if len(given) != len(kinds):
        raise NotInterpretedError(f"`{instruction.text}` has other operands than are known")
    halves = _halves(instruction, len(kinds) + 1)
    modifiers = dict(instruction.modifiers)
    reads = [
        reader(operand, k, halves[at], modifiers, at)
        for at, (operand, k) in enumerate(zip(given, kinds, strict=True))
    ]
    write = finished(instruction, writer(operands[0], kind, halves[-1]), kind)
    return lambda w: write(w, function(*[read(w) for read in reads]))


def _halves(instruction: Instruction, count: int) -> list[int]:
    """Return which half of its register each source, and the result, is."""
    listed = instruction.modifiers.get("op_sel", "")
    found = [int(n) for n in listed.strip("[]").split(",")] if listed else []
    return (
        (found + [0] * count)[:count]
        if len(found) >= count
        else ([*found, *[0] * (count - len(found))])
    )
