"""Picking single elements by an index tensor of the result's shape: GatherElements."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Module
from vermilion.codegen.emit.gather import place_of
from vermilion.codegen.emit.rows import outer_rows
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage


@dataclass(frozen=True)
class PickSpec:
    """`output[i, k, j] = data[i, indices[i, k, j], j]`, element by element.

    `dims` are the result's: (size, (data stride, indices stride, output stride)), the data's
    being 0 along the axis that is picked from. Indices are brought into range.
    """

    storage: Storage
    indices: Literal["i32", "i64"]
    dims: tuple[tuple[int, tuple[int, ...]], ...]
    axis_size: int
    axis_stride: int

    family = "pick"

    @property
    def units(self) -> int:
        """One unit a row of the result."""
        return math.prod(size for size, _ in self.dims[:-1])

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, units = begin_kernel(module, name, 3)
        item = STORAGE_BYTES[self.storage]
        sizes = (item, STORAGE_BYTES[self.indices], item)
        arithmetic = Arithmetic(f, 1)
        size, strides = self.dims[-1]
        with f.loop(*units) as unit:
            row = outer_rows(f, unit, self.dims[:-1], pointers, sizes)
            with f.loop(0, size) as at:
                come, index, go = (
                    f.at(pointer, f.multiply(at, stride * width))
                    for pointer, stride, width in zip(row, strides, sizes, strict=True)
                )
                place = place_of(f, self.indices, index, self.axis_size)
                come = f.at(come, f.multiply(place, self.axis_stride * item))
                arithmetic.store(self.storage, arithmetic.load(self.storage, come), go)
        f.finish()
