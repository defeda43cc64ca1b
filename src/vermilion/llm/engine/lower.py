"""A decoder's description → steps of our kernels, for few rows or for many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.block_product import BlockProductSpec
from vermilion.codegen.emit.decoder.cache import CacheForm
from vermilion.codegen.emit.decoder.cached_attention import CachedAttentionSpec
from vermilion.codegen.emit.decoder.heads import HeadsSpec
from vermilion.codegen.emit.decoder.panel_product import PanelProductSpec
from vermilion.codegen.emit.decoder.panel_tile import Gate
from vermilion.codegen.emit.decoder.row import RowSpec
from vermilion.codegen.emit.decoder.running_softmax import score_unit
from vermilion.codegen.emit.decoder.strassen import SevenProductsSpec
from vermilion.codegen.emit.decoder.strassen_rows import HalvedRows, HalvedRowsSpec
from vermilion.codegen.emit.decoder.weights import PANEL, BlockWeights, PlainWeights, Weights
from vermilion.codegen.kernel import Spec
from vermilion.codegen.tensor import Buffer, View
from vermilion.llm.engine.description import Attention, Product, RowOperation
from vermilion.llm.engine.lowering import (
    SPARE_ROWS,
    Lowered,
    Lowering,
    Shape,
    Weighed,
    packed_of,
    prepared_for,
    whole,
)
from vermilion.llm.engine.rewrite import gates_of, sources

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
        numeric, weights, rows, width, has_bias, shape.max_rows,
        shape.is_single and isinstance(weights, PlainWeights) and weights.storage == "f32",
    )  # fmt: skip


def lower_attention(
    state: Lowering, operation: Attention, layer: int, results: Sequence[str]
) -> None:
    """Write the attention of a layer, or that part of it that is asked for."""
    shape, form = state.shape, CacheForm(state.shape.cache, operation.head_size)
    width = operation.query_heads * operation.head_size
    size = (shape.max_rows + SPARE_ROWS) * width * form.item_bytes
    keys = whole(state.given(f"keys {layer}", 64))
    values = whole(state.given(f"values {layer}", 64))
    queries = whole(Buffer(f"{operation.node} queries", size, "arena"))
    kept = [] if operation.part == "queries" else [keys, values]
    asked = [] if operation.part == "keys" else [queries]
    _lower_heads(state, operation, [*kept, *asked])
    if operation.part == "keys":
        return
    group = operation.query_heads // operation.key_heads
    out = whole(state.rows(operation.output, width, is_given=operation.output in results))
    attention = CachedAttentionSpec(
        form, operation.key_heads, group, shape.positions, operation.window, operation.bound,
        width, shape.max_rows,
    )  # fmt: skip
    state.add(attention, [state.control, queries, keys, values, out], [out], operation.node)


def _lower_heads(state: Lowering, operation: Attention, written: Sequence[View]) -> None:
    form = CacheForm(state.shape.cache, operation.head_size)
    views, steps = zip(*map(state.view, sources(operation)), strict=True)
    query, key = operation.query, operation.key
    rotation = query.rotation
    waves = []
    if rotation is not None:
        waves = [state.constant(rotation.cosines), state.constant(rotation.sines)]
    own = {"whole": (query, key), "keys": (key,), "queries": (query,)}[operation.part]
    norms = [state.constant(rows.norm.weight) for rows in own if rows.norm is not None]
    query_epsilon, key_epsilon = (
        None if rows.norm is None or rows not in own else rows.norm.epsilon for rows in (query, key)
    )
    heads = HeadsSpec(
        form, operation.query_heads, operation.key_heads, steps,
        operation.scale * score_unit(form), 2 * rotation.cosines.shape[1] if rotation else 0,
        query_epsilon, key_epsilon, state.shape.max_rows, operation.part,
    )  # fmt: skip
    arguments = [state.control, *views, *waves, *norms, *written]
    state.add(heads, arguments, written, operation.node)


def lower(
    weighed: Weighed, shape: Shape, given: Mapping[str, int], results: Sequence[str]
) -> Lowered:
    """Write the steps of `operations`.

    `given` are the buffers that the caller fills and their widths; `results` are the buffers that
    the caller reads, which it gives as well.
    """
    forms: dict[tuple[str, int, int], list[ActivationLayout]] = defaultdict(list)
    wanted = set(results)
    for operation in weighed.operations:
        match operation:
            case Product(source=rows):
                form = prepared_for(packed_of(weighed.matrices, operation).form, shape)
                key = (rows.buffer, rows.offset, rows.width)
                if form not in forms[key]:
                    forms[key].append(form)
            case RowOperation() | Attention():
                wanted |= {rows.buffer for rows in sources(operation)}
    state = Lowering(shape, weighed.matrices, dict(forms), wanted)
    for name, width in given.items():
        state.rows(name, width, is_given=True)
    found = {} if shape.is_single else gates_of(weighed.operations, forms, wanted)
    gates = {output: gate for output, gate in found.items() if output not in results}
    joined = {operation.output for operation in gates.values()}
    layer = weighed.first_layer
    last = {rows.buffer: at for at, one in enumerate(weighed.operations) for rows in sources(one)}
    for at, operation in enumerate(weighed.operations):
        match operation:
            case Product() if operation.output in gates:
                lower_gated(state, operation, gates[operation.output])
            case Product():
                lower_product(state, operation, is_given=operation.output in results)
            case RowOperation() if operation.output in joined:
                pass  # it is the end of a product
            case RowOperation():
                ended = {name for name, end in last.items() if end == at and name not in results}
                _lower_rows(state, operation, results, ended)
            case Attention():
                lower_attention(state, operation, layer, results)
                layer += 1
    widths = {name: width for name, (_, width) in state.buffers.items()}
    return Lowered(tuple(state.steps), tuple(state.inputs.values()), state.constants, widths)


def _lower_rows(
    state: Lowering, operation: RowOperation, results: Sequence[str], ended: Collection[str]
) -> None:
    """Write a row operation; the rows in `ended` buffers are read for the last time."""
    width = operation.inputs[0].width
    views, steps = zip(*map(state.view, operation.inputs), strict=True)
    kept, kept_row = [], 0
    if operation.kept:
        view, kept_row = _kept(state, operation, results, ended)
        kept = [view]
    norm = operation.norm
    weight = [state.constant(norm.weight)] if norm else []
    if norm and norm.bias is not None:
        weight.append(state.constant(norm.bias))
    is_wanted = operation.output in state.wanted
    is_given = operation.output in results
    out = [whole(state.rows(operation.output, width, is_given=is_given))] if is_wanted else []
    key = (operation.output, 0, width)
    forms = tuple(state.forms.get(key, ()))
    prepared = [state.prepare(key, form) for form in forms]
    spec = RowSpec(
        operation.kind, width, steps, kept_row, norm.epsilon if norm else None,
        width if out else 0, forms, state.shape.max_rows, norm.kind if norm else "rms",
        norm is not None and norm.bias is not None, operation.factor,
    )  # fmt: skip
    arguments = [state.control, *views, *kept, *weight, *out, *prepared]
    state.add(spec, arguments, [*kept, *out, *prepared], operation.node)


def _kept(
    state: Lowering, operation: RowOperation, results: Sequence[str], ended: Collection[str]
) -> tuple[View, int]:
    """Return where rows are kept: over those that are read for the last time, if any are ours."""
    width, is_given = operation.inputs[0].width, operation.kept in results
    for rows in operation.inputs:
        buffer, step = state.buffers[rows.buffer]
        is_ours = buffer.place == "arena" and (rows.offset, step) == (0, width)
        if is_ours and rows.buffer in ended and not is_given:
            state.buffers[operation.kept] = (buffer, step)
            return whole(buffer), step
    return whole(state.rows(operation.kept, width, is_given=is_given)), width
