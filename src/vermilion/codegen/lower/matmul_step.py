"""One matrix product as a step: its register tile, how its tensors are walked, its segments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from vermilion.codegen.emit.matmul import MatmulSpec, Panels
from vermilion.codegen.emit.walk import Access
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering, operations_of
from vermilion.codegen.lower.gemm_operands import RightSide, is_in_place, packed
from vermilion.codegen.numeric import Numeric
from vermilion.codegen.tensor import View, contiguous_strides
from vermilion.codegen.tile import Tile, candidates, cost
from vermilion.ir.expression import Expression
from vermilion.ir.symbolic import is_known, larger, lesser, same, typical

# Rows of the left side that pass by each panel before the next.
SEGMENT_ROWS = 128
# Panels of weights from this size on come from memory: a unit asks for the next while it computes.
_FAR_BYTES = 512 * 1024
_PREFETCH_PATCHES = 2
# Units of work below which rows are split, so that two or four workers have enough.
_MANY_UNITS = 16
# Rows that a tile is chosen for where only a run has them, at least, and how many counts: usual
# ones, half of them, and so on.
_FEW_ROWS, _HALVINGS = 8, 4


def matmul_step(
    lowering: Lowering,
    left: View,
    right: RightSide,
    numeric: Numeric,
    target: View,
    operands: Sequence[View],
    expression: Expression,
    nodes: Sequence[ir.Node],
    *,
    tile: Tile | None = None,
    second: tuple[View, View] | None = None,
) -> Step:
    """Make the step of one product, with the packing of its right side before it if needed.

    `second` are a left side like the first and panels like those of the right side, whose product
    is part of the sum.
    """
    *batch, rows, columns = target.shape
    depth = left.shape[-1]
    in_place = is_in_place(right, numeric)
    seconds = second or ()
    lefts = [view.broadcast((*batch, rows, depth)) for view in (left, *seconds[:1])]
    walks = [lefts[0], target, *operands, *lefts[1:]]
    left_walks = (0, 2 + len(operands))
    matrices = contiguous_strides(right.batch) if not in_place else right.view.strides[:-2]  # type: ignore[union-attr]
    missing = len(batch) - len(right.batch)
    right_outer = [0] * missing + [
        0 if size == 1 else stride for size, stride in zip(right.batch, matrices, strict=True)
    ]
    dims = _merged(
        [*batch, rows],
        [[*view.strides[:-2], _row_stride(view)] for view in walks] + [[*right_outer, 0]],
    )
    *outer, (rows, _) = dims
    usual_rows = _usual(rows)
    tile = tile or tile_of(rows, depth, columns, numeric, lowering.isa)
    left_walk, *walked = [
        Access(
            view.storage, (*(d[1][i] for d in dims), 1 if i in left_walks else _column_stride(view))
        )
        for i, view in enumerate(walks)
    ]  # fmt: skip
    strides = tuple(d[1][-1] for d in outer)
    if in_place:
        assert right.view is not None
        source = right.view
        side: Access | Panels = Access("f32", (*strides, right.view.strides[-2], 1))
    else:
        source, side = packed(lowering, right, numeric, tile), Panels(strides)
    matrices_count = math.prod(size for size, _ in outer)
    segment_rows = _segment_rows(
        typical(matrices_count), rows, typical(columns), tile, lowering.isa.lanes
    )
    is_far = right.view is None and source.buffer.size_bytes > _FAR_BYTES
    spec = MatmulSpec(
        numeric=numeric.name, lanes=lowering.isa.lanes,
        outer=tuple(size for size, _ in outer), rows=rows, columns=columns, depth=depth,
        left=left_walk, right=side, output=walked[0],
        operands=tuple(walked[1 : 1 + len(operands)]),
        expression=expression, tile_rows=tile.columns, tile_vectors=tile.vectors,
        segment_rows=segment_rows,
        prefetch=is_far
        and min(usual_rows, typical(segment_rows)) >= _PREFETCH_PATCHES * tile.columns,
        second=walked[-1] if second else None,
    )  # fmt: skip
    return Step(
        spec, (left, source, target, *operands, *seconds), (target,),
        tuple(str(node.name) for node in nodes), operations_of(list(nodes)),
    )  # fmt: skip


def tile_of(rows: int, depth: int, columns: int, numeric: Numeric, isa: Isa) -> Tile:
    """Return the register tile of a product; sizes that only a run has count as usual ones."""
    steps = -(-typical(depth) // numeric.group)
    choose = choose_patch if is_known(rows) else _choose_for_any_rows
    return choose(_usual(rows), typical(columns), steps, isa)


def _usual(rows: int) -> int:
    return rows if is_known(rows) else max(typical(rows), _FEW_ROWS)


def choose_patch(rows: int, columns: int, steps: int, isa: Isa) -> Tile:
    """Return the register tile of a product; what it loads a step is counted beside its cycles.

    Measured on Zen 5, 128×768×768: 8×3 is 2 % faster than 13×2, 3 % faster than 6×4.
    """
    tiles = candidates(1, rows, columns, isa)
    return min(tiles, key=lambda tile: _estimate(tile, rows, columns, steps, isa))


def _choose_for_any_rows(usual: int, columns: int, steps: int, isa: Isa) -> Tile:
    """Return the register tile that is best over the usual rows, half of them, and so on.

    What is left of rows is done in powers of two. Measured on Zen 5, 32×384×384: tiles of 9 rows,
    which are best for 256, take 10 % longer than those of 8.
    """

    def estimate(tile: Tile) -> float:
        total = 0.0
        for rows in (max(1, usual >> halved) for halved in range(_HALVINGS)):
            whole = rows - rows % tile.columns
            bits = range(tile.columns.bit_length())
            heights = [1 << bit for bit in bits if (rows - whole) >> bit & 1]
            cycles = _estimate(tile, whole, columns, steps, isa) if whole else 0.0
            for height in heights:
                cycles += _estimate(replace(tile, columns=height), height, columns, steps, isa)
            total += cycles / rows
        return total

    return min(candidates(1, usual, columns, isa), key=estimate)


def _estimate(tile: Tile, rows: int, columns: int, steps: int, isa: Isa) -> float:
    cycles = cost(tile, 1, rows, columns, steps, isa)
    blocks = -(-columns // (tile.vectors * isa.lanes)) * -(-rows // tile.columns)
    return cycles + blocks * steps * (0.06 * tile.columns + 0.15 * tile.vectors)


def _segment_rows(matrices: int, rows: int, columns: int, tile: Tile, lanes: int) -> int:
    """Return the rows of a unit: as many as stay near, fewer where there would be few units."""
    blocks = matrices * -(-columns // (tile.vectors * lanes))
    if not is_known(rows):
        most = max(1, SEGMENT_ROWS // tile.columns)
        wanted = -(-_MANY_UNITS // blocks)
        if wanted == 1:
            return most * tile.columns
        patches = larger(2, -(-rows // (wanted * tile.columns)))
        return lesser(most, patches) * tile.columns
    patches = max(1, min(SEGMENT_ROWS, rows) // tile.columns)
    while patches > 2 and blocks * -(-rows // (patches * tile.columns)) < _MANY_UNITS:
        patches = -(-patches // 2)
    return patches * tile.columns


def _row_stride(view: View) -> int:
    return view.strides[-2] if view.shape[-2] > 1 else 0


def _column_stride(view: View) -> int:
    return view.strides[-1] if view.shape[-1] > 1 or view.strides[-1] in (0, 1) else 0


def _merged(
    sizes: Sequence[int], strides: Sequence[Sequence[int]]
) -> list[tuple[int, tuple[int, ...]]]:
    """Return dimensions in order, neighbours merged where every tensor walks them as one.

    The last is the rows'; it is there even if it has one element. The last of `strides` is the
    right side's.
    """
    dims = [
        (size, tuple(0 if size == 1 else s[axis] for s in strides))
        for axis, size in enumerate(sizes)
    ]
    merged = [dims[-1]]
    for size, outer in reversed(dims[:-1]):
        inner_size, inner = merged[0]
        if size == 1:
            continue
        # Rows share one right side: a dimension along which it changes is not one of rows.
        if inner_size == 1 and not (len(merged) == 1 and outer[-1]):
            merged[0] = (size, outer)
        elif all(same(o, i * inner_size) for o, i in zip(outer, inner, strict=True)):
            merged[0] = (size * inner_size, inner)
        else:
            merged.insert(0, (size, outer))
    return merged
