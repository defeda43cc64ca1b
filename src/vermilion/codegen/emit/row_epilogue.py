"""What follows a matrix product: the expression over a tile's sums, and the store, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Value
from vermilion.codegen.emit.register_tile import RegisterTile
from vermilion.codegen.emit.walk import Matrices
from vermilion.codegen.tensor import STORAGE_BYTES
from vermilion.ir.expression import Apply, Convert, Expression

# Operations from which on an expression is written once, in a loop over a tile's rows, rather than
# for each vector: LLVM would interleave all of them and spill.
_MANY_OPERATIONS = 6


@dataclass(frozen=True)
class RowEpilogue:
    """The expression over a tile's sums, and where its operands and result lie.

    The first access and pointer are the output's. `mask` is that of the last vector.
    """

    f: Function
    arithmetic: Arithmetic
    accesses: Sequence[Matrices]
    pointers: Sequence[Value]
    expression: Expression
    mask: Value | None

    def write(self, tile: RegisterTile) -> None:
        """Write it for every vector of the tile."""
        if tile.rows > 1 and weight_of(self.expression) >= _MANY_OPERATIONS:
            self._write_loop(tile)
            return
        shared: dict[tuple[int, int], Value] = {}
        for y, slots in enumerate(tile.accumulators):
            moved = [
                self.f.at(pointer, y * access.row * STORAGE_BYTES[access.storage])
                for access, pointer in zip(self.accesses, self.pointers, strict=True)
            ]
            self._row([slot.get() for slot in slots], moved, shared)

    def _write_loop(self, tile: RegisterTile) -> None:
        f, lanes = self.f, self.arithmetic.lanes
        row_bytes = tile.vectors * lanes * 4
        sums = f.scratch(tile.rows * row_bytes)
        for y, slots in enumerate(tile.accumulators):
            for n, slot in enumerate(slots):
                f.store(slot.get(), sums, y * row_bytes + n * lanes * 4, align=64)
        type_ = self.arithmetic.type("float")
        with f.loop(0, tile.rows) as row:
            here = f.at(sums, f.multiply(row, row_bytes))
            totals = [f.load(type_, here, n * lanes * 4, align=64) for n in range(tile.vectors)]
            moved = [
                f.at(pointer, f.multiply(row, access.row * STORAGE_BYTES[access.storage]))
                for access, pointer in zip(self.accesses, self.pointers, strict=True)
            ]
            self._row(totals, moved, {})

    def _row(
        self,
        totals: Sequence[Value],
        pointers: Sequence[Value],
        shared: dict[tuple[int, int], Value],
    ) -> None:
        """Write one row; `shared` are operands that are the same for every row."""
        output, *operands = self.accesses
        lanes = self.arithmetic.lanes
        for n, total in enumerate(totals):
            mask = self.mask if n == len(totals) - 1 else None

            def operand(
                index: int, n: int = n, total: Value = total, mask: Value | None = mask
            ) -> Value:
                if index == 0:
                    return total
                access = operands[index - 1]
                key = (index, n if access.column else 0)
                if not access.row and key in shared:
                    return shared[key]
                value = access.load(self.f, self.arithmetic, pointers[index], (0, n * lanes), mask)
                if not access.row:
                    shared[key] = value
                return value

            result = self.arithmetic.evaluate(self.expression, operand)
            place = self.f.at(pointers[0], n * lanes * STORAGE_BYTES[output.storage])
            self.arithmetic.store(output.storage, result, place, mask=mask)


def weight_of(expression: Expression) -> int:
    """Return roughly how many instructions an expression is, counted where they are many."""
    match expression:
        case Apply():
            own = _WEIGHTS.get(expression.operation, 1)
            return own + sum(weight_of(argument) for argument in expression.arguments)
        case Convert():
            return weight_of(expression.argument)
        case _:
            return 0


_WEIGHTS = dict.fromkeys(
    ("exp", "log", "tanh", "erf", "one_plus_erf", "sigmoid", "softplus", "pow"), 20
)
