from __future__ import annotations

import pytest

from vermilion.amdgpu.assembly import parse_instruction, read_assembly
from vermilion.amdgpu.operands import Operand, bits, parse_operand, split_operands
from vermilion.errors import UnsupportedError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v7", Operand("v", 7)),
        ("v[4:7]", Operand("v", 4, 4)),
        ("a[0:3]", Operand("a", 0, 4)),
        ("-v3", Operand("v", 3, negative=True)),
        ("-|s3|", Operand("s", 3, negative=True, absolute=True)),
        ("v2.h", Operand("v", 2, half=1)),
        ("vcc_lo", Operand("s", 106)),
        ("exec", Operand("s", 126, 2)),
        ("ttmp9", Operand("s", 117)),
        ("0x10", Operand("const", value=16, text="0x10")),
        ("-4.0", Operand("const", real=-4.0, text="-4.0")),
        ("off", Operand("off", 125)),
    ],
)
def test_operands(text: str, expected: Operand) -> None:
    assert parse_operand(text) == expected


def test_bits_of_constants() -> None:
    assert bits(parse_operand("1.0"), "f32") == 0x3F800000
    assert bits(parse_operand("1.0"), "f16") == 0x3C00
    assert bits(parse_operand("1.0"), "f64") == 0x3FF0 << 48
    assert bits(parse_operand("-1"), "b32") & 0xFFFFFFFF == 0xFFFFFFFF


def test_operands_and_modifiers_are_told_apart() -> None:
    assert split_operands("v[0:1], op(a, b), s2") == ["v[0:1]", "op(a, b)", "s2"]
    load = parse_instruction("\tbuffer_load_b128 v[1:4], v1, s[12:15], 0 offen offset:16")
    assert (load.name, len(load.operands)) == ("buffer_load_b128", 4)
    assert load.modifiers == {"offen": "", "offset": "16"}
    dual = parse_instruction("\tv_dual_mov_b32 v1, s0 :: v_dual_lshlrev_b32 v2, 2, v0")
    assert dual.second is not None
    assert (dual.name, dual.second.name) == ("v_mov_b32", "v_lshlrev_b32")


def test_other_texts_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="no target"):
        read_assembly("\ts_endpgm")
    with pytest.raises(UnsupportedError, match="leads nowhere"):
        parse_instruction("\ts_branch .LBB0_7")
