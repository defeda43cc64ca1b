"""Which experts of a mixture compute which rows: chosen row by row, then grouped by expert.

Rows that an expert computes lie side by side, in slots, so that its weights are read once for all
of them and those of an expert that nobody chose are not read at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.decoder.control import ROWS, Control
from vermilion.codegen.emit.decoder.lanes import reduced, tree
from vermilion.codegen.emit.decoder.row import lanes_sum
from vermilion.codegen.emit.decoder.running_softmax import LOWEST
from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.codegen.emit.values import Value, constant, float_constant
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa

# What becomes of a router's numbers: shares of all experts, or each on its own.
Score = Literal["softmax", "sigmoid"]
_WORD = 8
# What weights are divided by, at least: of a router that has no finite number.
_LEAST_SUM = 1e-20


@dataclass(frozen=True)
class Routing:
    """How a mixture chooses: the `chosen` experts of the highest score for each row.

    Scores are those weights that their results are summed with: divided by the sum of the chosen
    ones with `is_normed`, times `scale`. With `has_bias` a number of each expert is added to its
    score for the choice alone.
    """

    experts: int
    chosen: int
    score: Score = "softmax"
    is_normed: bool = True
    scale: float = 1.0
    has_bias: bool = False


@dataclass(frozen=True)
class Routes:
    """Where what is known of the experts of at most `max_rows` rows lies.

    64-bit words: how many experts have rows, how many slots there are, which experts have rows; of
    each expert how many, and the first of its slots; of each row the experts it chose, and its
    slots; of each slot its row. Then float32: of each row the weights of its experts. Slots of an
    expert begin at a multiple of `spacing`; those that no row has, have the first row's numbers.
    """

    experts: int
    chosen: int
    max_rows: int
    spacing: int

    @property
    def pairs(self) -> int:
        """Rows times the experts of each, at most."""
        return self.max_rows * self.chosen

    @property
    def most_active(self) -> int:
        """Experts that can have rows."""
        return min(self.experts, self.pairs)

    @property
    def slots(self) -> int:
        """Slots, at most."""
        return self.pairs + (self.spacing - 1) * self.most_active

    @property
    def _sizes(self) -> dict[str, int]:
        return {
            "active": 1, "used": 1, "list": self.experts, "counts": self.experts,
            "firsts": self.experts, "chosen": self.pairs, "places": self.pairs, "rows": self.slots,
        }  # fmt: skip

    def at(self, name: str) -> int:
        """Return the bytes before an array of words."""
        before = 0
        for own, size in self._sizes.items():
            if own == name:
                return before * _WORD
            before += size
        raise KeyError(name)

    @property
    def weights_at(self) -> int:
        """Bytes before the weights."""
        return sum(self._sizes.values()) * _WORD

    @property
    def size_bytes(self) -> int:
        """Bytes in all."""
        return self.weights_at + 4 * self.pairs


@dataclass(frozen=True)
class RouteReader:
    """Loads what a kernel needs to know of the experts of rows."""

    f: Function
    form: Routes
    pointer: Value

    def word(self, name: str, index: Value | int = 0) -> Value:
        """Return a word of an array."""
        return self.f.load("i64", self.place(name, index), align=8)

    def place(self, name: str, index: Value | int = 0) -> Value:
        """Return where a word is."""
        f = self.f
        return f.at(f.at(self.pointer, self.form.at(name)), f.multiply(index, _WORD))

    def weight_place(self, pair: Value) -> Value:
        """Return where the weight of a row's expert is."""
        f = self.f
        return f.at(f.at(self.pointer, self.form.weights_at), f.multiply(pair, 4))


@dataclass(frozen=True)
class ChooseSpec:
    """The experts of each row and their weights, of a router's numbers.

    `in_row` are the numbers from one row to the next. Arguments: control, the router's rows, what
    is added for the choice if `routing` has it, routes.
    """

    routing: Routing
    routes: Routes
    in_row: int

    family = "choose_experts"

    @property
    def units(self) -> int:
        """One unit a row."""
        return self.routes.max_rows

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, pointers, (begin, end) = begin_kernel(module, name, 3 + self.routing.has_bias)
        control = Control(f, pointers[0])
        writer = _Choose(self, f, pointers)
        with f.loop(*control.share(begin, end, self.units, control.rows)) as row:
            writer.row(row)
        f.finish()


