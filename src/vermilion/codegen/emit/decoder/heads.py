"""From the rows of a query/key/value product to turned queries and an extended cache.

Each head is normed if the model does so, turned by its position, and written where attention reads
it: queries with the scale in them, keys and values into the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.decoder.cache import BLOCK_TOKENS, CacheForm
from vermilion.codegen.emit.decoder.control import LENGTH, PAST, TURNS, Control, Sequence
from vermilion.codegen.emit.decoder.row import root_mean_square_factor
from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.codegen.emit.values import Value, splat_constant
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa
from vermilion.codegen.tensor import STORAGE_BYTES, Storage


@dataclass(frozen=True)
class HeadsSpec:
    """All heads of a row, or those of keys and values, or those of queries.

    `rows` are the numbers from one row to the next of queries, keys and values. `turned` is how
    many numbers of a head are turned, 0 for none; `is_normed_last`: before they are normed. Queries
    are written as (key head, row, head in
    its group, number). Arguments: control, queries, keys, values, cosines, sines, query norm, key
    norm, key cache, value cache, written queries; only those that are there.
    """

    cache: CacheForm
    query_heads: int
    key_heads: int
    rows: tuple[int, ...]
    scale: float
    turned: int
    query_epsilon: float | None
    key_epsilon: float | None
    max_rows: int
    part: Literal["whole", "keys", "queries"] = "whole"
    is_normed_last: bool = False

    family = "heads"

    @property
    def units(self) -> int:
        """One unit a row."""
        return self.max_rows

    @property
    def has_keys(self) -> bool:
        """Whether keys and values are there."""
        return self.part != "queries"

    @property
    def has_queries(self) -> bool:
        """Whether queries are there."""
        return self.part != "keys"

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.query_heads // self.key_heads

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        assert self.cache.head_size % LANES == 0, "heads are whole vectors"
        norms = (self.query_epsilon is not None) + (self.key_epsilon is not None)
        written = (self.has_keys and 2) + self.has_queries
        there = 1 + len(self.rows) + 2 * bool(self.turned) + norms + written
        f, pointers, (begin, end) = begin_kernel(module, name, there)
        writer = _Heads(self, f, pointers)
        control = writer.control
        with f.loop(*control.share(begin, end, self.units, control.rows)) as row:
            writer.row(row)
        f.finish()


class _Heads:
    def __init__(self, spec: HeadsSpec, f: Function, pointers: list[Value]) -> None:
        self.spec = spec
        self.f = f
        self.arithmetic = Arithmetic(f, LANES)
        rest = iter(pointers)
        self.control = Control(f, next(rest))
        self.sources = [next(rest) for _ in spec.rows]
        self.waves = [next(rest), next(rest)] if spec.turned else []
        self.query_norm = next(rest) if spec.query_epsilon is not None else None
        self.key_norm = next(rest) if spec.key_epsilon is not None else None
        self.written = list(rest)
        self.work = f.scratch(spec.cache.head_size * 4)
        self.narrow = f.scratch(spec.cache.head_size * spec.cache.item_bytes)

    def row(self, row: Value) -> None:
        """Write all heads of one row."""
        f, s = self.f, self.spec
        length = self.control.word(LENGTH)
        sequence = self.control.sequence(f.binary("udiv", row, length))
        position = f.binary("urem", row, length)
        position = f.add(position, sequence.word(PAST))
        sources = [
            f.at(pointer, f.multiply(row, 4 * step))
            for pointer, step in zip(self.sources, s.rows, strict=True)
        ]
        waves = []
        if self.waves:
            turn = f.multiply(f.add(position, sequence.word(TURNS)), 2 * s.turned)
            waves = [f.at(wave, turn) for wave in self.waves]
        if s.has_queries:
            self._queries(sources[0], row, waves)
        if s.has_keys:
            self._keys(sources[-2:], sequence, position, waves)

    def _queries(self, query: Value, row: Value, waves: list[Value]) -> None:
        f, s = self.f, self.spec
        with f.loop(0, s.query_heads) as head:
            self._load(query, head)
            self._norm_and_turn(self.query_norm, s.query_epsilon, waves)
            key_head, inside = f.divide(head, s.group), f.remainder(head, s.group)
            index = f.add(f.multiply(key_head, s.max_rows), row)
            index = f.add(f.multiply(index, s.group), inside)
            place = f.at(self.written[-1], f.multiply(index, s.cache.query_bytes))
            self._store(place, s.cache.multiplied, s.scale)

    def _keys(
        self, sources: list[Value], sequence: Sequence, position: Value, waves: list[Value]
    ) -> None:
        f, s = self.f, self.spec
        (key, value), (keys, values) = sources, self.written[:2]
        with f.loop(0, s.key_heads) as head:
            self._load(key, head)
            self._norm_and_turn(self.key_norm, s.key_epsilon, waves)
            self._store(self.narrow, s.cache.stored)
            self._scatter_key(keys, sequence, head, position)
            self._load(value, head)
            self._store(self.narrow, s.cache.stored)
            self._scatter_value(values, sequence, head, position)

    def _load(self, source: Value, head: Value) -> None:
        size = self.spec.cache.head_size
        start = self.f.at(source, self.f.multiply(head, 4 * size))
        for at in range(0, size, LANES):
            value = self.arithmetic.load("f32", self.f.at(start, 4 * at))
            self.arithmetic.store("f32", value, self.f.at(self.work, 4 * at))

    def _norm_and_turn(
        self, weight: Value | None, epsilon: float | None, waves: list[Value]
    ) -> None:
        if self.spec.is_normed_last:
            self._turn(waves)
        self._norm(weight, epsilon)
        if not self.spec.is_normed_last:
            self._turn(waves)

    def _norm(self, weight: Value | None, epsilon: float | None) -> None:
        if weight is None or epsilon is None:
            return
        f, m, size = self.f, self.arithmetic.math, self.spec.cache.head_size
        places = [f.at(self.work, 4 * at) for at in range(0, size, LANES)]
        values = [self.arithmetic.load("f32", place) for place in places]
        squares = Value(m.type, "zeroinitializer")
        for value in values:
            squares = m.fma(value, value, squares)
        factor = root_mean_square_factor(self.arithmetic, squares, size, epsilon)
        for number, (value, place) in enumerate(zip(values, places, strict=True)):
            own = self.arithmetic.load("f32", f.at(weight, 4 * number * LANES))
            scaled = m.multiply(m.multiply(value, factor), own)
            self.arithmetic.store("f32", scaled, place)

    def _turn(self, waves: list[Value]) -> None:
        """Turn pairs of numbers half of the turned part apart."""
        if not waves:
            return
        f, m, half = self.f, self.arithmetic.math, self.spec.turned // 2
        for at in range(0, half, LANES):
            count = min(LANES, half - at)
            mask = None if count == LANES else self.arithmetic.tail_mask(count)
            low_at, high_at = f.at(self.work, 4 * at), f.at(self.work, 4 * (half + at))
            low = self.arithmetic.load("f32", low_at, mask=mask)
            high = self.arithmetic.load("f32", high_at, mask=mask)
            cosine, sine = (
                self.arithmetic.load("f32", f.at(wave, 4 * at), mask=mask) for wave in waves
            )
            new_low = m.subtract(m.multiply(low, cosine), m.multiply(high, sine))
            new_high = m.fma(low, sine, m.multiply(high, cosine))
            self.arithmetic.store("f32", new_low, low_at, mask=mask)
            self.arithmetic.store("f32", new_high, high_at, mask=mask)

    def _store(self, target: Value, storage: Storage, scale: float = 1.0) -> None:
        """Write the head side by side in a storage type."""
        for at in range(0, self.spec.cache.head_size, LANES):
            value = self.arithmetic.load("f32", self.f.at(self.work, 4 * at))
            if scale != 1.0:
                value = self.arithmetic.math.multiply(value, splat_constant(scale, LANES))
            place = self.f.at(target, at * STORAGE_BYTES[storage])
            self.arithmetic.store(storage, value, place)

    def _block(
        self, cache: Value, sequence: Sequence, head: Value, position: Value
    ) -> tuple[Value, Value]:
        f, form = self.f, self.spec.cache
        start = form.head_at(f, cache, sequence, self.spec.key_heads, head)
        block = form.block_at(f, start, f.divide(position, BLOCK_TOKENS))
        return block, f.remainder(position, BLOCK_TOKENS)

    def _scatter_key(self, keys: Value, sequence: Sequence, head: Value, position: Value) -> None:
        f, form = self.f, self.spec.cache
        block, inside = self._block(keys, sequence, head, position)
        column = f.at(block, f.multiply(inside, 4))
        for word in range(form.head_size // form.group):
            value = f.load("i32", self.narrow, 4 * word, align=4)
            f.store(value, column, word * BLOCK_TOKENS * 4, align=4)

    def _scatter_value(
        self, values: Value, sequence: Sequence, head: Value, position: Value
    ) -> None:
        f, form = self.f, self.spec.cache
        block, inside = self._block(values, sequence, head, position)
        line = f.at(block, f.multiply(f.divide(inside, form.group), form.head_size * 4))
        place = f.at(line, f.multiply(f.remainder(inside, form.group), form.item_bytes))
        type_ = f"i{8 * form.item_bytes}"
        for number in range(form.head_size):
            value = f.load(type_, self.narrow, number * form.item_bytes, align=form.item_bytes)
            f.store(value, place, 4 * number, align=form.item_bytes)
