"""Large kernels of depthwise convolutions: loops over lines and over parts of a row of taps.

Written out, 31×31 taps times 16 pixels would be code that no cache holds. Lines and parts that lie
in the border for all pixels of a patch are left out, where the spec has windows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Slot
from vermilion.codegen.emit.values import Index, Value
from vermilion.codegen.tensor import STORAGE_BYTES, Storage

# Taps of a row that are written out.
_PART = 8
# A row of so many taps is written out as a whole.
_SHORT = 12

Live = tuple[Value, Value] | None  # the first line or tap, and how many
Load = Callable[[Value, Value | None], Value]  # one vector of input as floats, by place and mask


@dataclass(frozen=True)
class Taps:
    """A kernel and how far apart, in elements, pixels and taps lie in the input."""

    storage: Storage
    taps_y: int
    taps_x: int
    in_column: int
    in_tap_y: int
    in_tap_x: int


class TapLoops:
    """The sums of one patch over all taps; `totals` has them by row and pixel."""

    def __init__(
        self, spec: Taps, arithmetic: Arithmetic, totals: Sequence[Sequence[Slot]],
        load: Load, mask: Value | None,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.arithmetic = arithmetic
        self.f: Function = arithmetic.f
        self.totals = totals
        self.load = load
        self.mask = mask
        self.tap_bytes = 4 * arithmetic.lanes

    def write(self, lines: Live, taps: Live) -> None:
        """Add all products. A line of input is read once for the two rows that it touches."""
        s, f = self.spec, self.f
        rows = range(len(self.totals))
        end = s.taps_y + len(rows) - 1
        first, stop = (0, end) if lines is None else (lines[0], f.add(*lines))
        if len(rows) == 1:
            with f.loop(first, stop) as line:
                self._line(line, rows, taps)
            return
        with ExitStack() as block:  # the first line is the first row's alone, the last the second's
            if lines is not None:
                block.enter_context(f.when(f.compare("eq", f.index(first), f.index(0))))
            self._line(0, (0,), taps)
        start: Index = 1
        if lines is not None:
            start = f.add(f.index(first), f.convert("zext", self._is_zero(first), "i64"))
        with f.loop(start, f.minimum(stop, s.taps_y)) as line:
            self._line(line, rows, taps)
        with ExitStack() as block:
            if lines is not None:
                block.enter_context(f.when(f.compare("sgt", f.index(stop), f.index(s.taps_y))))
            self._line(s.taps_y, (1,), taps)

    def _is_zero(self, number: Index) -> Value:
        return self.f.compare("eq", self.f.index(number), self.f.index(0))

    def _line(self, line: Index, rows: Sequence[int], taps: Live) -> None:
        """Add the products of one line of input: row `r` has it at tap `line - r`."""
        s, f = self.spec, self.f
        source = f.at(f.arguments[0], f.multiply(line, s.in_tap_y * STORAGE_BYTES[s.storage]))
        row_bytes = s.taps_x * self.tap_bytes
        weights = {
            r: f.at(f.arguments[1], f.multiply(f.subtract(line, r), row_bytes)) for r in rows
        }
        part = s.taps_x if s.taps_x <= _SHORT else _PART
        whole, rest = divmod(s.taps_x, part)
        first: Index = 0
        stop: Index = whole
        if taps is not None:
            end = f.add(*taps)
            first = f.divide(taps[0], part)
            stop = f.minimum(f.divide(f.add(end, part - 1), part), whole)
        with f.loop(first, stop) as number:
            self._part(source, weights, f.multiply(number, part), part)
        if rest:
            with ExitStack() as block:
                if taps is not None:
                    is_live = f.compare("sgt", end, f.index(whole * part))
                    block.enter_context(f.when(is_live))
                self._part(source, weights, f.index(whole * part), rest)

    def _part(self, source: Value, weights: dict[int, Value], first: Value, count: int) -> None:
        s, f, math = self.spec, self.f, self.arithmetic.math
        size = STORAGE_BYTES[s.storage]
        source = f.at(source, f.multiply(first, s.in_tap_x * size))
        offset = f.multiply(first, self.tap_bytes)
        values: dict[str, Value] = {}
        for tap in range(count):
            for r, base in weights.items():
                place = f.at(f.at(base, offset), tap * self.tap_bytes)
                factor = self.arithmetic.load("f32", place)
                for pixel, slot in enumerate(self.totals[r]):
                    at = (tap * s.in_tap_x + pixel * s.in_column) * size
                    if str(at) not in values:
                        values[str(at)] = self.load(f.at(source, at), self.mask)
                    slot.set(math.fma(values[str(at)], factor, slot.get()))
