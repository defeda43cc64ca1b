"""Attention over the cache, in place: two blocks of 64 keys at a time with a running softmax.

A unit is some positions of one sequence and the query heads that share a key head: their rows are
multiplied with the same keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.decoder.cache import BLOCK_TOKENS, CacheForm
from vermilion.codegen.emit.decoder.control import LENGTH, PAST, Control
from vermilion.codegen.emit.decoder.lanes import reduced, tree
from vermilion.codegen.emit.decoder.row import lanes_sum
from vermilion.codegen.emit.decoder.running_softmax import LOWEST, RunningSoftmax, power, store_peak
from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.codegen.emit.register_tile import Prefetch, RegisterTile, Side, prefetch_line
from vermilion.codegen.emit.values import Value, constant
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa

# Blocks of keys that are weighed together: the running softmax costs by step, not only by key.
_TOGETHER = 2
_SCORE_ROW_BYTES = _TOGETHER * BLOCK_TOKENS * 4
# Bytes of a row's sums of weights: one in each lane, added up at the end.
_SUM_BYTES = LANES * 4
# Bytes of a row's highest scores: in each block of keys, one in each lane.
_PEAK_ROW_BYTES = _TOGETHER * LANES * 4


@dataclass(frozen=True)
class CachedAttentionSpec:
    """float32 rows of `out_row` numbers: (row, key head, head in its group, number).

    `positions` are those of a unit, `window` the keys that a query sees, 0 for all, `bound` what
    scores are held within, 0 for none. With `has_sinks` each query head has a score that no key
    has: it takes a share of the weights, and gives nothing. Arguments: control, queries as
    `HeadsSpec` writes them, key cache, value cache, out, and the sinks, in the unit of the scores.
    """

    cache: CacheForm
    key_heads: int
    group: int
    positions: int
    window: int
    bound: float
    out_row: int
    max_rows: int
    has_sinks: bool = False

    family = "cached_attention"

    @property
    def units(self) -> int:
        """One unit a key head and block of positions; there are as many blocks as rows at most."""
        return self.max_rows * self.key_heads

    @property
    def unit_rows(self) -> int:
        """Rows of a unit."""
        return self.positions * self.group

    @property
    def row_tile(self) -> int:
        """Rows of a register tile: as many of them as give whole tiles."""
        return next(rows for rows in (6, 5, 4, 3, 2, 1) if self.unit_rows % rows == 0)

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function and those that it calls."""
        f, pointers, (begin, end) = begin_kernel(module, name, 5 + self.has_sinks)
        writer = _Writer(self, module, name, isa, f, pointers)
        with f.loop(*writer.share(begin, end)) as unit:
            writer.unit(unit)
        f.finish()


