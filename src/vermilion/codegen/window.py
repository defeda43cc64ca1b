"""The taps of a kernel along one axis of an image, and which of them lie in its border alone.

Source: ONNX Conv-11: output `o` reads at tap `t` the input `o·stride + t·dilation - before`, and
zero where that is outside of the image.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from vermilion.codegen.emit.builder import Function
from vermilion.codegen.emit.values import Index, Value


@dataclass(frozen=True)
class Window:
    """Taps along one axis: `before` is the border at its begin, `size` the image without border."""

    taps: int
    stride: int
    dilation: int
    before: int
    size: int

    def live(self, first: int, outputs: int) -> tuple[int, int]:
        """Return the first tap that some of the outputs from `first` on has in the image, the end.

        Outside of the two, every output reads zeros.
        """
        last = first + outputs - 1
        start = max(0, -((last * self.stride - self.before) // self.dilation))
        behind = self.size - 1 + self.before - first * self.stride
        stop = min(self.taps, max(0, behind // self.dilation + 1))
        return min(start, stop), stop

    def write(self, f: Function, first: Index, outputs: int) -> tuple[Value, Value]:
        """Write `live` for a `first` that only the kernel knows; return the first tap and how many.

        Divides by the dilation alone, of numbers that are not negative.
        """
        zero = f.index(0)
        begin = f.multiply(first, self.stride)
        reach = (outputs - 1) * self.stride
        start = f.subtract(self.before - reach + self.dilation - 1, begin)
        start = f.select(f.compare("sgt", start, zero), start, zero)
        behind = f.subtract(self.size - 1 + self.before + self.dilation, begin)
        behind = f.select(f.compare("sgt", behind, zero), behind, zero)
        stop = f.minimum(f.divide(behind, self.dilation), self.taps)
        start = f.minimum(f.divide(start, self.dilation), stop)
        return start, f.subtract(stop, start)


def live_share(window: Window | None, outputs: int, patch: int) -> float:
    """Return the share of all taps that is computed in patches of so many outputs."""
    # Without a window, sizes may be those of a run, which must not outlive it in a cache.
    return 1.0 if window is None else _share(window, outputs, patch)


@cache
def _share(window: Window, outputs: int, patch: int) -> float:
    total = 0
    for first in range(0, outputs, patch):
        start, stop = window.live(first, min(patch, outputs - first))
        total += stop - start
    return total / (window.taps * -(-outputs // patch))
