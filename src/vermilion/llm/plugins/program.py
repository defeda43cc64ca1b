"""An operator → its steps: matrix products whose weights come packed from outside.

The code depends on the shape alone. Weights are an input, in the order of the register tile, so
that one object serves every layer and every model with the shape.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from vermilion.codegen.emit.matmul import MatmulSpec, Panels
from vermilion.codegen.emit.product import ProductSpec
from vermilion.codegen.emit.walk import Access
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.matmul_step import SEGMENT_ROWS, choose_patch
from vermilion.codegen.numeric import NUMERICS, Numeric, integer_numeric
from vermilion.codegen.tensor import STORAGE_BYTES, Storage, View, allocate
from vermilion.codegen.tile import choose_tile
from vermilion.ir.expression import Operand, apply
from vermilion.llm.plugins.identity import Number

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
