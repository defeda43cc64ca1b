"""Products of a decoder → steps of our kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.block_product import BlockProductSpec
from vermilion.codegen.emit.decoder.panel_product import PanelProductSpec
from vermilion.codegen.emit.decoder.panel_tile import Gate
from vermilion.codegen.emit.decoder.row import RowSpec
from vermilion.codegen.emit.decoder.strassen import SevenProductsSpec
from vermilion.codegen.emit.decoder.strassen_rows import HalvedRows, HalvedRowsSpec
from vermilion.codegen.emit.decoder.weights import PANEL, BlockWeights, PlainWeights, Weights
from vermilion.codegen.kernel import Spec
from vermilion.codegen.tensor import Buffer, View
from vermilion.llm.engine.description import Product, RowOperation, Rows
from vermilion.llm.engine.lowering import Lowering, Shape, prepared_for, whole

# From which on it is faster: what it saves pays for the sums, and workers share whole pairs of
# panels. On one Zen 5 core, a product of 2048 × 4096 took 0.956 of its time with 256 rows, 0.947
# with 384, 0.930 with 512; 0.999 with 192, and of 576 × 3072 0.96 with 512. With the 1536 × 576
# of SmolLM2 done so, its prompt of 512 took 1.02 of its time on one core, and 1.08 on two.
LEAST_ROWS, LEAST_DEPTH, LEAST_COLUMNS = 384, 1024, 2048
# Values of a half of the depth that are unpacked at a time, about.
_RUN = 256


def seven_of(spec: PanelProductSpec) -> SevenProductsSpec | None:
    """Return the product with seven multiplications for the rows of which it is faster, if any.

    Only for numbers in bfloat16 as they are: it rounds sums of them, which those that share an
    exponent do not survive.
    """
    w = spec.weights
    if not isinstance(w, BlockWeights) or spec.rows.kind != "bf16" or w.bits != 4 or not w.is_plain:
        return None
    if spec.max_rows < LEAST_ROWS or w.depth < LEAST_DEPTH or w.columns < LEAST_COLUMNS:
        return None
    half = w.depth // 2
    if spec.max_rows % 8 or w.block > _RUN:
        return None
    if w.panels % 2 or w.depth % 2 or half % 32 or half % w.block:
        return None
    runs = max(1, round(half / _RUN))
    step = max(32, w.block)
    rows = HalvedRows(w.depth, -(-half // (runs * step)) * step, spec.max_rows)
    return SevenProductsSpec(w, rows, spec.out_row, spec.has_bias, LEAST_ROWS, spec.gate)


_PAGE_BYTES = 4096
# Rows in a register tile of whole-number products.
_ROW_TILE = 6


def lower_product(state: Lowering, operation: Product, *, is_given: bool) -> None:
    """Write a product; its rows lie side by side where the caller reads them."""
    packed = state.packed(operation)
    step = packed.form.panels * PANEL if is_given else row_step(packed.form)
    form = prepared_for(packed.form, state.shape, is_exact=operation.is_exact)
    source = source_of(state, operation.source, form, operation.node)
    spec = product_spec(packed.form, form, step, state.shape, has_bias=operation.bias is not None)
    out = whole(state.rows(operation.output, step, is_given=is_given))
    _add_product(state, operation, spec, source, out)


def lower_gated(state: Lowering, operation: Product, gate: RowOperation) -> None:
    """Write a product whose halves are joined where they are computed."""
    key = (gate.output, 0, gate.inputs[0].width)
    (form,) = state.forms[key]
    weights = state.packed(operation).form
    rows = prepared_for(weights, state.shape)
    source = source_of(state, operation.source, rows, operation.node)
    spec = gated_spec(
        weights, rows, Gate(gate.kind, form), state.shape, has_bias=operation.bias is not None
    )
    _add_product(state, operation, spec, source, state.prepare(key, form))


def row_step(weights: Weights) -> int:
    """Return the numbers from one row of a product's result to the next.

    Rows a multiple of a page apart would have what a panel writes in one set of a cache; a panel
    more, and no two lines of a tile are in the same.
    """
    width = weights.panels * PANEL
    return width if width * 4 % _PAGE_BYTES else width + PANEL


def source_of(state: Lowering, rows: Rows, form: ActivationLayout, node: str) -> View:
    """Return rows as a product reads them; they are written where nobody did."""
    key = (rows.buffer, rows.offset, rows.width)
    if (*key, form) not in state.prepared:
        view, step = state.view(rows)
        target = state.prepare(key, form)
        plain = RowSpec("plain", rows.width, (step,), 0, None, 0, (form,), state.shape.max_rows)
        state.add(plain, [state.control, view, target], [target], node)
    return whole(state.prepared[(*key, form)])


def _add_product(state: Lowering, operation: Product, spec: Spec, source: View, out: View) -> None:
    packed = state.packed(operation)
    bias = []
    if operation.bias is not None:
        columns = operation.columns
        first = columns.first if columns else 0
        own = operation.bias[first : first + packed.form.columns]
        padded = np.zeros(packed.form.panels * PANEL, np.float32)
        padded[: own.size] = own
        bias = [state.constant(padded)]
    buffer = state.given(packed.buffer.name, packed.buffer.size_bytes)
    weights = whole(buffer, packed.offset_bytes)
    seven = seven_of(spec) if isinstance(spec, PanelProductSpec) else None
    if seven is not None and isinstance(spec, PanelProductSpec):
        sums = _halved(state, source, HalvedRowsSpec(spec.rows, seven.rows, seven.least_rows))
        state.add(seven, [state.control, sums, weights, out, *bias], [out], operation.node)
        spec = replace(spec, most_rows=seven.least_rows - 1)
    operations = 2 * state.shape.max_rows * packed.form.depth * packed.form.columns
    arguments = [state.control, source, weights, out, *bias]
    state.add(spec, arguments, [out], operation.node, operations)


def _halved(state: Lowering, source: View, spec: HalvedRowsSpec) -> View:
    """Return the sums of rows that products of quarters read; they are written once."""
    key = (source.buffer, spec.form)
    if key not in state.halved:
        buffer = Buffer(f"{source.buffer.name} sums", spec.form.size_bytes, "arena")
        target = state.halved[key] = whole(buffer)
        state.add(spec, [state.control, source, target], [target], buffer.name)
    return state.halved[key]


def gated_spec(
    weights: Weights, rows: ActivationLayout, gate: Gate, shape: Shape, *, has_bias: bool
) -> PanelProductSpec:
    """Return a product whose halves are joined where they are computed."""
    numeric: Literal["bf16", "f32"] = "f32" if rows.kind == "f32" else "bf16"
    return PanelProductSpec(
        numeric, weights, rows, 0, has_bias, shape.max_rows, is_single=False, gate=gate
    )


def product_spec(
    weights: Weights, rows: ActivationLayout, width: int, shape: Shape, *, has_bias: bool
) -> BlockProductSpec | PanelProductSpec:
    """Return the product of rows in a form with weights; its rows are `width` numbers apart."""
    if rows.kind == "int8":
        assert isinstance(weights, BlockWeights), "whole numbers need codes"
        tile = 1 if shape.is_single else _ROW_TILE
        return BlockProductSpec(weights, rows, width, tile, has_bias)
    numeric: Literal["bf16", "f32"] = "f32" if rows.kind == "f32" else "bf16"
    return PanelProductSpec(
        numeric, weights, rows, width, has_bias, shape.max_rows,
        shape.is_single and isinstance(weights, PlainWeights) and weights.storage == "f32",
    )  # fmt: skip
