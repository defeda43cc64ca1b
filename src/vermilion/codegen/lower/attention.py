"""Softmax between two matrix products, as one kernel without the matrix of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from vermilion.codegen.emit.attention import AttentionSpec
from vermilion.codegen.emit.matmul import Panels
from vermilion.codegen.emit.walk import Access, matrices
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering, operations_of
from vermilion.codegen.lower.elementwise import GroupExpression
from vermilion.codegen.lower.gemm_operands import (
    RightSide,
    as_f32,
    common_numeric,
    is_in_place,
    packed,
    right_side,
)
from vermilion.codegen.lower.groups import Attention, Group
from vermilion.codegen.lower.matmul import close_rows, open_rows, row_operand
from vermilion.codegen.lower.matmul_step import choose_patch
from vermilion.codegen.lower.patterns.rounded_attention import MOST_KEYS
from vermilion.codegen.numeric import Numeric
from vermilion.codegen.tensor import View, contiguous_strides
from vermilion.codegen.tile import Patch, Tile
from vermilion.ir.attributes import integer
from vermilion.ir.expression import Expression, Operand
from vermilion.ir.opset import is_operator, only_reader, static_shape
from vermilion.ir.symbolic import is_known, typical

# Rows whose scores stay near; keys up to which a row of scores is one block, and the block beyond.
_BLOCK_ROWS = 32
_WHOLE_KEYS = 512
_BLOCK_KEYS = 256
# Scores of one block where it has all keys: what leaves room for keys in a second-level cache.
_BLOCK_BYTES = 256 * 1024


def find_attentions(graph: ir.Graph, groups: Mapping[ir.Node, Group]) -> dict[ir.Node, Attention]:
    """Return every attention by the product that ends it."""
    found: dict[ir.Node, Attention] = {}
    for node in graph:
        if is_operator(node, "Softmax"):
            attention = _around(node, groups)
            if attention is not None:
                found[attention.context] = attention
    return found


def _around(softmax: ir.Node, groups: Mapping[ir.Node, Group]) -> Attention | None:
    source = softmax.inputs[0]
    shape = static_shape(source)
    weights, context = _after(softmax, groups)
    if source is None or shape is None or len(shape) < 2 or only_reader(source) is None:
        return None
    if integer(softmax, "axis", -1) % len(shape) != len(shape) - 1:
        return None
    producer = source.producer()
    group = groups.get(producer) if producer is not None else None
    if group is None or group.root is not producer or not is_operator(group.anchor, "MatMul"):
        return None
    if not is_operator(context, "MatMul") or context is None or context not in groups:
        return None
    result = static_shape(context.outputs[0]) or ()
    # The scores are the left side, and each matrix of them is read once.
    left = softmax if weights is None else weights.root
    is_left = context.inputs[0] is left.outputs[0] and groups[context].anchor is context
    anchor = group.anchor
    assert anchor is not None
    ranks = {len(static_shape(v) or ()) for v in (*anchor.inputs, *context.inputs)}
    if not is_left or min(ranks) < 2 or result[:-2] != shape[:-2]:
        return None
    depth = (static_shape(anchor.inputs[0]) or ())[-1]
    if not (is_known(depth) and is_known(result[-1])):
        return None  # written for heads of a known width
    return Attention(group, softmax, context, weights)


def _after(
    softmax: ir.Node, groups: Mapping[ir.Node, Group]
) -> tuple[Group | None, ir.Node | None]:
    """Return what is done to the results of a softmax, if anything, and the product that reads it.

    It reads nothing else, and a few rows of all scores are at hand when it is done.
    """
    reader = only_reader(softmax.outputs[0])
    group = None if reader is None else groups.get(reader)
    if group is None or group.anchor is not None:
        return None, reader
    keys = (static_shape(softmax.outputs[0]) or (0,))[-1]
    if group.reads != {softmax.outputs[0]} or not is_known(keys) or keys > MOST_KEYS:
        return None, None
    return group, only_reader(group.root.outputs[0])


def emit_attention(lowering: Lowering, group: Group, attention: Attention) -> None:
    """Write the attention and the group that its last product anchors."""
    anchor = attention.scores.anchor
    assert anchor is not None
    left, right, last = anchor.inputs[0], anchor.inputs[1], attention.context.inputs[1]
    assert left is not None and right is not None and last is not None  # noqa: PT018
    query, key, value, numeric = _sides(lowering, left, right, last)
    scored = attention.scores.root.outputs[0]
    scores_shape = static_shape(scored) or ()
    score = GroupExpression(lowering, attention.scores, Operand(0))
    score_expression = score.of(scored)
    root = group.root.outputs[0]
    build = GroupExpression(lowering, group, Operand(0))
    expression = build.of(root)
    shape = static_shape(attention.context.outputs[0]) or ()
    result, target = open_rows(lowering, root, shape)
    score_views = [row_operand(lowering, v, scores_shape, scores_shape) for v in score.views]
    views = [row_operand(lowering, v, shape, shape) for v in build.views]
    weight_expression, rounding = _of_weights(lowering, attention)
    nodes = [*attention.scores.nodes, attention.softmax, *rounding, *group.nodes]
    shapes = _Shapes(scores_shape, shape, query.shape[-1])
    tiles = _tiles(lowering, shapes, numeric, is_whole=weight_expression is not None)
    # Panels of one vector each need no other width at the end, which nobody knows yet.
    panel = tiles.scores if is_known(shapes.scores[-1]) else replace(tiles.scores, vectors=1)
    key_view = packed(lowering, key, numeric, panel)
    in_place = is_in_place(value, numeric)
    value_view = value.view if in_place else packed(lowering, value, numeric, tiles.context)
    assert value_view is not None
    outer = _sizes(shape[:-2])
    spec = AttentionSpec(
        numeric=numeric.name, lanes=lowering.isa.lanes, outer=outer,
        rows=shape[-2], keys=scores_shape[-1], depth=shapes.depth, width=shape[-1],
        query=_walk(query, (*shape[:-1], shapes.depth)),
        key=Panels(_panel_strides(key, shape)),
        value=_walk(value_view, (*shape[:-2], *value.shape[-2:]))
        if in_place else Panels(_panel_strides(value, shape)),
        output=_walk(target, shape),
        score_operands=tuple(_walk(v, scores_shape) for v in score_views),
        operands=tuple(_walk(v, shape) for v in views),
        score_expression=score_expression, expression=expression,
        score_tile=Patch(tiles.scores.columns, tiles.scores.vectors),
        context_tile=Patch(tiles.context.columns, tiles.context.vectors),
        block_rows=tiles.block_rows, block_keys=tiles.block_keys,
        weight_expression=weight_expression,
    )  # fmt: skip
    arguments = (query, key_view, value_view, target, *score_views, *views)
    names = tuple(str(node.name) for node in nodes)
    lowering.add(Step(spec, arguments, (target,), names, operations_of(nodes)))
    close_rows(lowering, result, target, group.root)


def _of_weights(
    lowering: Lowering, attention: Attention
) -> tuple[Expression | None, Sequence[ir.Node]]:
    """Return what is computed of a weight, operand 0, before it is multiplied, and its nodes."""
    if attention.weights is None:
        return None, []
    build = GroupExpression(lowering, attention.weights, Operand(0))
    build.give(attention.softmax.outputs[0], Operand(0))
    expression = build.of(attention.weights.root.outputs[0])
    assert not build.views, "the weights of an attention are computed from one tensor"
    return expression, attention.weights.nodes


def _sides(
    lowering: Lowering, left: ir.Value, right: ir.Value, last: ir.Value
) -> tuple[View, RightSide, RightSide, Numeric]:
    """Return query, keys and values in one format that is multiplied here."""
    query, key = lowering.demand(left), right_side(lowering, right)
    value = right_side(lowering, last)
    query, key, numeric = common_numeric(lowering, query, key)
    if value.view is not None and value.view.storage != query.storage:
        value = RightSide(value.shape, view=as_f32(lowering, value.view))
        query, key, numeric = common_numeric(lowering, as_f32(lowering, query), key)
    if query.strides[-1] != 1 and query.shape[-1] > 1:
        query = lowering.copied(query)
    return query, key, value, numeric


@dataclass(frozen=True)
class _Shapes:
    scores: tuple[int, ...]
    context: tuple[int, ...]
    depth: int


@dataclass(frozen=True)
class _Tiles:
    scores: Tile
    context: Tile
    block_rows: int
    block_keys: int


def _tiles(
    lowering: Lowering, shapes: _Shapes, numeric: Numeric, *, is_whole: bool = False
) -> _Tiles:
    """Choose tiles and blocks; where all keys have to be one block, of as many rows as fit."""
    rows, keys, width = map(typical, (shapes.scores[-2], shapes.scores[-1], shapes.context[-1]))
    isa, group = lowering.isa, numeric.group
    most_rows = min(_BLOCK_ROWS, max(1, _BLOCK_BYTES // (4 * keys))) if is_whole else _BLOCK_ROWS
    patch_rows = min(rows, most_rows)
    scores = choose_patch(patch_rows, keys, -(-shapes.depth // group), isa)
    block_keys = keys
    panel = scores.vectors * isa.lanes
    if not is_known(shapes.scores[-1]):
        block_keys = _WHOLE_KEYS // panel * panel
    elif keys > _WHOLE_KEYS and not is_whole:
        block_keys = max(1, _BLOCK_KEYS // panel) * panel
    block_rows = min(rows, max(1, most_rows // scores.columns) * scores.columns)
    context = choose_patch(block_rows, width, -(-min(keys, block_keys) // group), isa)
    return _Tiles(scores, context, block_rows, block_keys)


def _sizes(outer: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in outer if size != 1)


def _walk(view: View, shape: tuple[int, ...]) -> Access:
    """Return how a tensor is walked, dimensions of one element left out."""
    walk = matrices(view, shape)
    *outer, row, column = walk.strides
    kept = tuple(s for size, s in zip(shape[:-2], outer, strict=True) if size != 1)
    return Access(walk.storage, (*kept, row, column))


def _panel_strides(side: RightSide, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return for each dimension of the batch how many packed matrices lie between its entries."""
    batch = shape[:-2]
    own = contiguous_strides(side.batch)
    wide = [0] * (len(batch) - len(own)) + [
        0 if size == 1 else stride for size, stride in zip(side.batch, own, strict=True)
    ]
    return tuple(s for size, s in zip(batch, wide, strict=True) if size != 1)
