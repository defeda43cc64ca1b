"""What follows a computation in registers: expressions over it and other tensors, and the stores.

A convolution's pixels, the rows of a matrix product, the gates of a recurrent cell, and loops of
elements alone (no sums at all) end in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.register_tile import RegisterTile
from vermilion.codegen.emit.values import Index, Value
from vermilion.codegen.emit.walk import Access
from vermilion.ir.expression import Apply, Constant, Convert, Expression, Operand
from vermilion.ir.symbolic import is_known

# Operations from which on an expression is written once, in a loop over a tile's rows, rather than
# for each vector: LLVM would interleave all of them and spill.
_MANY_OPERATIONS = 6


@dataclass
class Epilogue:
    """`outputs[j] = expressions[j](sums, operands)`: the first operands of expressions are sums.

    `pointers` are the outputs' and then the operands', where the computation begins.
    """

    arithmetic: Arithmetic
    expressions: Sequence[Expression]
    outputs: Sequence[Access]
    operands: Sequence[Access]
    pointers: Sequence[Value]
    # What was loaded, by operand and place: what is the same for all rows is loaded once.
    _loaded: dict[tuple[int, tuple[Index, ...]], Value] = field(default_factory=dict)

    def finish(self, at: Sequence[Index], sums: Sequence[Value], mask: Value | None) -> None:
        """Compute and store one vector, at these indices from where the computation begins."""
        f, first = self.arithmetic.f, len(self.outputs)
        operands = self.pointers[first:]

        def operand(index: int) -> Value:
            if index < len(sums):
                return sums[index]
            number = index - len(sums)
            access = self.operands[number]
            walked = zip(at, access.strides, strict=True)
            key = (number, tuple(i if not is_known(s) or s else 0 for i, s in walked))
            if key not in self._loaded:
                place = access.at(f, operands[number], at)
                self._loaded[key] = access.load(self.arithmetic, place, mask)
            return self._loaded[key]

        results = [
            self.arithmetic.evaluate(one, operand, lambda index: operands[index - len(sums)])
            for one in self.expressions
        ]
        made = zip(self.outputs, self.pointers, self.expressions, results, strict=False)
        for access, pointer, expression, result in made:
            is_exact = not sums and _rounds_nothing(expression)
            place = access.at(f, pointer, at)
            access.store(self.arithmetic, result, place, mask, is_exact=is_exact)

    def write_rows(self, tile: RegisterTile, mask: Value | None) -> None:
        """Write it for every vector of a tile; `mask` is that of the last in a row."""
        if tile.rows > 1 and sum(map(weight_of, self.expressions)) >= _MANY_OPERATIONS:
            self._write_loop(tile, mask)
            return
        for y, slots in enumerate(tile.accumulators):
            self._row(y, [slot.get() for slot in slots], mask)

    def _write_loop(self, tile: RegisterTile, mask: Value | None) -> None:
        f, lanes = self.arithmetic.f, self.arithmetic.lanes
        row_bytes = tile.vectors * lanes * 4
        sums = f.scratch(tile.rows * row_bytes)
        for y, slots in enumerate(tile.accumulators):
            for n, slot in enumerate(slots):
                f.store(slot.get(), sums, y * row_bytes + n * lanes * 4, align=64)
        type_ = tile.accumulators[0][0].get().type  # sums of integers are integers
        with f.loop(0, tile.rows) as row:
            here = f.at(sums, f.multiply(row, row_bytes))
            totals = [f.load(type_, here, n * lanes * 4, align=64) for n in range(tile.vectors)]
            accesses = (*self.outputs, *self.operands)
            moved = [
                access.at(f, pointer, (*self._origin(access)[:-2], row))
                for access, pointer in zip(accesses, self.pointers, strict=True)
            ]
            replace(self, pointers=moved, _loaded={})._row(0, totals, mask)

    def _row(self, y: int, totals: Sequence[Value], mask: Value | None) -> None:
        outer = self._origin(self.outputs[0])[:-2]
        for n, total in enumerate(totals):
            is_last = n == len(totals) - 1
            at = (*outer, y, n * self.arithmetic.lanes)
            self.finish(at, [total], mask if is_last else None)

    @staticmethod
    def _origin(access: Access) -> tuple[int, ...]:
        return (0,) * len(access.strides)


def reads_sums_as_integers(expression: Expression) -> bool:
    """Say whether an expression takes the sums of integers, its operand 0, as they are."""
    match expression:
        case Operand():
            return expression.index == 0 and expression.kind == "int"
        case Apply():
            return any(map(reads_sums_as_integers, expression.arguments))
        case Convert():
            return reads_sums_as_integers(expression.argument)
        case _:
            return False


# What gives a number that was there already, or the same one with another sign.
_CHOICES = frozenset({"abs", "max", "min", "neg", "select"})


def _rounds_nothing(expression: Expression) -> bool:
    """Say whether numbers are only chosen or converted: they keep what is subnormal in bfloat16."""
    if isinstance(expression, Apply):
        chosen = expression.arguments[expression.operation == "select" :]
        return expression.operation in _CHOICES and all(map(_rounds_nothing, chosen))
    return isinstance(expression, Operand | Constant)


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
