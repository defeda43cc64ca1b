"""The two sides of a matrix product: formats, and the right side as panels."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.map import map_step
from vermilion.codegen.emit.pack import PackSpec
from vermilion.codegen.emit.packed_weights import pack_weights
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering, converted
from vermilion.codegen.numeric import NUMERICS, Numeric, numeric_for, stored_weights
from vermilion.codegen.tensor import STORAGE_BYTES, View, allocate
from vermilion.codegen.tile import Tile
from vermilion.ir.opset import constant_of
from vermilion.ir.symbolic import is_known

Array = NDArray[Any]


@dataclass(frozen=True)
class RightSide:
    """The right side of a product: a constant (…, K, N), a view of that shape, or panels of it."""

    shape: tuple[int, ...]
    array: Array | None = None
    view: View | None = None
    panels: View | None = None
    name: str = ""

    @property
    def batch(self) -> tuple[int, ...]:
        """Sizes of the dimensions before the matrix."""
        return self.shape[:-2]

    def piece(self, start: int, size: int) -> RightSide:
        """Return `size` rows from `start` on."""
        shape = (*self.batch, size, self.shape[-1])
        if self.array is not None:
            array = self.array[..., start : start + size, :]
            return RightSide(shape, array=array, name=f"{self.name}[{start}:{start + size}]")
        assert self.view is not None
        return RightSide(shape, view=self.view.sliced(-2, start, size))


def right_side(lowering: Lowering, value: ir.Value, *, transposed: bool = False) -> RightSide:
    """Return a product's right side as a matrix: of a constant what it holds, else its view."""
    constant = constant_of(value)
    if constant is not None:
        array = constant.numpy()
        name = str(value.name)
        if transposed:
            array, name = array.T, f"{name}ᵀ"
        return RightSide(tuple(array.shape), array=array, name=name)
    view = lowering.demand(value)
    if transposed:
        view = view.permuted((1, 0))
    return RightSide(view.shape, view=view)


def as_column(right: RightSide) -> RightSide:
    """Return a vector as a matrix of one column."""
    shape = (right.shape[0], 1)
    if right.array is not None:
        return replace(right, shape=shape, array=right.array.reshape(shape))
    assert right.view is not None
    return replace(right, shape=shape, view=as_matrix(right.view, shape))


def as_matrix(view: View, shape: tuple[int, int]) -> View:
    """Return a vector as a matrix of one row or column."""
    wide = view.reshaped(shape)
    assert wide is not None, "a dimension of one element needs no copy"
    return wide


def common_numeric(
    lowering: Lowering, left: View, right: RightSide
) -> tuple[View, RightSide, Numeric]:
    """Return both sides in a format that is multiplied here: float32 where nothing else is."""
    numeric = numeric_for(left.storage, lowering.isa)
    same = right.view is None or right.view.storage == left.storage
    if numeric is not None and same and numeric.accumulator == "float":
        return left, right, numeric
    if right.view is not None:
        right = replace(right, view=as_f32(lowering, right.view))
    elif right.array is not None and left.storage == "bf16":
        rounded = stored_weights(right.array, left.storage)
        right = replace(right, array=rounded, name=f"{right.name} in bfloat16")
    return as_f32(lowering, left), right, NUMERICS["f32"]


def as_f32(lowering: Lowering, view: View) -> View:
    """Return a tensor in float32, copied if it is stored otherwise."""
    if view.storage == "f32":
        return view
    copy = allocate(f"{view.buffer.name} in float32", "f32", view.shape)
    expression = converted(view, copy)
    lowering.add(map_step([view], [copy], [expression], [f"copy of {view.buffer.name}"]))
    return copy


def is_in_place(right: RightSide, numeric: Numeric) -> bool:
    """Say whether the rows of a right side are read where they lie."""
    view = right.view
    return view is not None and numeric.name == "f32" and (
        view.strides[-1] == 1 or view.shape[-1] == 1
    )  # fmt: skip


def panels_key(name: str, numeric: Numeric, tile: Tile) -> tuple[str, ...]:
    """Return the key under which a constant's panels are kept."""
    return (name, "matmul", numeric.name, str(tile.vectors))


def packed(lowering: Lowering, right: RightSide, numeric: Numeric, tile: Tile) -> View:
    """Return the right side as panels: a weight, or the result of a step that packs it."""
    if right.panels is not None:
        return right.panels
    storage = numeric.weight
    if right.array is not None:
        array = right.array

        def make() -> Array:
            *_, depth, columns = array.shape
            return np.concatenate(
                [
                    pack_weights(
                        np.ascontiguousarray(matrix.T).reshape(columns, 1, 1, depth),
                        numeric, tile.vectors, lowering.isa.lanes,
                    )
                    for matrix in array.reshape(-1, depth, columns)
                ]
            )  # fmt: skip

        return lowering.weight(panels_key(right.name, numeric, tile), make, storage)
    view = right.view
    assert view is not None
    spec = PackSpec(
        numeric=numeric.name, storage=view.storage, lanes=lowering.isa.lanes,
        outer=tuple(zip(view.shape[:-2], view.strides[:-2], strict=True)),
        depth=view.shape[-2], columns=view.shape[-1],
        depth_stride=view.strides[-2], column_stride=view.strides[-1],
        tile_vectors=min(tile.vectors, -(-view.shape[-1] // lowering.isa.lanes))
        if is_known(view.shape[-1]) else 1,
    )  # fmt: skip
    elements = spec.matrix_elements * (4 // STORAGE_BYTES[storage])
    panels = allocate(
        f"panels of {view.buffer.name}", storage, (math.prod(view.shape[:-2]), elements)
    )
    lowering.add(Step(spec, (view, panels), (panels,), (f"panels of {view.buffer.name}",)))
    return panels
