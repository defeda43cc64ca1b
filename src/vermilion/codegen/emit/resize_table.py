"""The tables of `ResizeSpec` for sides that are known when the program runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.values import Value, float_constant
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa

# How a coordinate that lies between two pixels becomes one: ONNX's `nearest_mode`.
NEAREST = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")

# A coordinate of 13.5 may come out as 13.499999 in float32: what is that near to a half is one, as
# ONNX Runtime 1.32 has it over 1,200 pairs of sizes, and as it is without roundings.
HALF = 0.5 + 1e-6


@dataclass(frozen=True)
class ResizeTableSpec:
    """Byte offsets (int64) and weights (float32) of the pixels that make each pixel of one axis.

    `mode` is `linear`, of two pixels each, or one of `NEAREST`, of one. `scale` is that of the
    model, None where it is the ratio of the two sizes. `stride_bytes` lie between two pixels.
    Coordinates are computed in float32, as `lower/resize.py` and ONNX Runtime do.
    """

    mode: str
    transform: str
    scale: float | None
    source: int
    target: int
    stride_bytes: int

    family = "resize_table"

    @property
    def taps(self) -> int:
        """Pixels that make one."""
        return 2 if self.mode == "linear" else 1

    @property
    def units(self) -> int:
        """One unit: a side has some hundred pixels."""
        return 1

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, (offsets, weights), units = begin_kernel(module, name, 2)
        with f.loop(*units), f.loop(0, self.target) as pixel:
            x = f.convert("fpext", self._coordinate(f, pixel), "double")
            for tap, (at, share) in enumerate(self._entries(f, x)):
                entry = f.add(f.multiply(pixel, self.taps), tap)
                place = self._inside(f, f.convert("fptosi", at, "i64"))
                f.store(
                    f.multiply(place, self.stride_bytes), offsets, f.multiply(entry, 8), align=8
                )
                f.store(
                    f.convert("fptrunc", share, "float"), weights, f.multiply(entry, 4), align=4
                )
        f.finish()

    def _coordinate(self, f: Function, pixel: Value) -> Value:
        """Return where a pixel lies in the source. Formulas: ONNX Resize-19."""
        x = f.convert("sitofp", pixel, "float")
        if self.transform == "align_corners":
            return self._unless_single(f, f.binary("fdiv", f.binary("fmul", x, self._float(
                f, self.source - 1)), self._float(f, self.target - 1)))  # fmt: skip
        if self.transform == "asymmetric":
            return f.binary("fdiv", x, self._scale(f))
        half = float_constant(0.5)
        shifted = f.binary("fdiv", f.binary("fadd", x, half), self._scale(f))
        middle = f.binary("fsub", shifted, half)
        is_half_pixel = self.transform == "half_pixel"
        return middle if is_half_pixel else self._unless_single(f, middle)

    def _scale(self, f: Function) -> Value:
        if self.scale is not None:
            return float_constant(float(np.float32(self.scale)))
        return f.binary("fdiv", self._float(f, self.target), self._float(f, self.source))

    def _float(self, f: Function, size: int) -> Value:
        return f.convert("sitofp", f.index(size), "float")

    def _unless_single(self, f: Function, x: Value) -> Value:
        """Return a coordinate, 0 where there is one pixel alone."""
        is_single = f.compare("eq", f.index(self.target), f.index(1))
        return f.select(is_single, float_constant(0.0), x)

    def _entries(self, f: Function, x: Value) -> Iterator[tuple[Value, Value]]:
        one = Value("double", "1.0")
        if self.mode == "linear":
            base = self._rounded(f, "floor", x)
            share = f.binary("fsub", x, base)
            yield base, f.binary("fsub", one, share)
            yield f.binary("fadd", base, one), share
            return
        half = Value("double", repr(HALF))
        match self.mode:
            case "floor" | "ceil":
                at = self._rounded(f, self.mode, x)
            case "round_prefer_ceil":
                at = self._rounded(f, "floor", f.binary("fadd", x, half))
            case _:
                at = self._rounded(f, "ceil", f.binary("fsub", x, half))
        yield at, one

    def _rounded(self, f: Function, way: str, x: Value) -> Value:
        return f.intrinsic(f"llvm.{way}.f64", "double", [x])

    def _inside(self, f: Function, at: Value) -> Value:
        """Return the nearest place that the source has."""
        is_before = f.compare("slt", at, f.index(0))
        return f.minimum(f.select(is_before, f.index(0), at), f.index(self.source - 1))
