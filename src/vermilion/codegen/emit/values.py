"""SSA values and constants, as they are written in LLVM IR."""

from __future__ import annotations

import struct
from dataclasses import dataclass


@dataclass(frozen=True)
class Value:
    """An SSA value or a constant: its LLVM type and how it is written."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


Index = Value | int
"""A number of 64 bits: a value, a constant, or (as an int by its type) a size that a run has."""


def constant(type_: str, number: int) -> Value:
    """Return an integer constant."""
    return Value(type_, str(number))


def float_constant(number: float) -> Value:
    """Return a float32 constant, rounded to float32 and written exactly."""
    rounded = struct.unpack("<f", struct.pack("<f", number))[0]
    bits = struct.unpack("<Q", struct.pack("<d", rounded))[0]
    return Value("float", f"0x{bits:016X}")


def splat_constant(number: float, lanes: int) -> Value:
    """Return a float32 vector constant with the same number in every lane."""
    one = float_constant(number)
    return Value(f"<{lanes} x float>", "<" + ", ".join([str(one)] * lanes) + ">")


def splat_integer(number: int, lanes: int, element: str = "i32") -> Value:
    """Return an integer vector constant with the same number in every lane."""
    return Value(f"<{lanes} x {element}>", "<" + ", ".join([f"{element} {number}"] * lanes) + ">")
