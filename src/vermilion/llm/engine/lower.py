"""A decoder's description → steps of our kernels, for few rows or for many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.cache import CacheForm
from vermilion.codegen.emit.decoder.cached_attention import CachedAttentionSpec
from vermilion.codegen.emit.decoder.heads import HeadsSpec
from vermilion.codegen.emit.decoder.row import RowSpec
from vermilion.codegen.emit.decoder.running_softmax import score_unit
from vermilion.codegen.emit.decoder.short_convolution import (
    ConvolutionSpec,
    RememberedRows,
    RememberSpec,
)
from vermilion.codegen.tensor import Buffer, View
from vermilion.llm.engine.description import (
    Attention,
    Convolution,
    Experts,
    Product,
    RowOperation,
    Rows,
)
from vermilion.llm.engine.lower_experts import lower_experts
from vermilion.llm.engine.lower_products import lower_gated, lower_product
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


def lower_attention(
    state: Lowering, operation: Attention, layer: int, results: Sequence[str]
) -> None:
    """Write the attention of a layer, or that part of it that is asked for."""
    shape, form = state.shape, CacheForm(state.shape.cache, operation.head_size)
    width = operation.query_heads * operation.head_size
    size = (shape.max_rows + SPARE_ROWS) * operation.query_heads * form.query_bytes
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
    sinks = []
    if operation.sinks is not None:
        sinks = [state.constant(operation.sinks * np.float32(score_unit(form)))]
    attention = CachedAttentionSpec(
        form, operation.key_heads, group, shape.positions, operation.window, operation.bound,
        width, shape.max_rows, bool(sinks),
    )  # fmt: skip
    arguments = [state.control, queries, keys, values, out, *sinks]
    state.add(attention, arguments, [out], operation.node)


def lower_convolution(
    state: Lowering, operation: Convolution, layer: int, results: Sequence[str]
) -> None:
    """Write the convolution of a layer, or that part of it that is asked for."""
    stored, most = CacheForm(state.shape.cache, operation.width).stored, state.shape.max_rows
    cache = RememberedRows(stored, operation.width)
    parts = [whole(state.given(f"{name} {layer}", 64)) for name in ("keys", "values")]
    if operation.part != "queries":
        views, steps = zip(*map(state.view, (operation.before, operation.value)), strict=True)
        state.add(
            RememberSpec(cache, steps, most), [state.control, *views, *parts], parts, operation.node
        )
    if operation.part == "keys":
        return
    gate, step = state.view(operation.after)
    is_given = operation.output in results
    out = whole(state.rows(operation.output, operation.width, is_given=is_given))
    bias = [] if operation.bias is None else [state.constant(operation.bias)]
    spec = ConvolutionSpec(
        cache, len(operation.taps), step, operation.width, most, operation.bias is not None
    )
    arguments = [state.control, gate, *parts, state.constant(operation.taps), *bias, out]
    state.add(spec, arguments, [out], operation.node)


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
        any(rows.is_normed_last for rows in (query, key)),
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
    forms, wanted = _read_by_products(weighed, shape, results)
    state = Lowering(shape, weighed.matrices, forms, wanted)
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
            case Convolution():
                lower_convolution(state, operation, layer, results)
                layer += 1
            case Experts():
                lower_experts(state, operation, is_given=operation.output in results)
    widths = {name: width for name, (_, width) in state.buffers.items()}
    return Lowered(tuple(state.steps), tuple(state.inputs.values()), state.constants, widths)


def _read_by_products(
    weighed: Weighed, shape: Shape, results: Sequence[str]
) -> tuple[dict[tuple[str, int, int], list[ActivationLayout]], set[str]]:
    """Return in which forms products read rows, and the buffers that are read as float32."""
    forms: dict[tuple[str, int, int], list[ActivationLayout]] = defaultdict(list)
    wanted = set(results)

    def reads(rows: Rows, form: ActivationLayout) -> None:
        own = forms[rows.buffer, rows.offset, rows.width]
        if form not in own:
            own.append(form)

    for operation in weighed.operations:
        match operation:
            case Product(source=rows, is_exact=is_exact):
                packed = packed_of(weighed.matrices, operation)
                reads(rows, prepared_for(packed.form, shape, is_exact=is_exact))
            case Experts(source=rows, scores=scores, shared=shared, share=share):
                for name, _ in operation.products[:-1]:
                    reads(rows, prepared_for(weighed.matrices[name].form, shape))
                wanted |= {one.buffer for one in (scores, shared, share) if one is not None}
            case RowOperation() | Attention() | Convolution():
                wanted |= {rows.buffer for rows in sources(operation)}
    return dict(forms), wanted


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
