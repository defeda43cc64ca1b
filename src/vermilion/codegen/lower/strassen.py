"""Matrix products with seven multiplications of quarters instead of eight.

Both sides are cut into quarters; sums of quarters are multiplied, and the result's quarters are
sums of those products. The right side's sums are made at compile time, so only constant ones are
multiplied so. It costs an eighth fewer multiply-adds, passes over the left side and the products,
and weights that are 7/4 as large.

Source: Strassen 1969, "Gaussian elimination is not optimal".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.map import map_step
from vermilion.codegen.isa import Isa
from vermilion.codegen.lower.context import Lowering, operations_of
from vermilion.codegen.lower.gemm_operands import RightSide, packed, panels_key
from vermilion.codegen.lower.matmul_step import matmul_step, tile_of
from vermilion.codegen.numeric import NUMERICS
from vermilion.codegen.strassen import PRODUCTS, RESULTS, Sum
from vermilion.codegen.tensor import View, allocate
from vermilion.codegen.tile import Tile
from vermilion.ir.expression import (
    Apply,
    Convert,
    Element,
    Expression,
    Operand,
    apply,
)
from vermilion.ir.symbolic import is_known, larger, lesser

Array = NDArray[Any]
# Vectors that a core moves through its second-level cache in a cycle, the sums included.
_VECTORS_A_CYCLE = 0.55
# Cycles of two more steps: their starts, and what one core has to fetch from another's cache. Found
# by trying: below it, two workers lose what one gains.
_STEP_CYCLES = 36_000.0
_LEAST_ROWS = 64
# Weights up to this size are kept plain too where only a run has the rows: few rows of MiniLM are
# multiplied 8 % faster so (1×32), for 42 MB more of packed weights.
_TWICE_BYTES = 4 * 1024 * 1024


def least_rows(depth: int, columns: int, isa: Isa) -> int | None:
    """Return from how many rows on seven products are cheaper, None where they never are.

    What they save pays for the passes they need.
    """
    if depth % 2 or columns % (2 * isa.lanes):
        return None
    saved = depth * columns / 8 / (2 * isa.lanes)
    moved = (2.75 * depth + 3.5 * columns) / isa.lanes / _VECTORS_A_CYCLE
    if saved <= moved:
        return None
    return max(_LEAST_ROWS, math.ceil(_STEP_CYCLES / (saved - moved)))


def is_cheaper(rows: int, depth: int, columns: int, isa: Isa) -> bool:
    """Say whether seven products are cheaper for so many rows."""
    least = least_rows(depth, columns, isa)
    return least is not None and rows % 2 == 0 and rows >= least


def halved_axis(shape: Sequence[int]) -> int | None:
    """Return the first dimension of rows that may have two equal halves.

    A batch before other rows is not halved: what is no number in one entry would reach another.
    """
    rows = shape[:-1]
    for axis in range(len(rows) > 1, len(rows)):
        if not is_known(rows[axis]) or rows[axis] > 1:
            return axis if not is_known(rows[axis]) or rows[axis] % 2 == 0 else None
    return None


def steps_for_any_rows(
    lowering: Lowering,
    left: View,
    right: Array,
    key: str,
    target: View,
    operands: Sequence[View],
    expression: Expression,
    nodes: Sequence[ir.Node],
    least: int,
) -> None:
    """Add the steps of a product whose rows only a run has.

    Seven products from `least` rows on, where they have two halves; else whole rows. Small weights
    are there for both, of large ones whole rows read the sums that seven products have. Shapes as
    in `strassen_steps`.
    """
    axis = halved_axis(left.shape)
    assert axis is not None, "rows that have no halves"
    has_halves = 1 - left.shape[axis] % 2
    is_long = lesser(1, math.prod(left.shape[:-1]) // least)
    whole = left, right, key, target, operands, expression, nodes
    with lowering.only(is_long * has_halves):
        strassen_steps(lowering, *whole)
    with lowering.only(1 - is_long * has_halves):
        (_plain_rows if right.nbytes <= _TWICE_BYTES else _whole_rows)(lowering, *whole)


def _plain_rows(
    lowering: Lowering,
    left: View,
    right: Array,
    key: str,
    target: View,
    operands: Sequence[View],
    expression: Expression,
    nodes: Sequence[ir.Node],
) -> None:
    """Add a product with weights of its own."""
    side = RightSide((right.shape[0], right.shape[1]), array=right, name=key)
    numeric, dense = NUMERICS["f32"], _dense(lowering, left)
    lowering.add(
        matmul_step(lowering, dense, side, numeric, target, operands, expression, nodes)
    )  # fmt: skip


def _whole_rows(
    lowering: Lowering,
    left: View,
    right: Array,
    key: str,
    target: View,
    operands: Sequence[View],
    expression: Expression,
    nodes: Sequence[ir.Node],
) -> None:
    """Add a product with the sums of weights that seven products have, in one step.

    With left halves a and b: (a + b) · B0 + b · (B2 - B0) and (a + b) · B3 + a · (B1 - B3) are the
    halves of the result. The two right sums of each side of the plus lie one after the other.
    """
    numeric = NUMERICS["f32"]
    side, tile = _right_side(lowering, left, right, key)
    panels = packed(lowering, side, numeric, tile)
    _, depth, columns = side.shape
    matrix = panels.elements // len(PRODUCTS)
    first, second = (panels.sliced(0, at * matrix, 2 * matrix) for at in (1, 3))
    shape = (2, *(1 for _ in target.shape[2:]), depth, columns)
    dense = _dense(lowering, left)
    both = _row_sums(lowering, dense)
    lowering.add(
        matmul_step(
            lowering, both, RightSide(shape, panels=first), numeric, _in_halves(target),
            [_in_halves(view) for view in operands], expression, nodes, tile=tile,
            second=(_in_halves(dense, is_last_first=True), second),
        )
    )  # fmt: skip


def _in_halves(view: View, *, is_last_first: bool = False) -> View:
    """Return the halves of rows one after the other: (…rows, N) → (2, …rows, N / 2)."""
    *rows, columns = view.shape
    step = columns // 2 * view.strides[-1]
    return replace(
        view,
        shape=(2, *rows, columns // 2),
        strides=(-step if is_last_first else step, *view.strides),
        offset=view.offset + (step if is_last_first else 0),
    )


def _dense(lowering: Lowering, left: View) -> View:
    """Return a left side whose rows lie side by side, copied once for all products of a tensor."""
    if left.strides[-1] == 1:
        return left
    key = (left, f"dense {lowering.only_if}")
    if key not in lowering.left_sums:
        lowering.left_sums[key] = lowering.copied(left)
    return lowering.left_sums[key]


def _row_sums(lowering: Lowering, left: View) -> View:
    """Return the sum of the halves of every row, once for all products of one tensor."""
    key = (left, f"rows {lowering.only_if}")
    if key not in lowering.left_sums:
        halves, name = _in_halves(left), f"{left.buffer.name} halves"
        sums = allocate(name, "f32", halves.shape[1:])
        parts = [_of(halves, number) for number in (0, 1)]
        lowering.add(map_step(parts, [sums], [_sum(((0, 1), (1, 1)))], [name]))
        lowering.left_sums[key] = sums
    return lowering.left_sums[key]


def _right_side(lowering: Lowering, left: View, right: Array, key: str) -> tuple[RightSide, Tile]:
    """Return the weights of seven products, made when they are packed, and the tile of them."""
    depth, columns = right.shape[0] // 2, right.shape[1] // 2
    rows = math.prod(left.shape[:-1]) // 2
    tile = tile_of(rows, depth, columns, NUMERICS["f32"], lowering.isa)
    name, shape = f"{key} quarters", (len(PRODUCTS), depth, columns)
    panels = lowering.packed.get(panels_key(name, NUMERICS["f32"], tile))
    if panels is not None:
        return RightSide(shape, panels=panels), tile
    return RightSide(shape, array=_right_sums(right), name=name), tile


def strassen_steps(
    lowering: Lowering,
    left: View,
    right: Array,
    key: str,
    target: View,
    operands: Sequence[View],
    expression: Expression,
    nodes: Sequence[ir.Node],
) -> None:
    """Add the steps of one product.

    Shapes: left (…rows, K), right (K, N), target and operands (…rows, N); rows have a
    `halved_axis`, and K and N are even. `key` names the right side.
    """
    axis = halved_axis(left.shape)
    assert axis is not None, "rows that have no halves"
    names = tuple(str(node.name) for node in nodes)
    sums = _left_sums(lowering, left, axis)
    _, *rest, depth = sums.shape
    columns = target.shape[-1] // 2
    rows = math.prod(rest)
    products = allocate(f"{names[0]} products", "f32", (len(PRODUCTS), rows, columns))
    flat = sums.reshaped((len(PRODUCTS), rows, depth))
    assert flat is not None, "a new tensor takes any shape"
    side, tile = _right_side(lowering, left, right, key)
    step = matmul_step(
        lowering, flat, side, NUMERICS["f32"], products, [], Operand(0), (), tile=tile
    )
    lowering.add(replace(step, nodes=(f"{names[0]} products",)))
    parts = []
    for number in range(len(PRODUCTS)):
        part = _of(products, number).reshaped((*rest, columns))
        assert part is not None, "a new tensor takes any shape"
        parts.append(part)
    # Each quarter has operands of its own, after the products that all share.
    mine = [_quarters(view.broadcast(target.shape), axis) for view in operands]
    views = [quarters[number] for number in range(len(RESULTS)) for quarters in mine]
    expressions = [
        _renumbered(expression, _sum(terms), len(parts) - 1 + number * len(mine))
        for number, terms in enumerate(RESULTS)
    ]
    lowering.add(
        map_step(
            [*parts, *views], _quarters(target, axis), expressions, names,
            operations_of(list(nodes)),
        )
    )  # fmt: skip


def _left_sums(lowering: Lowering, left: View, axis: int) -> View:
    """Return the left sums, once for all products of one tensor. Shape: (7, …rows, K / 2)."""
    key = (left, f"quarters {lowering.only_if}")
    if key not in lowering.left_sums:
        quarters = _quarters(left, axis)
        sums = allocate(f"{left.buffer.name} sums", "f32", (len(PRODUCTS), *quarters[0].shape))
        lowering.add(
            map_step(
                quarters, [_of(sums, number) for number in range(len(PRODUCTS))],
                [_sum(one) for one, _ in PRODUCTS], [f"{left.buffer.name} sums"],
            )
        )  # fmt: skip
        lowering.left_sums[key] = sums
    return lowering.left_sums[key]


def _of(view: View, number: int) -> View:
    one = view.sliced(0, number, 1)
    return replace(one, shape=one.shape[1:], strides=one.strides[1:])


def _quarters(view: View, axis: int) -> list[View]:
    """Return the quarters of rows and columns; of what repeats, the same again."""
    # Where a run has one row or an odd number, what is made of these views is left out; they lie
    # inside all the same.
    halves, rows = [], view.shape[axis]
    size = larger(1, rows // 2)
    for first in (0, rows - size):
        half = view.sliced(axis, first, size)
        width = view.shape[-1] // 2
        halves += [half.sliced(-1, second * width, width) for second in (0, 1)]
    return halves


def _right_sums(right: Array) -> Array:
    """Return the right sums; none has more than two terms, so each is rounded once.

    Shapes: (K, N) → (7, K / 2, N / 2).
    """
    depth, columns = right.shape[0] // 2, right.shape[1] // 2
    quarters = [
        right[y * depth : (y + 1) * depth, x * columns : (x + 1) * columns]
        for y in (0, 1)
        for x in (0, 1)
    ]
    sums = np.empty((len(PRODUCTS), depth, columns), np.float32)
    for target, (_, terms) in zip(sums, PRODUCTS, strict=True):
        (first, _), *rest = terms
        target[:] = quarters[first]
        for at, sign in rest:
            (np.add if sign > 0 else np.subtract)(target, quarters[at], out=target)
    return sums


def _sum(terms: Sum) -> Expression:
    total: Expression = Operand(terms[0][0])
    for at, sign in terms[1:]:
        total = apply("add" if sign > 0 else "sub", total, Operand(at))
    return total


def _renumbered(expression: Expression, total: Expression, shift: int) -> Expression:
    """Put `total` in the place of operand 0, and move the other operands by `shift`."""
    match expression:
        case Operand():
            if expression.index == 0:
                return total
            return replace(expression, index=expression.index + shift)
        case Element():
            return replace(expression, operand=expression.operand + shift)
        case Apply():
            arguments = tuple(_renumbered(a, total, shift) for a in expression.arguments)
            return replace(expression, arguments=arguments)
        case Convert():
            return replace(expression, argument=_renumbered(expression.argument, total, shift))
        case _:
            return expression
