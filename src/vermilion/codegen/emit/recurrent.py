"""One step in time of a recurrent cell: its gates' products with the state, and what follows.

    for each block of hidden units:
        gate[g][unit] = Σ over k of state[k] × weights[g][unit][k]
        output[j][unit] = expression[j](gates, operands)

All gates of a unit are computed together, so that what mixes them stays in registers. All steps of
a sequence may be one call, of one worker: where only a run says how many there are, or many are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.epilogue import Epilogue
from vermilion.codegen.emit.register_tile import RegisterTile, Side
from vermilion.codegen.emit.values import Value
from vermilion.codegen.emit.walk import Access, begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES
from vermilion.ir.expression import Expression
from vermilion.ir.symbolic import is_known

# Sums that hide the latency of a fused multiply-add: 4 cycles, 2 started in each.
_SUMS = 8


@dataclass(frozen=True)
class RecurrentSpec:
    """`outputs[j] = expressions[j](gates of the product, operands)` for each row of the batch.

    The expressions' first `gates` operands are the products. Tensors are walked by row and unit.
    Arguments: state (float32), packed weights, operands, outputs; hidden units lie side by side in
    all of them.
    """

    gates: int
    rows: int
    hidden: int
    depth: int
    state_row: int
    operands: tuple[Access, ...]
    outputs: tuple[Access, ...]
    expressions: tuple[Expression, ...]
    # As the vector width is; see `block_vectors`.
    lanes: int
    # Steps in time, the last one first with `is_backward`, and how far each of state, operands and
    # outputs goes on from one to the next, in elements; without strides it is one step.
    times: int = 1
    time_strides: tuple[int, ...] = ()
    is_backward: bool = False

    family = "recurrent"

    @property
    def vectors(self) -> int:
        """Vectors of hidden units in a block."""
        return block_vectors(self.gates)

    @property
    def row_tile(self) -> int:
        """Rows of the batch that share the weights while these are in registers."""
        most = 3 if self.lanes == 16 else 1
        return min(self.rows, most) if is_known(self.rows) else most

    @property
    def _row_tiles(self) -> int:
        return -(-self.rows // self.row_tile)

    @property
    def units(self) -> int:
        """One unit a few rows of the batch and block of hidden units, or one for all steps."""
        return 1 if self.time_strides else self._patches

    @property
    def _patches(self) -> int:
        return self._row_tiles * -(-self.hidden // (self.vectors * self.lanes))

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        count = 2 + len(self.operands) + len(self.outputs)
        f, pointers, units = begin_kernel(module, name, count)
        with f.loop(*units) as unit:
            if not self.time_strides:
                self._patch(f, isa, pointers, unit)
            else:
                with f.loop(0, self.times) as time, f.loop(0, self._patches) as patch:
                    self._patch(f, isa, self._at_time(f, pointers, time), patch)
        f.finish()

    def _at_time(self, f: Function, pointers: Sequence[Value], time: Value) -> list[Value]:
        """Return the pointers of a step in time; the weights stay where they are."""
        at = f.subtract(f.subtract(self.times, 1), time) if self.is_backward else time
        storages = ("f32", *(access.storage for access in (*self.operands, *self.outputs)))
        state, weights, *rest = pointers
        moved = [
            f.at(pointer, f.multiply(at, stride * STORAGE_BYTES[storage]))
            for pointer, stride, storage in zip(
                (state, *rest), self.time_strides, storages, strict=True
            )
        ]
        return [moved[0], weights, *moved[1:]]

    def _patch(self, f: Function, isa: Isa, pointers: Sequence[Value], unit: Value) -> None:
        number, tile = f.divide(unit, self._row_tiles), f.remainder(unit, self._row_tiles)
        first = f.multiply(number, self.vectors * isa.lanes)
        row = f.multiply(tile, self.row_tile)
        for rows, has_rows in self._row_edges(f, row):
            with f.when(has_rows):
                sizes = self._edges(f, first, self.hidden, self.vectors * isa.lanes)
                for size, has_size in sizes:
                    with f.when(has_size):
                        self._block(f, isa, pointers, (row, number, first), (rows, size))

    def _row_edges(self, f: Function, row: Value) -> list[tuple[int, Value]]:
        """Return how many rows a piece from `row` on may have, each with its condition."""
        if is_known(self.rows):
            return self._edges(f, row, self.rows, self.row_tile)
        left = f.subtract(self.rows, row)
        whole = self.row_tile
        some = [(n, f.compare("eq", left, f.index(n))) for n in range(1, whole)]
        return [(whole, f.compare("sge", left, f.index(whole))), *some]

    def _edges(self, f: Function, at: Value, total: int, step: int) -> list[tuple[int, Value]]:
        """Return the sizes that a piece from `at` on may have, each with its condition."""
        rest = total % step
        whole = f.index(total - rest)
        found = [(step, f.compare("slt", at, whole))] if total >= step else []
        return found + ([(rest, f.compare("eq", at, whole))] if rest else [])

    def _block(
        self,
        f: Function,
        isa: Isa,
        pointers: Sequence[Value],
        where: tuple[Value, Value, Value],
        shape: tuple[int, int],
    ) -> None:
        row, number, first = where
        rows, size = shape
        arithmetic = Arithmetic(f, isa.lanes)
        vectors = -(-size // isa.lanes)
        tile = RegisterTile(f, isa, "f32", rows, self.gates * vectors)
        panel_bytes = self.gates * self.vectors * isa.vector_bytes
        panel = f.at(pointers[1], f.multiply(number, self.depth * panel_bytes))
        offsets = [
            (gate * self.vectors + n) * isa.vector_bytes
            for gate in range(self.gates)
            for n in range(vectors)
        ]
        tile.multiply_steps(
            Side(f.at(pointers[0], f.multiply(row, self.state_row * 4)), self.state_row * 4),
            Side(panel, panel_bytes, offsets=offsets, align=min(64, isa.vector_bytes)),
            self.depth,
            in_runs=False,
        )
        tail = size % isa.lanes
        count = 2 + len(self.operands)
        others = [*pointers[count:], *pointers[2:count]]
        for y, slots in enumerate(tile.accumulators):
            for n in range(vectors):
                mask = arithmetic.tail_mask(tail) if tail and n == vectors - 1 else None
                epilogue = Epilogue(
                    arithmetic, self.expressions, self.outputs, self.operands, others
                )
                place = (f.add(row, y), f.add(first, n * isa.lanes))
                epilogue.finish(place, [slot.get() for slot in slots[n::vectors]], mask)


def block_vectors(gates: int) -> int:
    """Return the vectors of hidden units in a block: enough sums with all gates of each."""
    return max(1, _SUMS // gates)


def pack_gates(weights: NDArray[np.float32], lanes: int) -> NDArray[np.float32]:
    """Return weights (gates, hidden, depth) as the kernel reads them: [block][k][gate][lanes]."""
    gates, hidden, depth = weights.shape
    block = block_vectors(gates) * lanes
    blocks = -(-hidden // block)
    padded = np.zeros((gates, blocks * block, depth), np.float32)
    padded[:, :hidden] = weights
    ordered = padded.reshape(gates, blocks, block, depth).transpose(1, 3, 0, 2)
    return np.ascontiguousarray(ordered)