class _Choose:
    def __init__(self, spec: ChooseSpec, f: Function, pointers: list[Value]) -> None:
        self.spec = spec
        self.f = f
        self.arithmetic = Arithmetic(f, LANES)
        self.source = pointers[1]
        self.bias = pointers[2] if spec.routing.has_bias else None
        self.routes = RouteReader(f, spec.routes, pointers[-1])
        self.vectors = -(-spec.routing.experts // LANES)
        self.scores = f.scratch(self.vectors * LANES * 4)
        self.ranks = f.scratch(self.vectors * LANES * 4)

    def row(self, row: Value) -> None:
        """Write the choice of one row."""
        f, s = self.f, self.spec
        self._score(f.at(self.source, f.multiply(row, 4 * s.in_row)))
        first = f.multiply(row, s.routing.chosen)
        total = f.slot(float_constant(0.0))
        with f.loop(0, s.routing.chosen) as number:
            expert = self._take_highest()
            pair = f.add(first, number)
            f.store(expert, self.routes.place("chosen", pair), align=8)
            weight = f.load("float", self.scores, f.multiply(expert, 4), align=4)
            f.store(weight, self.routes.weight_place(pair), align=4)
            total.set(f.binary("fadd", total.get(), weight))
        factor = float_constant(s.routing.scale)
        if s.routing.is_normed:
            least = float_constant(_LEAST_SUM)
            is_more = f.compare_floats("ogt", total.get(), least)
            factor = f.binary("fdiv", factor, f.select(is_more, total.get(), least))
        with f.loop(0, s.routing.chosen) as number:
            place = self.routes.weight_place(f.add(first, number))
            f.store(f.binary("fmul", f.load("float", place, align=4), factor), place, align=4)

    def _score(self, source: Value) -> None:
        """Write all scores, and by what experts are ranked."""
        m = self.arithmetic.math
        numbers = [self._finite(self._load(source, v)) for v in range(self.vectors)]
        if self.spec.routing.score == "softmax":
            top = reduced(self.f, [tree(numbers, m.maximum)], m.maximum)
            powers = [m.exp(m.subtract(one, top)) for one in numbers]
            total = self.arithmetic.splat(lanes_sum(self.f, tree(powers, m.add)))
            scores = [m.divide(one, total) for one in powers]
        else:
            scores = [m.sigmoid(one) for one in numbers]
        for v, score in enumerate(scores):
            self.arithmetic.store("f32", score, self.f.at(self.scores, v * LANES * 4))
            rank = score
            if self.bias is not None:
                rank = self._finite(m.add(score, self._load(self.bias, v)))
            self.arithmetic.store("f32", rank, self.f.at(self.ranks, v * LANES * 4))

    def _load(self, source: Value, v: int) -> Value:
        """Load sixteen numbers; behind the last expert the lowest."""
        value = self.arithmetic.load("f32", self.f.at(source, v * LANES * 4))
        left = self.spec.routing.experts - v * LANES
        if left >= LANES:
            return value
        bits = ", ".join(f"i1 {int(lane < left)}" for lane in range(LANES))
        mask = Value(f"<{LANES} x i1>", f"<{bits}>")
        return self.f.select(mask, value, self.arithmetic.math.number(LOWEST))

    def _finite(self, value: Value) -> Value:
        """Return numbers that can be ranked: the lowest for those that are none."""
        lowest = self.arithmetic.math.number(LOWEST)
        return self.f.select(self.f.compare_floats("ogt", value, lowest), value, lowest)

    def _take_highest(self) -> Value:
        """Return the expert of the highest rank, the first of equals; it is not taken again."""
        f = self.f
        below = float_constant(-2 * abs(LOWEST))  # lower than any rank: what is taken
        best, at = f.slot(below), f.slot(constant("i64", 0))
        with f.loop(0, self.spec.routing.experts) as expert:
            rank = f.load("float", self.ranks, f.multiply(expert, 4), align=4)
            is_higher = f.compare_floats("ogt", rank, best.get())
            best.set(f.select(is_higher, rank, best.get()))
            at.set(f.select(is_higher, expert, at.get()))
        f.store(below, self.ranks, f.multiply(at.get(), 4), align=4)
        return at.get()


@dataclass(frozen=True)
class GroupSpec:
    """Slots of all rows by their experts. Arguments: control, routes with the experts chosen."""

    routes: Routes

    family = "group_experts"

    @property
    def units(self) -> int:
        """One unit: a slot follows from all before it."""
        return 1

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        f, (control, pointer), (begin, end) = begin_kernel(module, name, 2)
        r, s = RouteReader(f, self.routes, pointer), self.routes
        nothing = constant("i64", 0)
        with f.when(f.compare("slt", begin, end)):
            pairs = f.multiply(Control(f, control).rows, s.chosen)
            with f.loop(0, s.experts) as expert:
                f.store(nothing, r.place("counts", expert), align=8)
            with f.loop(0, pairs) as pair:
                place = r.place("counts", r.word("chosen", pair))
                f.store(f.add(f.load("i64", place, align=8), 1), place, align=8)
            active, used = f.slot(nothing), f.slot(nothing)
            with f.loop(0, s.experts) as expert:
                count = r.word("counts", expert)
                f.store(used.get(), r.place("firsts", expert), align=8)
                with f.when(f.compare("sgt", count, nothing)):
                    f.store(expert, r.place("list", active.get()), align=8)
                    active.set(f.add(active.get(), 1))
                whole = f.divide(f.add(count, s.spacing - 1), s.spacing)
                used.set(f.add(used.get(), f.multiply(whole, s.spacing)))
            f.store(active.get(), r.place("active"), align=8)
            f.store(used.get(), r.place("used"), align=8)
            with f.loop(0, used.get()) as slot:
                f.store(nothing, r.place("rows", slot), align=8)
            self._fill(f, r, pairs)
        f.finish()

    def _fill(self, f: Function, r: RouteReader, pairs: Value) -> None:
        """Give every row's experts their slots, and count each expert's rows once more."""
        with f.loop(0, self.routes.experts) as expert:
            f.store(constant("i64", 0), r.place("counts", expert), align=8)
        with f.loop(0, pairs) as pair:
            expert = r.word("chosen", pair)
            count = r.word("counts", expert)
            slot = f.add(r.word("firsts", expert), count)
            f.store(f.add(count, 1), r.place("counts", expert), align=8)
            f.store(slot, r.place("places", pair), align=8)
            f.store(f.divide(pair, self.routes.chosen), r.place("rows", slot), align=8)


def with_rows(f: Function, control: Value, rows: Value) -> Value:
    """Return the control block of who reads nothing of it but how many rows there are."""
    own = f.scratch((ROWS + 1) * _WORD)
    f.store(rows, own, ROWS * _WORD, align=8)
    return own
