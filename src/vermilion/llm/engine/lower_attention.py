"""Attention → steps: heads into the cache, and what is read of it."""

from __future__ import annotations

from collections.abc import Sequence

from vermilion.codegen.emit.decoder.cache import CacheForm
from vermilion.codegen.emit.decoder.cached_attention import CachedAttentionSpec
from vermilion.codegen.emit.decoder.heads import HeadsSpec
from vermilion.codegen.emit.decoder.running_softmax import score_unit
from vermilion.codegen.tensor import Buffer, View
from vermilion.llm.engine.description import Attention
from vermilion.llm.engine.join import sources
from vermilion.llm.engine.lowering import SPARE_ROWS, Lowering, whole


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
