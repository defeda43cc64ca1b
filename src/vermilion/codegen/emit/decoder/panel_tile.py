"""The functions that a product of panels calls: tiles of rows, and pieces of unpacking."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout, write_vector
from vermilion.codegen.emit.decoder.row import Source, source_value
from vermilion.codegen.emit.decoder.weights import EIGHT, PANEL, VECTORS
from vermilion.codegen.emit.register_tile import Prefetch, RegisterTile, Side, prefetch_line
from vermilion.codegen.emit.values import Value
from vermilion.codegen.isa import Isa
from vermilion.codegen.numeric import NUMERICS

# Rows of a tile: 24 accumulators with two vectors; then what is left of rows in fours.
ROW_TILES = (12, 8, 4)


@dataclass(frozen=True)
class Gate:
    """Columns of the first half gate those of the second: the rows of `form` that they give.

    Both halves are whole panels.
    """

    source: Source
    form: ActivationLayout


@dataclass(frozen=True)
class Run:
    """A part of the depth: whether sums begin with it, and whether they are whole after it."""

    depth: int
    is_first: bool
    is_last: bool


class Unpacking(Protocol):
    """Unpacking of a run of a panel: eight values of the depth of one vector of columns a time."""

    def block(self, eight: Value, v: int) -> Any:
        """Return what the eights of a block have in common."""

    def steps(self, block: Any, eight: Value, v: int, panel: Value) -> Iterator[None]:
        """Write an eight in four steps."""

    def ask(self, piece: Value, number: Value, panel: Value) -> None:
        """Ask for what an eight of a piece has of the weights ahead."""


class Filler(Protocol):
    """What a panel is filled with, a piece of the depth at a time."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the pointers that say from where."""

    @property
    def piece(self) -> int:
        """Values of the depth in a piece."""

    def begin(self, f: Function, arguments: Sequence[Value], *, is_beside: bool) -> Unpacking:
        """Return the unpacking, of the function's arguments; `is_beside` multiply-adds or not."""


@dataclass(frozen=True)
class _Patch:
    """Rows of a tile, and vectors of the panel's columns, whose sums are in registers together."""

    rows: range
    vectors: range