class _Writer:
    def __init__(
        self,
        spec: CachedAttentionSpec,
        module: Module,
        name: str,
        isa: Isa,
        f: Function,
        pointers: list[Value],
    ) -> None:
        self.spec = spec
        self.module = module
        self.name = name
        self.isa = isa
        self.f = f
        self.control = Control(f, pointers[0])
        self.queries, self.keys, self.values, self.out, *self.sinks = pointers[1:]
        self.scores = f.scratch(spec.unit_rows * _SCORE_ROW_BYTES)
        self.context = f.scratch(spec.unit_rows * spec.cache.head_size * 4)
        # Of each row: the highest score so far, and the factor for what was summed before. Rows lie
        # side by side, so that the factors of sixteen are computed at once.
        self.lane_rows = -(-spec.unit_rows // LANES) * LANES
        self.tops = f.scratch(self.lane_rows * 4)
        self.factors = f.scratch(self.lane_rows * 4)
        self.sums = f.scratch(spec.unit_rows * _SUM_BYTES)
        self.peaks = f.scratch(self.lane_rows * _PEAK_ROW_BYTES)

    def share(self, begin: Value, end: Value) -> tuple[Value, Value]:
        """Return the units of a range that are there in this call."""
        f = self.f
        sequences = f.binary("udiv", self.control.rows, self.control.word(LENGTH))
        there = f.multiply(f.multiply(sequences, self._blocks()), self.spec.key_heads)
        return self.control.share(begin, end, self.spec.units, there)

    def _blocks(self) -> Value:
        """Return the blocks of positions of a sequence."""
        s, f = self.spec, self.f
        return f.divide(f.add(self.control.word(LENGTH), s.positions - 1), s.positions)

    def unit(self, unit: Value) -> None:
        """Write one unit."""
        s, f = self.spec, self.f
        block, head = f.divide(unit, s.key_heads), f.remainder(unit, s.key_heads)
        length, blocks = self.control.word(LENGTH), self._blocks()
        sequence = f.binary("udiv", block, blocks)
        first = f.multiply(f.binary("urem", block, blocks), s.positions)
        row = f.add(f.multiply(sequence, length), first)
        count = f.minimum(f.subtract(length, first), s.positions)
        self._positions(sequence, head, row, first, count)

    def _positions(
        self, sequence: Value, head: Value, row: Value, first: Value, count: Value
    ) -> None:
        s, f, form = self.spec, self.f, self.spec.cache
        own = self.control.sequence(sequence)
        keys = form.head_at(f, self.keys, own, s.key_heads, head)
        values = form.head_at(f, self.values, own, s.key_heads, head)
        index = f.multiply(f.add(f.multiply(head, s.max_rows), row), s.group)
        query = f.at(self.queries, f.multiply(index, form.query_bytes))
        rows = f.multiply(count, s.group)
        start = f.add(own.word(PAST), first)  # the first row's own position
        self._clear()
        last_block = f.add(f.divide(f.add(start, f.subtract(count, 1)), BLOCK_TOKENS), 1)
        first_block: Value = f.index(0)
        if s.window:
            low = f.subtract(start, s.window - 1)
            is_below = f.compare("slt", low, constant("i64", 0))
            first_block = f.divide(f.select(is_below, constant("i64", 0), low), BLOCK_TOKENS)
        if s.positions == 1:
            # What is read first has no step before it to ask for it: here, and at the head before.
            following = form.head_at(f, self.keys, own, s.key_heads, f.add(head, 1))
            for blocks in (values, following):
                self._fetch(form.block_at(f, blocks, first_block))
        several = f.subtract(last_block, first_block)
        several = f.subtract(several, f.remainder(several, _TOGETHER))
        middle = f.add(first_block, several)
        with f.loop(first_block, middle, _TOGETHER) as block:
            self._step((query, keys, values), rows, start, block, _TOGETHER)
        with f.loop(middle, last_block) as block:
            self._step((query, keys, values), rows, start, block, 1)
        self._finish(head, row, rows)

    def _fetch(self, blocks: Value) -> None:
        """Ask for the blocks of a step."""
        f = self.f
        with f.loop(0, _TOGETHER * self.spec.cache.block_bytes, 8 * 64) as at:
            for line in range(8):
                prefetch_line(f, f.at(f.at(blocks, at), line * 64))

    def _step(
        self,
        pointers: tuple[Value, Value, Value],
        rows: Value,
        start: Value,
        block: Value,
        count: int,
    ) -> None:
        """Write scores, weights and context of `count` blocks of keys."""
        s, f, form = self.spec, self.f, self.spec.cache
        query, keys, values = pointers
        block_values = form.block_at(f, values, block)
        with f.loop(0, rows, s.row_tile) as y:
            source = f.at(query, f.multiply(y, form.query_bytes))
            target = f.at(self.scores, f.multiply(y, _SCORE_ROW_BYTES))
            peaks = f.at(self.peaks, f.multiply(y, _PEAK_ROW_BYTES))
            for number in range(count):
                block_keys = form.block_at(f, keys, f.add(block, number))
                place = f.at(target, number * BLOCK_TOKENS * 4)
                peak = f.at(peaks, number * LANES * 4)
                f.call_void(self._score_tile(), [source, block_keys, place, peak])
        base = f.subtract(start, f.multiply(block, BLOCK_TOKENS))
        if s.window:
            self._weights(rows, base, count, is_masked=True)
        else:
            # Most blocks lie before the first row's own key, and every row sees all of them.
            last = constant("i64", count * BLOCK_TOKENS - 1)
            for predicate, is_masked in (("sge", False), ("slt", True)):
                with f.when(f.compare(predicate, base, last)):
                    self._weights(rows, base, count, is_masked=is_masked)
        with f.loop(0, rows, s.row_tile) as y:
            weights = f.at(self.scores, f.multiply(y, _SCORE_ROW_BYTES))
            context = f.at(self.context, f.multiply(y, form.head_size * 4))
            factors = f.at(self.factors, f.multiply(y, 4))
            f.call_void(self._context_tile(count), [weights, block_values, context, factors])

    def _weights(self, rows: Value, base: Value, count: int, *, is_masked: bool) -> None:
        """Make the scores of all rows weights; `base` is the first row's own key in the block.

        In three passes, each of which has many rows in flight: one after the other, the chain from
        a row's scores to its highest and on to its sum would be waited for.
        """
        s, f = self.spec, self.f

        def each(function: str, *arrays: tuple[Value, int]) -> None:
            with f.loop(0, rows) as y:
                own = f.add(base, f.divide(y, s.group))
                scores = f.at(self.scores, f.multiply(y, _SCORE_ROW_BYTES))
                others = [f.at(array, f.multiply(y, step)) for array, step in arrays]
                f.call_void(function, [scores, own, *others])

        peaks = count
        if is_masked or s.bound:  # the scores are not yet what is compared
            each(self._peak(count, is_masked=is_masked), (self.peaks, _PEAK_ROW_BYTES))
            peaks = 1
        with f.loop(0, rows, LANES) as y:
            lanes = [f.at(array, f.multiply(y, 4)) for array in (self.tops, self.factors)]
            own_peaks = f.at(self.peaks, f.multiply(y, _PEAK_ROW_BYTES))
            f.call_void(self._raise(peaks), [own_peaks, *lanes])
        weigh = self._weigh(count, is_masked=is_masked)
        each(weigh, (self.tops, 4), (self.factors, 4), (self.sums, _SUM_BYTES))

    def _clear(self) -> None:
        s, f = self.spec, self.f
        arithmetic = Arithmetic(f, LANES)
        lowest, zero = arithmetic.math.number(LOWEST), arithmetic.math.number(0.0)
        for at in range(0, self.lane_rows, LANES):
            arithmetic.store("f32", lowest, f.at(self.tops, at * 4))
            arithmetic.store("f32", zero, f.at(self.factors, at * 4))
        fill = self.module.declare("llvm.memset.p0.i64", "void", ["ptr", "i8", "i64", "i1"])
        # Of scores too: rows of a tile that are beyond the last are computed, of something.
        for array, row_bytes in (
            (self.sums, _SUM_BYTES),
            (self.context, s.cache.head_size * 4),
            (self.scores, _SCORE_ROW_BYTES),
        ):
            size = f.index(s.unit_rows * row_bytes)
            f.call_void(fill, [array, Value("i8", "0"), size, Value("i1", "false")])

    def _score_tile(self) -> str:
        """Write the function (queries, block of keys, scores, peaks) for a patch of rows."""
        s, form = self.spec, self.spec.cache
        name = f"{self.name}_scores"
        if self.module.has(name):
            return name
        labels = ("queries", "keys", "scores", "peaks")
        f = Function(self.module, name, [(label, "ptr") for label in labels])
        queries, keys, scores, peaks = f.arguments
        ahead = self._ahead(f, keys, BLOCK_TOKENS * 4, _TOGETHER * form.block_bytes)
        arithmetic, lanes = Arithmetic(f, self.isa.lanes), self.isa.lanes
        vectors = self.isa.vectors_beside(s.row_tile, BLOCK_TOKENS // lanes)
        for first in range(0, BLOCK_TOKENS // lanes, vectors):
            tile = RegisterTile(f, self.isa, form.storage, s.row_tile, vectors)
            tile.multiply(
                Side(queries, form.query_bytes),
                Side(f.at(keys, first * lanes * 4), BLOCK_TOKENS * 4),
                form.head_size,
                prefetch=ahead if first == 0 else None,
            )
            for y, slots in enumerate(tile.accumulators):
                for v, slot in enumerate(slots, first):
                    place = f.at(scores, y * _SCORE_ROW_BYTES + v * lanes * 4)
                    arithmetic.store("f32", slot.get(), place)
                values = [slot.get() for slot in slots]
                store_peak(arithmetic, values, (peaks, y * _PEAK_ROW_BYTES), first)
        f.finish()
        return name

    def _ahead(self, f: Function, base: Value, step_bytes: int, distance: int) -> Prefetch | None:
        """Ask for what the next step reads, where a block is read once: for a single position.

        The processor's own prefetching ends at pages of 4 KiB, and a block is a few of them.
        """
        if self.spec.positions > 1:
            return None

        def fetch(step: Value) -> None:
            place = f.at(base, f.add(f.multiply(step, step_bytes), distance))
            for line in range(0, step_bytes, 64):
                prefetch_line(f, f.at(place, line))

        return fetch

    def _softmax(self, f: Function, count: int, *, is_masked: bool) -> RunningSoftmax:
        s = self.spec
        vectors = count * BLOCK_TOKENS // LANES
        return RunningSoftmax(s.cache, s.window, s.bound, f, vectors, is_masked=is_masked)

    def _peak(self, count: int, *, is_masked: bool) -> str:
        """Write the function (scores, own, peak) for the highest score of every lane of a row."""
        name = f"{self.name}_peak{count}{'m' * is_masked}"
        if not self.module.has(name):
            f = Function(self.module, name, [("scores", "ptr"), ("own", "i64"), ("peak", "ptr")])
            self._softmax(f, count, is_masked=is_masked).write_peak()
            f.finish()
        return name

    def _raise(self, count: int) -> str:
        """Write the function (peaks, tops, factors) that updates what sixteen rows are held to."""
        name = f"{self.name}_raise{count}"
        if self.module.has(name):
            return name
        labels = ("peaks", "tops", "factors")
        f = Function(self.module, name, [(label, "ptr") for label in labels])
        peaks, tops, factors = f.arguments
        arithmetic = Arithmetic(f, LANES)
        m = arithmetic.math
        rows = []
        for y in range(LANES):
            places = [y * _PEAK_ROW_BYTES + number * LANES * 4 for number in range(count)]
            rows.append(tree([arithmetic.load("f32", f.at(peaks, at)) for at in places], m.maximum))
        before = arithmetic.load("f32", tops)
        top = m.maximum(reduced(f, rows, m.maximum), before)
        arithmetic.store("f32", top, tops)
        factor = power(self.spec.cache, m, m.subtract(before, top))
        arithmetic.store("f32", factor, factors)
        f.finish()
        return name

    def _weigh(self, count: int, *, is_masked: bool) -> str:
        """Write the function (scores, own, top, factor, sums) that makes scores weights."""
        name = f"{self.name}_weigh{count}{'m' * is_masked}"
        if not self.module.has(name):
            labels = [("scores", "ptr"), ("own", "i64")]
            labels += [(label, "ptr") for label in ("top", "factor", "sums")]
            f = Function(self.module, name, labels)
            self._softmax(f, count, is_masked=is_masked).write_weights()
            f.finish()
        return name

    def _context_tile(self, count: int) -> str:
        """Write the function (weights, block of values, context, factors) for a patch of rows."""
        s, form = self.spec, self.spec.cache
        name = f"{self.name}_context{count}"
        if self.module.has(name):
            return name
        labels = ("weights", "values", "context", "factors")
        f = Function(self.module, name, [(label, "ptr") for label in labels])
        weights, values, context, factors = f.arguments
        arithmetic, lanes = Arithmetic(f, self.isa.lanes), self.isa.lanes
        most = self.isa.vectors_beside(s.row_tile, BLOCK_TOKENS // lanes)
        all_vectors = form.head_size // lanes
        for first in range(0, all_vectors, most):
            vectors = min(most, all_vectors - first)
            tile = RegisterTile(f, self.isa, form.storage, s.row_tile, vectors)
            right = Side(f.at(values, first * lanes * 4), form.head_size * 4)
            ahead = None
            if first == 0:
                ahead = self._ahead(f, values, right.step_bytes, count * form.block_bytes)
            left = Side(weights, _SCORE_ROW_BYTES)
            tile.multiply(left, right, count * BLOCK_TOKENS, prefetch=ahead)
            for y, slots in enumerate(tile.accumulators):
                factor = arithmetic.load_splat("f32", f.at(factors, 4 * y))
                for v, slot in enumerate(slots):
                    place = f.at(context, (y * form.head_size + (first + v) * lanes) * 4)
                    before = arithmetic.load("f32", place)
                    total = arithmetic.math.fma(before, factor, slot.get())
                    arithmetic.store("f32", total, place)
        f.finish()
        return name

    def _finish(self, head: Value, row: Value, rows: Value) -> None:
        """Write the rows of the result."""
        s, f, form = self.spec, self.f, self.spec.cache
        arithmetic = Arithmetic(f, LANES)
        m = arithmetic.math
        start = f.at(self.out, f.multiply(row, s.out_row * 4))
        start = f.at(start, f.multiply(head, s.group * form.head_size * 4))
        with f.loop(0, rows) as y:
            sums = arithmetic.load("f32", f.at(self.sums, f.multiply(y, _SUM_BYTES)))
            total = arithmetic.splat(lanes_sum(f, sums))
            share = m.divide(m.number(1.0), total)
            if self.sinks:
                share = self._share_beside_sink(arithmetic, head, y, total)
            context = f.at(self.context, f.multiply(y, form.head_size * 4))
            target = f.at(start, f.multiply(f.divide(y, s.group), s.out_row * 4))
            target = f.at(target, f.multiply(f.remainder(y, s.group), form.head_size * 4))
            for at in range(0, form.head_size, LANES):
                value = m.multiply(arithmetic.load("f32", f.at(context, 4 * at)), share)
                arithmetic.store("f32", value, f.at(target, 4 * at))

    def _share_beside_sink(
        self, arithmetic: Arithmetic, head: Value, y: Value, total: Value
    ) -> Value:
        """Return what a row's sums are multiplied with, where its head has a sink."""
        f, form, m = self.f, self.spec.cache, arithmetic.math
        number = f.add(f.multiply(head, self.spec.group), f.remainder(y, self.spec.group))
        sink = arithmetic.load_splat("f32", f.at(self.sinks[0], f.multiply(number, 4)))
        top = arithmetic.load_splat("f32", f.at(self.tops, f.multiply(y, 4)))
        highest = m.maximum(top, sink)
        factor = power(form, m, m.subtract(top, highest))
        own = power(form, m, m.subtract(sink, highest))
        return m.divide(factor, m.fma(total, factor, own))
