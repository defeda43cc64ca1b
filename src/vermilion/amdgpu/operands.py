"""Operands of AMDGPU assembly, as LLVM writes them, and where they lie in the state of a wave.

Source: LLVM, "AMDGPU operand syntax" and "AMDGPU modifiers"; numbers of scalar registers from the
tables of scalar operands in AMD's instruction set guides (their text form is the same on all).
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Literal

from vermilion.errors import UnsupportedError

Kind = Literal["v", "a", "s", "const", "off", "null", "text"]

VCC, TTMP, M0, NULL, EXEC, SCALARS = 106, 108, 124, 125, 126, 128
_NAMED = {
    "vcc": (VCC, 2),
    "vcc_lo": (VCC, 1),
    "vcc_hi": (VCC + 1, 1),
    "exec": (EXEC, 2),
    "exec_lo": (EXEC, 1),
    "exec_hi": (EXEC + 1, 1),
    "m0": (M0, 1),
}
_RANGE = re.compile(r"(v|a|s|ttmp)\[(\d+):(\d+)\]")
_ONE = re.compile(r"(v|a|s|ttmp)(\d+)(?:\.([lh]))?")
_NUMBER = re.compile(r"-?(0x[0-9a-fA-F]+|\d+)")
_FLOAT = re.compile(r"-?\d+\.\d+(e[+-]?\d+)?")


class NotInterpretedError(UnsupportedError):
    """An instruction that is not among those that can be executed here."""


@dataclass(frozen=True)
class Operand:
    """A register or several, or a constant.

    `half` is 1 where the text names a register's upper half. `value` is an integer's, `real` a
    floating-point constant's, whose bits depend on who reads it.
    """

    kind: Kind
    index: int = 0
    count: int = 1
    negative: bool = False
    absolute: bool = False
    half: int = 0
    value: int = 0
    real: float | None = None
    text: str = ""
    extended: bool = False  # sext(…)


def parse_operand(text: str) -> Operand:
    """Read one operand, with its sign and magnitude modifiers."""
    text = text.strip()
    negative = absolute = extended = False
    if text.startswith("sext(") and text.endswith(")"):
        text, extended = text[5:-1], True
    if text.startswith("neg(") and text.endswith(")"):
        text, negative = text[4:-1], True
    elif text.startswith("-") and not _is_number(text):
        text, negative = text[1:], True
    if text.startswith("abs(") and text.endswith(")"):
        text, absolute = text[4:-1], True
    elif text.startswith("|") and text.endswith("|"):
        text, absolute = text[1:-1], True
    found = _plain(text)
    return Operand(
        found.kind,
        found.index,
        found.count,
        negative,
        absolute,
        found.half,
        found.value,
        found.real,
        found.text,
        extended,
    )


def bits(operand: Operand, kind: str) -> int:
    """Return the bits of a constant for who reads it as `kind` (`f32`, `f16`, `b64`, …)."""
    if operand.real is None:
        if kind == "f64" and operand.text.startswith("0x"):
            return operand.value << 32  # a literal is the upper half
        return operand.value & 0xFFFFFFFFFFFFFFFF
    if kind == "f64":
        return int(struct.unpack("<Q", struct.pack("<d", operand.real))[0])
    if kind in ("f16", "b16", "u16", "i16"):
        return int(struct.unpack("<H", struct.pack("<e", operand.real))[0])
    return int(struct.unpack("<I", struct.pack("<f", operand.real))[0])


def split_operands(text: str) -> list[str]:
    """Split at the commas that are outside of brackets."""
    found, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "[(") - (letter in "])")
        if letter == "," and depth == 0:
            found.append(text[start:at].strip())
            start = at + 1
    rest = text[start:].strip()
    return [*found, rest] if rest else found


def _is_number(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text) or _FLOAT.fullmatch(text))


def _plain(text: str) -> Operand:
    if text in _NAMED:
        index, count = _NAMED[text]
        return Operand("s", index, count)
    if text in ("off", "null"):
        return Operand("off" if text == "off" else "null", NULL)
    if found := _RANGE.fullmatch(text):
        first, last = int(found[2]), int(found[3])
        return _registers(found[1], first, last - first + 1, "")
    if found := _ONE.fullmatch(text):
        return _registers(found[1], int(found[2]), 1, found[3] or "")
    if _NUMBER.fullmatch(text):
        return Operand("const", value=int(text, 0), text=text)
    if _FLOAT.fullmatch(text):
        return Operand("const", real=float(text), text=text)
    return Operand("text", text=text)


def _registers(kind: str, first: int, count: int, half: str) -> Operand:
    if kind == "ttmp":
        return Operand("s", TTMP + first, count)
    return Operand(kind, first, count, half=int(half == "h"))  # type: ignore[arg-type]