@dataclass(frozen=True)
class PanelTiles:
    """Writes functions named after `name`, each once.

    Sums are float32, a row of them a panel wide. Whole ones are written as float32 rows of
    `out_row` numbers, or with `gate` as rows of its form. With `asks_for_rows` a tile asks for the
    rows after its own.
    """

    module: Module
    name: str
    isa: Isa
    numeric: Literal["bf16", "f32"]
    rows: ActivationLayout
    filler: Filler
    has_bias: bool = False
    out_row: int = 0
    gate: Gate | None = None
    asks_for_rows: bool = False

    @property
    def out_item_bytes(self) -> int:
        """Bytes of a number of the rows that are written."""
        return 4 if self.gate is None or self.gate.form.kind == "f32" else 2

    @property
    def out_bytes(self) -> int:
        """Bytes from one row that is written to the next."""
        return self.out_row * 4 if self.gate is None else self.gate.form.row_bytes

    @property
    def value_bytes(self) -> int:
        """Bytes of a number of the rows, and of the panel."""
        return 4 if self.numeric == "f32" else 2

    @property
    def _places(self) -> list[tuple[str, str]]:
        return [(label, "ptr") for label in self.filler.labels]

    def unpacking(self) -> str:
        """Write the function (…from where, piece, panel) that unpacks a piece of a run."""
        name = f"{self.name}_unpack"
        if self.module.has(name):
            return name
        labels = [*self._places, ("piece", "i64"), ("panel", "ptr")]
        f = Function(self.module, name, labels, is_apart=True)
        *places, piece, panel = f.arguments
        unpack = self.filler.begin(f, places, is_beside=False)
        eights = self.filler.piece // EIGHT
        first = f.multiply(piece, eights)
        blocks = [unpack.block(first, v) for v in range(VECTORS)]
        with f.loop(0, eights) as number:
            unpack.ask(piece, number, panel)
            for v, block in enumerate(blocks):
                for _ in unpack.steps(block, f.add(first, number), v, panel):
                    pass
        f.finish()
        return name

    def tile(self, rows: int, run: Run, *, is_filling: bool = False) -> str:
        """Write the function that adds to sums of some rows and one panel, or ends them.

        Its arguments: rows, panel, sums, where whole ones go, the bias if there is one and sums
        begin with it; then, of what is unpacked on the way, from where, the number of the piece,
        and where to.
        Of a gate, the other half's whole sums are as many bytes before these as `gates` says.
        """
        edges = f"{int(run.is_first)}{int(run.is_last)}{'_filling' * is_filling}"
        name = f"{self.name}_tile{rows}_{run.depth}_{edges}"
        if self.module.has(name):
            return name
        has_bias = self.has_bias and run.is_first
        pointers = ["rows", "panel", "sums", *["out"] * run.is_last]
        pointers += ["gates"] * self.is_gated(run) + ["bias"] * has_bias
        labels = [(pointer, "ptr") for pointer in pointers]
        if is_filling:
            labels += [*self._places, ("piece", "i64"), ("next", "ptr")]
        f = Function(self.module, name, labels, is_apart=True)
        of = {label: value for (label, _), value in zip(labels, f.arguments, strict=True)}
        step = PANEL * self.value_bytes * NUMERICS[self.numeric].group
        for patch in self._patches(rows):
            tile = RegisterTile(f, self.isa, self.numeric, len(patch.rows), len(patch.vectors))
            left = f.at(of["rows"], patch.rows.start * self.rows.row_bytes)
            right = f.at(of["panel"], patch.vectors.start * self.isa.vector_bytes)
            sides = Side(left, self.rows.row_bytes), Side(right, step)
            if is_filling:
                self._multiply_and_fill(tile, sides, run.depth)
            else:
                ahead = self._next_rows(tile, sides[0], run.depth)
                tile.multiply(*sides, run.depth, prefetch=ahead)
            self._add_up(tile, patch, run, of)
        f.finish()
        return name

    @property
    def can_fill(self) -> bool:
        """Whether a tile's sums are all in registers, so that it may unpack between its steps."""
        return len(self._patches(max(ROW_TILES))) == 1

    def _patches(self, rows: int) -> list[_Patch]:
        """Return what of a tile is computed at once: as much as registers hold the sums of.

        All of it with 32 registers; with 16 and vectors of eight, 6 rows and half of the columns:
        beside 12 sums, two vectors of the panel and a number of a row.
        """
        vectors, room = PANEL // self.isa.lanes, self.isa.registers * 3 // 4
        each, across = rows, vectors if rows * vectors <= room else VECTORS
        while each * across > room:
            each //= 2
        return [
            _Patch(range(y, y + each), range(v, v + across))
            for y in range(0, rows, each)
            for v in range(0, vectors, across)
        ]

    def _add_up(self, tile: RegisterTile, patch: _Patch, run: Run, of: Mapping[str, Value]) -> None:
        """Write a patch's sums, together with those that there are of other runs."""
        f, arithmetic = tile.f, Arithmetic(tile.f, self.isa.lanes)
        lanes = self.isa.lanes
        for y, slots in zip(patch.rows, tile.accumulators, strict=True):
            for v, slot in zip(patch.vectors, slots, strict=True):
                at = (y * PANEL + v * lanes) * 4
                total = slot.get()
                if "bias" in of:
                    shift = arithmetic.load("f32", f.at(of["bias"], v * lanes * 4))
                    total = arithmetic.math.add(total, shift)
                if not run.is_first:
                    before = arithmetic.load("f32", f.at(of["sums"], at))
                    total = arithmetic.math.add(total, before)
                if not run.is_last:
                    arithmetic.store("f32", total, f.at(of["sums"], at))
                    continue
                gate = [f.at(of["gates"], at)] if self.gate else []
                place = y * self.out_bytes + v * lanes * self.out_item_bytes
                self._write_whole(arithmetic, total, f.at(of["out"], place), *gate)

    def is_gated(self, run: Run) -> bool:
        """Say whether a gate's other half is joined after a run."""
        return self.gate is not None and run.is_last

    def _write_whole(
        self, arithmetic: Arithmetic, total: Value, out: Value, gates: Value | None = None
    ) -> None:
        """Write whole sums, or what they give with those that gate them."""
        if self.gate is None or gates is None:
            arithmetic.store("f32", total, out)
            return
        form = self.gate.form
        inputs = [arithmetic.load("f32", gates), total]
        value = source_value(
            arithmetic.math, self.gate.source, inputs, is_coarse=form.kind != "f32"
        )  # fmt: skip
        write_vector(arithmetic.f, arithmetic, form, value, out)

    def _multiply_and_fill(self, tile: RegisterTile, sides: tuple[Side, Side], depth: int) -> None:
        """Write the product over `depth`, and the unpacking of a piece of what comes next.

        Two values of one vector of columns at a time: a core has begun enough multiply-adds before
        them to go on with, and most of unpacking is no work for the units that these need.
        """
        f, (left, right) = tile.f, sides
        *places, piece, target = f.arguments[-2 - len(self.filler.labels) :]
        unpack = self.filler.begin(f, places, is_beside=True)
        eights, group = self.filler.piece // EIGHT, NUMERICS[self.numeric].group
        # Parts of the depth, one for each step of unpacking or for several.
        steps = EIGHT // 2
        while steps > 1 and depth % (VECTORS * eights * steps * group):
            steps //= 2
        part = depth // (VECTORS * eights * steps)
        assert part % group == 0 == depth % part, "rows are whole vectors"
        for v in range(VECTORS):
            block = unpack.block(f.multiply(piece, eights), v)
            with f.loop(0, eights) as number:
                if v == 0:
                    unpack.ask(piece, number, target)
                if self.asks_for_rows:
                    self._ask_for_rows(tile, left, f.add(number, v * eights), VECTORS * eights)
                eight = f.add(f.multiply(piece, eights), number)
                first = f.add(f.multiply(number, steps * part), v * eights * steps * part)
                here = f.at(left.pointer, f.multiply(first, self.value_bytes))
                there = f.at(right.pointer, f.multiply(first, PANEL * self.value_bytes))
                unpacking = unpack.steps(block, eight, v, target)
                for step, _ in enumerate(unpacking):
                    if step < steps:
                        at = step * part * self.value_bytes
                        own = Side(f.at(here, at), left.step_bytes)
                        tile.multiply(own, Side(f.at(there, at * PANEL), right.step_bytes), part)

    def _ask_for_rows(self, tile: RegisterTile, rows: Side, number: Value, parts: int) -> None:
        """Ask for one of some parts of the rows after these."""
        f, size = tile.f, tile.rows * rows.step_bytes
        lines = -(-size // (64 * parts))
        first = f.at(f.at(rows.pointer, size), f.multiply(number, lines * 64))
        for line in range(lines):
            prefetch_line(f, f.at(first, line * 64), level="once")

    def _next_rows(self, tile: RegisterTile, rows: Side, depth: int) -> Prefetch | None:
        """Return what asks for the rows after these."""
        if not self.asks_for_rows:
            return None
        f, size = tile.f, tile.rows * rows.step_bytes
        each = -(-size // (depth // NUMERICS[self.numeric].group))
        ahead = f.at(rows.pointer, size)
        return lambda step: prefetch_line(f, f.at(ahead, f.multiply(step, each)), level="once")
