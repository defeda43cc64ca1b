"""Faults of programs for GPUs: one instruction, or one operator of the module, changed.

`mutate_gpu.py` plants them. A pattern stands for a line of assembly, without its comment, or for a
piece of the module's text; what is made of it has to assemble, or to compile, again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

Change = Callable[[re.Match[str]], str | None]


@dataclass(frozen=True)
class Rule:
    """A kind of fault; a `change` of None says that this place is not one for it.

    `is_order`: it changes when things happen, and no number that is computed one step after the
    other. `of_several`: it counts where a workgroup has several waves.
    """

    kind: str
    name: str
    pattern: re.Pattern[str]
    change: Change
    is_order: bool = False
    of_several: bool = False


def _rule(kind: str, name: str, pattern: str, change: Change | str, **more: bool) -> Rule:
    made = change if callable(change) else lambda match: match.expand(change)
    return Rule(kind, name, re.compile(pattern), made, **more)


def _number(text: str) -> int:
    return int(text, 0)


def _more(by: int) -> Change:
    """Return a change of the number in the second group, between the first and the third."""

    def change(match: re.Match[str]) -> str | None:
        number = _number(match[2]) + by
        return f"{match[1]}{number}{match[3] or ''}" if number >= 0 else None

    return change


def _further(by: int) -> Change:
    return lambda match: f"{match[1]} offset:{_number(match[2] or '0') + by}"


def _swapped(match: re.Match[str]) -> str | None:
    return f"{match[1]}{match[3]}, {match[2]}{match[4]}" if match[2] != match[3] else None


def _doubled(match: re.Match[str]) -> str | None:
    """Return a floating-point literal with an exponent one larger."""
    bits = int(match[2], 16)
    exponent = bits >> 23 & 0xFF
    return f"{match[1]}{bits + (1 << 23):#x}{match[3]}" if 0x60 < exponent < 0x90 else None


_CONSTANTS = {"0.5": "1.0", "1.0": "2.0", "2.0": "4.0", "-1.0": "-2.0", "-0.5": "-1.0"}
_NARROWER = {"b64": "b32", "dwordx2": "dword", "b128": "b64", "dwordx4": "dwordx2"}
_TURNED = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt"}
_SUM = r"v_(?:dual_)?(?:pk_)?(?:fmac|fma|fma_mix|dot2\w*|wmma|mfma)_\w+"


def _narrower(match: re.Match[str]) -> str:
    first, last = int(match[3]), int(match[4])
    middle = first + (last - first + 1) // 2 - 1
    register = f"v{first}" if middle == first else f"v[{first}:{middle}]"
    return f"{match[1]}{_NARROWER[match[2]]} {register}{match[5]}"


def _other_lane(match: re.Match[str]) -> str | None:
    text = match[0]
    for old, new in (
        ("quad_perm:[1,0,3,2]", "quad_perm:[2,3,0,1]"),
        ("quad_perm:[2,3,0,1]", "quad_perm:[1,0,3,2]"),
        ("row_half_mirror", "row_mirror"), ("row_mirror", "row_half_mirror"),
        ("row_ror:8", "row_ror:4"), ("row_ror:4", "row_ror:8"), ("row_xmask:1", "row_xmask:2"),
        ("row_xmask:2", "row_xmask:4"), ("row_xmask:4", "row_xmask:8"),
        ("row_xmask:8", "row_xmask:1"), ("row_shr:1", "row_shr:2"), ("row_shr:2", "row_shr:3"),
        ("row_bcast:15", "row_bcast:31"),
        ("SWAP,16", "SWAP,8"), ("SWAP,1", "SWAP,2"), ("SWAP,2", "SWAP,4"), ("SWAP,4", "SWAP,8"),
        ("SWAP,8", "SWAP,16"), ("row_newbcast:15", "row_newbcast:14"),
    ):  # fmt: skip
        if old in text:
            return text.replace(old, new)
    return None


RULES: tuple[Rule, ...] = (
    _rule("slice", "a load of the next word",
          r"(\t(?:buffer|global)_load_\S+ [^o]*(?: offen)?)(?: offset:(\d+))?", _further(4)),
    _rule("slice", "a store to the next word",
          r"(\t(?:buffer|global)_store_\S+ [^o]*(?: offen)?)(?: offset:(\d+))?", _further(4)),
    _rule("width", "half of a load",
          r"(\t(?:buffer|global|ds)_(?:load|read)_)(b64|b128|dwordx2|dwordx4) v\[(\d+):(\d+)\](.*)",
          _narrower),
    _rule("stride", "an index times one more",
          r"(\tv_(?:mul|mad)_[ui]32_[ui]24\S* v\d+, (?:[vs]\d+, )?)(0x[0-9a-f]+|\d+)(, .*)?",
          _more(1)),
    _rule("stride", "an index shifted one further",
          r"(\tv_lshlrev_b32\S* v\d+, )(\d+)(, .*)", _more(1)),
    _rule("stride", "an index shifted one less, and added",
          r"(\tv_lshl_(?:add|or)_[ub]32 v\d+, [vs]\d+, )(\d+)(, .*)", _more(-1)),
    _rule("stride", "a workgroup's place shifted one further",
          r"(\ts_lshl_b32 s\d+, s\d+, )(\d+)()", _more(1)),
    _rule("tap", "a term of a sum left out", rf"\t{_SUM} (?!.*::).*", "\ts_nop 0"),
    _rule("tap", "a term of a sum from the next register",
          r"(\tv_(?:pk_)?(?:fmac|fma)_f\w+ v\S+, )v(\d+)(, .*)",
          lambda m: f"{m[1]}v{int(m[2]) + 1}{m[3]}"),
    _rule("operands", "factors of a matrix product exchanged",
          r"(\tv_(?:wmma|mfma)_\S+ \S+, )(v\S+), (v\S+)(, .*)", _swapped),
    _rule("operands", "a difference the other way round",
          r"(\tv_(?:pk_)?)sub_((?:f|nc_|u|co_)\S+ .*)", r"\1subrev_\2"),
    _rule("operands", "a choice the other way round",
          r"(\tv_cndmask_b\w+ v\d+, )(v\d+), (v\d+)(.*)", _swapped),
    _rule("scale", "a literal twice as large", r"(\tv_\w+_f32\S* .*)(0x[0-9a-f]{8})(.*)", _doubled),
    _rule("scale", "a constant twice as large",
          r"(\tv_(?:mul|fma|fmac|add|pk_mul|mul_legacy)_f\S* .*, |\tv_ldexp_f32 .*, )"
          r"(-?0\.5|-?1\.0|2\.0)(.*)",
          lambda m: f"{m[1]}{_CONSTANTS[m[2]]}{m[3]}" if m[2] in _CONSTANTS else None),
    _rule("sign", "a difference for a sum", r"(\tv_(?:pk_)?)add(_f\w+ .*)", r"\1sub\2"),
    _rule("sign", "the smaller for the larger",
          r"(\tv_(?:pk_)?)max(_(?:num_)?f\w+ .*)", r"\1min\2"),
    _rule("bound", "a loop or a border one earlier",
          r"(\ts_cmpk?_\w+ s\d+, )(0x[0-9a-f]+|\d+)()", _more(-1)),
    _rule("bound", "a border of lanes one off",
          r"(\tv_cmpx?_\w+_[ui]\d+\S* (?:\S+, )?)(0x[0-9a-f]+|\d+)(, v\d+)", _more(1)),
    _rule("bound", "below for below or equal",
          r"(\tv_cmpx?_)(lt|le|gt|ge)(_[uif]\d+\S* .*)",
          lambda m: f"{m[1]}{_TURNED[m[2]]}{m[3]}"),
    _rule("lane", "another lane's value",
          r"\t(?:v_\w+.* (?:quad_perm|row_\w+)|ds_swizzle_b32 .*swizzle).*", _other_lane),
    _rule("lane", "a thread's number with a bit less",
          r"(\tv_and_b32\S* v\d+, )(3|7|15|31|63|0x[137f]ff?)(, v\d+)",
          lambda m: f"{m[1]}{_number(m[2]) >> 1:#x}{m[3]}"),
    _rule("lane", "a thread's number from the next bit",
          r"(\tv_bfe_u32 v\d+, v\d+, )(\d+)(, \d+)", _more(1)),
    _rule("half", "the lower half of a register for the upper",
          r"(\t\S+)_d16_hi(\S* .*)", r"\1_d16\2"),
    _rule("half", "the other half of a register",
          r"(\tv_\S*f16\S* .*\.)([lh])(, .*|$)", lambda m: f"{m[1]}{'lh'[m[2] == 'l']}{m[3]}"),
    _rule("mask", "lanes that are off take part",
          r"\ts_and_saveexec_b(32|64) (s\S+), \S+",
          lambda m: f"\ts_mov_b{m[1]} {m[2]}, exec{'_lo' if m[1] == '32' else ''}"),
    _rule("store", "a store left out", r"\t(?:buffer|global)_store_.*", "\ts_nop 0"),
    _rule("shared", "a store to the next word of shared memory",
          r"(\tds_(?:store|write)_b\d+ [^o]*)(?: offset:(\d+))?", _further(4)),
    _rule("shared", "a load from the next word of shared memory",
          r"(\tds_(?:load|read)_[bu]\d+ [^o]*)(?: offset:(\d+))?", _further(4)),
    _rule("shared", "the second of two places one further",
          r"(\tds_(?:read2|write2|load_2addr|store_2addr)_.* offset1:)(\d+)()", _more(1)),
    _rule("barrier", "a barrier left out", r"\ts_barrier(?:_wait .*)?", "\ts_nop 0",
          is_order=True, of_several=True),
    _rule("barrier", "a barrier's signal left out", r"\ts_barrier_signal .*", "\ts_nop 0",
          is_order=True, of_several=True),
    _rule("wait", "a wait left out", r"\ts_wait(?:cnt|_\w+cnt).*", "\ts_nop 0", is_order=True),
    _rule("wait", "a wait for one fewer",
          r"(\ts_wait(?:cnt vmcnt\(|_loadcnt ))(\d+|0x[0-9a-f]+)(\)?)", _more(1), is_order=True),
)  # fmt: skip


# In the text that IREE's importer writes. The CPU build is made of it as well, and stays right.
MODULE_RULES: tuple[Rule, ...] = (
    _rule("slice", "a window one pixel off",
          r"torch\.onnx\.pads = \[1 : si64(?:, 1 : si64){3}\]",
          "torch.onnx.pads = [0 : si64, 0 : si64, 2 : si64, 2 : si64]"),
    _rule("sign", "Neg for Relu", r'"onnx\.Relu"', '"onnx.Neg"'),
    _rule("sign", "Sub for Add", r'"onnx\.Add"', '"onnx.Sub"'),
    _rule("scale", "Div for Mul", r'"onnx\.Mul"', '"onnx.Div"'),
    _rule("bound", "Less for LessOrEqual", r'"onnx\.LessOrEqual"', '"onnx.Less"'),
    _rule("tap", "the mean for the largest",
          r'"onnx\.MaxPool"', '"onnx.AveragePool"'),
    _rule("sign", "Tanh for Sigmoid", r'"onnx\.Sigmoid"', '"onnx.Tanh"'),
    _rule("sign", "Abs for Neg", r'"onnx\.Neg"', '"onnx.Abs"'),
    _rule("operands", "Erf left out", r'"onnx\.Erf"', '"onnx.Identity"'),
    _rule("slice", "an axis of a Softmax",
          r'("onnx\.Softmax"\(%\w+\) \{torch\.onnx\.axis = )-1', r"\1-2"),
    _rule("scale", "an epsilon of a hundredth",
          r"(torch\.onnx\.epsilon = )[\d.]+(?:[eE]-\d+)", r"\g<1>1.0e-2"),
    _rule("scale", "Identity for Reciprocal", r'"onnx\.Reciprocal"', '"onnx.Identity"'),
)  # fmt: skip
