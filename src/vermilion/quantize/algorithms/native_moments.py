"""Drawing rows out of tensors and multiplying them with each other, as machine code.

NumPy copies a patch number by number where its channels are neighbours, and its matrix library
knows 256-bit registers only; both took longer than the network itself on its fast kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.register_tile import RegisterTile, Side
from vermilion.codegen.emit.rows import for_vectors
from vermilion.codegen.emit.values import Value, constant
from vermilion.quantize.native_code import LANES, compiled, new_module, wide_isa

# 24 sums, 3 vectors of one row and a number of it in all lanes: 28 of 32 registers.
_VECTORS, _NUMBERS = 3, 8


def _draw(module: Module) -> Function:
    """For each place of each row: what lies there, in runs that go to one block each.

    Nothing is read for a place below 0, which is outside of the image.
    """
    parameters = [("source", "ptr"), ("step", "i64"), ("places", "ptr"), ("count", "i64")]
    parameters += [("blocks", "i64"), ("run", "i64"), ("target", "ptr"), ("block_size", "i64")]
    f = Function(module, "draw", parameters, internal=False)
    source, step, places, count, blocks, run, target, block_size = f.arguments
    arithmetic = Arithmetic(f, LANES)
    is_dense = f.compare("eq", step, constant("i64", 1))
    with f.loop(0, count) as n:
        first = f.load("i64", places, f.multiply(n, 8), align=8)
        is_inside = f.compare("sge", first, constant("i64", 0))
        here = f.at(source, f.multiply(first, 4))
        row = f.multiply(n, run)
        with f.loop(0, blocks) as block:
            start = f.at(here, f.multiply(f.multiply(f.multiply(block, run), step), 4))
            there = f.at(target, f.multiply(f.add(f.multiply(block, block_size), row), 4))

            def load(at: Value, mask: Value | None) -> Value:
                return arithmetic.load("f32", f.at(start, f.multiply(at, 4)), mask=mask)

            def gather(at: Value, mask: Value | None) -> Value:
                place = f.at(start, f.multiply(f.multiply(at, step), 4))
                return arithmetic.load_strided("f32", place, step, mask=mask)

            def zeros(at: Value, mask: Value | None) -> Value:
                return arithmetic.math.number(0.0)

            for is_so, read in (
                (f.binary("and", is_inside, is_dense), load),
                (f.select(is_inside, _not(f, is_dense), Value("i1", "false")), gather),
                (_not(f, is_inside), zeros),
            ):
                with f.when(is_so):
                    _fill(f, arithmetic, there, run, read)
    f.finish()
    return f


def _fill(
    f: Function,
    arithmetic: Arithmetic,
    target: Value,
    size: Value,
    read: Callable[[Value, Value | None], Value],
) -> None:
    def store(at: Value, mask: Value | None, number: int) -> None:
        arithmetic.store("f32", read(at, mask), f.at(target, f.multiply(at, 4)), mask=mask)

    for_vectors(f, arithmetic, size, store)


def _not(f: Function, condition: Value) -> Value:
    return f.binary("xor", condition, Value("i1", "true"))


def _fold(module: Module) -> Function:
    """Right of the diagonal, and some more than that.

    for each block, for each 48 columns j, for each 8 columns i that are not all behind them:
        gram[i][j] += Σ rows[r][i] · rows[r][j]
    """
    parameters = [("rows", "ptr"), ("count", "i64"), ("width", "i64"), ("blocks", "i64")]
    parameters += [("block_size", "i64"), ("gram", "ptr"), ("totals", "ptr")]
    f = Function(module, "fold", parameters, internal=False)
    rows, count, width, blocks, block_size, gram, totals = f.arguments
    arithmetic = Arithmetic(f, LANES)
    row_bytes, last = f.multiply(width, 4), f.subtract(width, 1)
    with f.loop(0, blocks) as block:
        own_rows = f.at(rows, f.multiply(f.multiply(block, block_size), 4))
        own_gram = f.at(gram, f.multiply(f.multiply(block, width), row_bytes))
        own_totals = f.at(totals, f.multiply(block, row_bytes))
        with f.loop(0, width, _VECTORS * LANES) as j:
            left = f.subtract(width, j)
            masks = [arithmetic.tail_mask(f.subtract(left, v * LANES)) for v in range(_VECTORS)]
            right = Side(f.at(own_rows, f.multiply(j, 4)), depth_bytes=row_bytes)
            _add_rows(arithmetic, right, count, f.at(own_totals, f.multiply(j, 4)), masks)
            with f.loop(0, f.minimum(width, f.add(j, _VECTORS * LANES)), _NUMBERS) as i:
                # A column behind the last one stands for the last: what it gives is thrown away.
                columns = [f.minimum(f.add(i, n), last) for n in range(_NUMBERS)]
                offsets = [f.multiply(column, 4) for column in columns]
                tile = RegisterTile(f, wide_isa(), "f32", _NUMBERS, _VECTORS)
                tile.multiply_steps(
                    Side(own_rows, offsets=offsets, depth_bytes=row_bytes),
                    right,
                    count,
                    masks=masks,
                )
                for n, sums in enumerate(tile.accumulators):
                    here = f.at(own_gram, f.multiply(f.add(f.multiply(f.add(i, n), width), j), 4))
                    with f.when(f.compare("slt", f.add(i, n), width)):
                        for v, total in enumerate(sums):
                            place = f.at(here, 4 * LANES * v)
                            before = arithmetic.load("f32", place, mask=masks[v])
                            total.set(arithmetic.math.add(before, total.get()))
                            arithmetic.store("f32", total.get(), place, mask=masks[v])
    f.finish()
    return f


def _add_rows(
    arithmetic: Arithmetic, rows: Side, count: Value, totals: Value, masks: Sequence[Value]
) -> None:
    f, row_bytes = arithmetic.f, rows.depth_bytes
    assert row_bytes is not None, "rows are as long as the caller says"
    sums = [f.slot(arithmetic.math.number(0.0)) for _ in masks]
    with f.loop(0, count) as row:
        here = f.at(rows.pointer, f.multiply(row, row_bytes))
        for v, (total, mask) in enumerate(zip(sums, masks, strict=True)):
            found = arithmetic.load("f32", f.at(here, 4 * LANES * v), mask=mask)
            total.set(arithmetic.math.add(total.get(), found))
    for v, (total, mask) in enumerate(zip(sums, masks, strict=True)):
        arithmetic.store("f32", total.get(), f.at(totals, 4 * LANES * v), mask=mask)


@cache
def _functions() -> dict[str, Callable[..., None]]:
    module = new_module()
    return compiled(_draw(module), _fold(module))


def native_draw(
    source: NDArray[np.float32],
    step: int,
    places: NDArray[np.int64],
    target: NDArray[np.float32],
    first_row: int,
) -> None:
    """Fill rows of `target` from `first_row` on with the numbers of `source` at `places`.

    At a place begins a pixel, whose channels lie `step` numbers apart; below 0 it is all zeros.

    Shapes: places (rows, taps) contiguous, in numbers from the beginning of `source`; target
    (blocks, rows, taps × channels of a block) contiguous.
    """
    blocks, rows, width = target.shape
    taps = places.shape[1]
    _functions()["draw"](
        source.ctypes.data,
        step,
        places.ctypes.data,
        places.size,
        blocks,
        width // taps,
        target.ctypes.data + 4 * first_row * width,
        rows * width,
    )


def native_fold(
    rows: NDArray[np.float32],
    count: int,
    gram: NDArray[np.float32],
    totals: NDArray[np.float32],
) -> None:
    """Add Σ x·xᵀ of the first `count` rows to `gram`; fill `totals` with Σ x.

    Left of the diagonal `gram` holds nothing that could be used.

    Shapes: rows (G, R, K), gram (G, K, K), totals (G, K), all contiguous.
    """
    groups, most, width = rows.shape
    _functions()["fold"](
        rows.ctypes.data,
        count,
        width,
        groups,
        most * width,
        gram.ctypes.data,
        totals.ctypes.data,
    )
