"""A prompt's operator: its steps, and its code on real numbers.

It is a matrix product whose weights come packed from outside. The code depends on the shape alone:
weights are an input, in the order of the register tile, so that one object serves every layer and
every model with the shape. Activations are in the operator's format.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.matmul import MatmulSpec, Panels
from vermilion.codegen.emit.packed_weights import pack_weights
from vermilion.codegen.emit.product import ProductSpec
from vermilion.codegen.emit.walk import Access
from vermilion.codegen.isa import Isa, isa_of
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.matmul_step import SEGMENT_ROWS, choose_patch
from vermilion.codegen.numeric import NUMERICS, Numeric, NumericName, integer_numeric
from vermilion.codegen.tensor import STORAGE_BYTES, Storage, View, allocate
from vermilion.codegen.tile import choose_tile
from vermilion.hardware.targets.find import find_target
from vermilion.ir.expression import Operand, apply
from vermilion.llm.plugins.identity import Identity, Number, parse_number
from vermilion.llm.plugins.kernels import Kernels, empty, roomy
from vermilion.quantize.blocks import round_to

_STORED: dict[str, Storage] = {"f32": "f32", "bf16": "u16", "u8s8": "s8", "u8s8_wide": "s16"}


@dataclass(frozen=True)
class Product:
    """Sizes of a product: (rows, depth) × (depth, columns)."""

    rows: int
    depth: int
    columns: int


@dataclass(frozen=True)
class Packing:
    """The order in which weights stand in `panels`."""

    numeric: str
    vectors: int
    lanes: int


@dataclass(frozen=True)
class OperatorProgram:
    """The steps of one operator, the views of its inputs and outputs, and its weights' order."""

    steps: tuple[Step, ...]
    inputs: tuple[View, ...]
    outputs: tuple[View, ...]
    packing: Packing


def product_program(size: Product, number: Number, isa: Isa) -> OperatorProgram:
    """Return the program of a product.

    Shapes: left (rows, K) and panels → result (rows, N) in float32; for int8, left is unsigned
    with the zero point 128, and initial (N,), column_scale (N,), row_scale (rows,) follow.
    """
    if number == "int8":
        return _integer_program(size, integer_numeric(isa), isa)
    # What bfp16 and bf16 hold is exact in float32, for processors without products of bfloat16.
    return _float_program(size, NUMERICS["bf16" if isa.has_bf16 else "f32"], isa)


