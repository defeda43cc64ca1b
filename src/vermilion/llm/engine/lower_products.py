"""A product → steps: its rows in the form that it reads, the product, what gates it."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.block_product import BlockProductSpec
from vermilion.codegen.emit.decoder.panel_product import PanelProductSpec
from vermilion.codegen.emit.decoder.panel_tile import Gate
from vermilion.codegen.emit.decoder.row import RowSpec
from vermilion.codegen.emit.decoder.strassen_rows import HalvedRowsSpec
from vermilion.codegen.emit.decoder.weights import PANEL, BlockWeights, Weights
from vermilion.codegen.kernel import Spec
from vermilion.codegen.tensor import Buffer, View
from vermilion.llm.engine.description import Product, RowOperation
from vermilion.llm.engine.lowering import Lowering, Shape, prepared_for, whole
from vermilion.llm.engine.strassen import seven_of

_PAGE_BYTES = 4096
# Rows in a register tile of whole-number products.
_ROW_TILE = 6


def lower_product(state: Lowering, operation: Product, *, is_given: bool) -> None:
    """Write a product; its rows lie side by side where the caller reads them."""
    packed = state.packed(operation)
    width = packed.form.panels * PANEL
    # Rows a multiple of a page apart would have what a panel writes in one set of a cache; a panel
    # more, and no two lines of a tile are in the same.
    step = width if is_given or width * 4 % _PAGE_BYTES else width + PANEL
    source, form = _source_of(state, operation)
    spec = _product_spec(
        packed.form, form, step, state.shape, has_bias=operation.bias is not None
    )  # fmt: skip
    out = whole(state.rows(operation.output, step, is_given=is_given))
    _add_product(state, operation, spec, source, out)


def lower_gated(state: Lowering, operation: Product, gate: RowOperation) -> None:
    """Write a product whose halves are joined where they are computed."""
    key = (gate.output, 0, gate.inputs[0].width)
    (form,) = state.forms[key]
    source, rows = _source_of(state, operation)
    weights = state.packed(operation).form
    numeric: Literal["bf16", "f32"] = "f32" if rows.kind == "f32" else "bf16"
    spec = PanelProductSpec(
        numeric, weights, rows, 0, operation.bias is not None, state.shape.max_rows,
        is_single=False, gate=Gate(gate.kind, form),
    )  # fmt: skip
    _add_product(state, operation, spec, source, state.prepare(key, form))


def _source_of(state: Lowering, operation: Product) -> tuple[View, ActivationLayout]:
    """Return a product's rows as it reads them; they are written where nobody did."""
    form = prepared_for(state.packed(operation).form, state.shape)
    rows = operation.source
    key = (rows.buffer, rows.offset, rows.width)
    if (*key, form) not in state.prepared:
        view, step = state.view(rows)
        target = state.prepare(key, form)
        plain = RowSpec("plain", rows.width, (step,), 0, None, 0, (form,), state.shape.max_rows)
        state.add(plain, [state.control, view, target], [target], operation.node)
    return whole(state.prepared[(*key, form)]), form


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


def _product_spec(
    weights: Weights, rows: ActivationLayout, width: int, shape: Shape, *, has_bias: bool
) -> Spec:
    if rows.kind == "int8":
        assert isinstance(weights, BlockWeights), "whole numbers need codes"
        tile = 1 if shape.is_single else _ROW_TILE
        return BlockProductSpec(weights, rows, width, tile, has_bias)
    numeric: Literal["bf16", "f32"] = "f32" if rows.kind == "f32" else "bf16"
    return PanelProductSpec(
        numeric, weights, rows, width, has_bias, shape.max_rows, shape.is_single
    )  # fmt: skip
