"""Picking slices of a tensor by an index tensor, or single elements; putting slices in place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.rows import for_vectors, load, outer_rows, store
from vermilion.codegen.emit.values import Value, constant
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage


@dataclass(frozen=True)
class GatherSpec:
    """`output[outer, index, inner] = data[outer, indices[index, 0], indices[index, 1] …, inner]`.

    `dims` are the outer and index dimensions: (size, (data stride, indices stride, output
    stride)). `axes` are the dimensions of the data that are picked from: (size, stride); their
    indices lie `step` elements apart. A negative index counts from the end; one that is out of
    range is moved to the nearest that is not, so that no other memory is read.
    """

    storage: Storage
    indices: Literal["i32", "i64"]
    dims: tuple[tuple[int, tuple[int, ...]], ...]
    axes: tuple[tuple[int, int], ...]
    step: int
    inner: tuple[int, int, int]  # size, data stride, output stride

    family = "gather"

    @property
    def units(self) -> int:
        """One unit an index."""
        return math.prod(size for size, _ in self.dims)

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, (begin, end) = begin_kernel(module, name, 3)
        item = STORAGE_BYTES[self.storage]
        sizes = (item, STORAGE_BYTES[self.indices], item)
        arithmetic = Arithmetic(f, isa.lanes)
        size, come_stride, go_stride = self.inner
        with f.loop(begin, end) as unit:
            come, index_at, go = outer_rows(f, unit, self.dims, pointers, sizes)
            come = _moved(f, self, index_at, come, item)

            def copy(at: Value, mask: Value | None, number: int) -> None:
                value = load(arithmetic, self.storage, come, at, come_stride, mask)
                store(arithmetic, self.storage, value, go, at, go_stride, mask)

            for_vectors(f, arithmetic, size, copy)
        f.finish()


@dataclass(frozen=True)
class ScatterSpec:
    """`output[indices[index, 0], indices[index, 1] …, inner] = updates[index, inner]`.

    `dims` are the index dimensions: (size, (updates stride, indices stride, output stride)); all
    else is as `GatherSpec` has it. Of two slices for one place the later one stays; where `adds`,
    floats are added to what is there, one after the other.
    """

    storage: Storage
    out_storage: Storage
    indices: Literal["i32", "i64"]
    dims: tuple[tuple[int, tuple[int, ...]], ...]
    axes: tuple[tuple[int, int], ...]
    step: int
    inner: tuple[int, int, int]  # size, updates stride, output stride
    adds: bool = False

    family = "scatter"

    @property
    def units(self) -> int:
        """One unit, so that what is written twice is the same with any number of workers."""
        return 1

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, units = begin_kernel(module, name, 3)
        item = STORAGE_BYTES[self.out_storage]
        sizes = (STORAGE_BYTES[self.storage], STORAGE_BYTES[self.indices], item)
        arithmetic = Arithmetic(f, isa.lanes)
        size, come_stride, go_stride = self.inner
        rows = math.prod(count for count, _ in self.dims)
        with f.loop(*units), f.loop(0, rows) as row:
            come, index_at, go = outer_rows(f, row, self.dims, pointers, sizes)
            go = _moved(f, self, index_at, go, item)

            def copy(at: Value, mask: Value | None, number: int) -> None:
                value = load(arithmetic, self.storage, come, at, come_stride, mask)
                if self.adds:
                    there = load(arithmetic, self.out_storage, go, at, go_stride, mask)
                    value = arithmetic.math.add(there, value)
                store(arithmetic, self.out_storage, value, go, at, go_stride, mask)

            for_vectors(f, arithmetic, size, copy)
        f.finish()


def _moved(
    f: Function, spec: GatherSpec | ScatterSpec, index_at: Value, pointer: Value, item: int
) -> Value:
    """Move a pointer to the place that the numbers at `index_at` name."""
    for number, (extent, stride) in enumerate(spec.axes):
        at = f.at(index_at, f.multiply(f.index(number), spec.step * STORAGE_BYTES[spec.indices]))
        place = place_of(f, spec.indices, at, extent)
        pointer = f.at(pointer, f.multiply(place, stride * item))
    return pointer


def place_of(f: Function, storage: Literal["i32", "i64"], pointer: Value, size: int) -> Value:
    """Read an index: negative ones wrapped, all brought into range."""
    if storage == "i64":
        index = f.load("i64", pointer, align=1)
    else:
        index = f.convert("sext", f.load("i32", pointer, align=1), "i64")
    zero = constant("i64", 0)
    wrapped = f.add(index, size)
    index = f.select(f.compare("slt", index, zero), wrapped, index)
    index = f.minimum(index, size - 1)
    return f.select(f.compare("slt", index, zero), zero, index)


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