def _float_program(size: Product, numeric: Numeric, isa: Isa) -> OperatorProgram:
    tile = choose_patch(size.rows, size.columns, -(-size.depth // numeric.group), isa)
    left = allocate("left", numeric.activation, (size.rows, size.depth), place="input")
    panels = _panels(size, numeric, tile.vectors, isa)
    result = allocate("result", "f32", (size.rows, size.columns), place="output")
    patches = max(1, min(SEGMENT_ROWS, size.rows) // tile.columns)
    spec = MatmulSpec(
        numeric=numeric.name, lanes=isa.lanes, outer=(),
        rows=size.rows, columns=size.columns, depth=size.depth,
        left=Access(numeric.activation, (size.depth, 1)), right=Panels(()),
        output=Access("f32", (size.columns, 1)), operands=(), expression=Operand(0),
        tile_rows=tile.columns, tile_vectors=tile.vectors, segment_rows=patches * tile.columns,
    )  # fmt: skip
    step = Step(spec, (left, panels, result), (result,), ("product",), _operations(size))
    packing = Packing(numeric.name, tile.vectors, isa.lanes)
    return OperatorProgram((step,), (left, panels), (result,), packing)


def _integer_program(size: Product, numeric: Numeric, isa: Isa) -> OperatorProgram:
    """Return result = (initial + Σ left · weight) · column scale · row scale."""
    tile = choose_tile(1, size.rows, size.columns, -(-size.depth // numeric.group), isa)
    left = allocate("left", "u8", (size.rows, size.depth), place="input")
    panels = _panels(size, numeric, tile.vectors, isa)
    initial = allocate("initial", "i32", (size.columns,), place="input")
    column_scale = allocate("column_scale", "f32", (size.columns,), place="input")
    row_scale = allocate("row_scale", "f32", (size.rows,), place="input")
    result = allocate("result", "f32", (size.rows, size.columns), place="output")
    spec = ProductSpec(
        numeric=numeric.name, images=1, rows=1, columns=size.rows, channels=size.columns,
        taps_y=1, taps_x=1, run=size.depth,
        in_image=0, in_row=0, in_column=size.depth, in_tap_y=0, in_tap_x=0,
        output=Access("f32", (0, 0, size.columns, 1)),
        operands=(
            Access("i32", (0, 0, 0, 1)),
            Access("f32", (0, 0, 0, 1)),
            Access("f32", (0, 0, 1, 0)),
        ),
        expression=apply("mul", apply("mul", Operand(0), Operand(2)), Operand(3)),
        tile=tile, has_initial=True,
    )  # fmt: skip
    spec = replace(spec, channel_blocks=spec.blocks(isa))
    arguments = (left, panels, result, initial, column_scale, row_scale)
    step = Step(spec, arguments, (result,), ("product",), _operations(size))
    packing = Packing(numeric.name, tile.vectors, isa.lanes)
    inputs = (left, panels, initial, column_scale, row_scale)
    return OperatorProgram((step,), inputs, (result,), packing)


def _panels(size: Product, numeric: Numeric, vectors: int, isa: Isa) -> View:
    """Return the weights' view: depth in whole groups, columns in whole vectors."""
    groups, across = -(-size.depth // numeric.group), -(-size.columns // isa.lanes)
    values = groups * numeric.group * across * isa.lanes
    storage = _STORED[numeric.name]
    assert values * STORAGE_BYTES[storage] > 0, "a product has weights"
    return allocate("panels", storage, (values,), place="input")


def _operations(size: Product) -> int:
    return 2 * size.rows * size.depth * size.columns


Float32 = NDArray[np.float32]

_ZERO_POINT = 128


@dataclass(frozen=True)
class PackedWeights:
    """A layer's weights in an operator's order; int8 also has where its sums begin, and scales."""

    panels: NDArray[Any]
    initial: NDArray[np.int32] | None = None
    column_scale: Float32 | None = None


class LoadedOperator:
    """A product that is ready to run, for any weights of its shape."""

    def __init__(self, identity: Identity, data: bytes) -> None:
        """Load the object code.

        Raises: DeviceError for a chip that this machine is not; ArtifactError for code that is
        not this operator's.
        """
        self.identity = identity
        self._number = number_of(identity)
        program = product_program(
            size_of(identity), self._number, isa_of(find_target(identity.target))
        )
        self._packing = program.packing
        (self._step,) = program.steps
        self._kernels = Kernels(identity, data, (self._step.function,))

    def pack(self, weights: Float32) -> PackedWeights:
        """Return a layer's weights (N, K) as the code reads them."""
        numeric = NUMERICS[_numeric(self._packing)]
        if self._number == "int8":
            return self._pack_integers(weights)
        rounded = round_to(weights, self._number, axis=1)
        return PackedWeights(self._panels(rounded, numeric.name))

    def multiply(self, activations: Float32, weights: PackedWeights) -> Float32:
        """Return activations (rows, K) times the weights: (rows, N)."""
        rows = self.identity.rows
        count = activations.shape[0]
        assert count <= rows, f"{count} rows in an operator for {rows}"
        padded = np.zeros((rows, activations.shape[1]), np.float32)
        padded[:count] = activations
        if self._number == "int8":
            inputs = self._integers(padded, weights)
        else:
            values = round_to(padded, self._number, axis=1)
            is_short = NUMERICS[_numeric(self._packing)].activation == "bf16"
            left = values.astype(ml_dtypes.bfloat16) if is_short else values
            inputs = {"left": left}
        result: Float32 = empty((rows, self.identity.shape["N"]), np.float32)
        held = {name: roomy(array) for name, array in inputs.items()}
        held |= {"panels": weights.panels, "result": result}
        arguments = [held[view.buffer.name] for view in self._step.arguments]
        self._kernels.call(self._step.function, arguments, self._step.spec.units)
        return result[:count]

    def _panels(self, weights: NDArray[Any], numeric: NumericName) -> NDArray[Any]:
        columns, depth = weights.shape
        made = pack_weights(
            np.ascontiguousarray(weights).reshape(columns, 1, 1, depth),
            NUMERICS[numeric], self._packing.vectors, self._packing.lanes,
        )  # fmt: skip
        return roomy(made)

    def _pack_integers(self, weights: Float32) -> PackedWeights:
        """Round each column to 8 bits by its largest weight."""
        largest = np.abs(weights).max(axis=1)
        scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
        integers = np.rint(weights / scale[:, None]).astype(np.int32)
        initial = (-_ZERO_POINT * integers.sum(axis=1)).astype(np.int32)
        return PackedWeights(self._panels(integers, _numeric(self._packing)), initial, scale)

    def _integers(self, values: Float32, weights: PackedWeights) -> dict[str, NDArray[Any]]:
        """Round each token to 8 bits by its largest value."""
        largest = np.abs(values).max(axis=1)
        scale = np.where(largest > 0, largest / 127, 1).astype(np.float32)
        left = (np.rint(values / scale[:, None]) + _ZERO_POINT).astype(np.uint8)
        assert weights.initial is not None, "packed by this operator"
        assert weights.column_scale is not None, "packed by this operator"
        return {
            "left": left,
            "initial": weights.initial,
            "column_scale": weights.column_scale,
            "row_scale": scale,
        }


def number_of(identity: Identity) -> Number:
    """Return the number format of a prompt's product."""
    return parse_number(identity.number)


def size_of(identity: Identity) -> Product:
    """Return the sizes of a product."""
    return Product(identity.rows, identity.shape["K"], identity.shape["N"])


def _numeric(packing: Packing) -> NumericName:
    return next(name for name in NUMERICS if name == packing.numeric)
