"""The functions that a product of panels calls: tiles of rows, and pieces of unpacking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Value
from vermilion.codegen.emit.decoder.prepared import Prepared, write_vector
from vermilion.codegen.emit.decoder.row import Source, source_value
from vermilion.codegen.emit.decoder.unpack import EIGHT, Unpack
from vermilion.codegen.emit.decoder.weights import (
    LANES,
    PANEL,
    VECTORS,
    BlockWeights,
    PlainWeights,
    Weights,
)
from vermilion.codegen.emit.register_tile import RegisterTile, Side, prefetch_line
from vermilion.codegen.isa import Isa
from vermilion.codegen.numeric import NUMERICS


@dataclass(frozen=True)
class Gate:
    """Columns of the first half gate those of the second: the rows of `form` that they give.

    Both halves are whole panels.
    """

    source: Source
    form: Prepared


@dataclass(frozen=True)
class Run:
    """A part of the depth: whether sums begin with it, and whether they are whole after it."""

    depth: int
    is_first: bool
    is_last: bool


@dataclass(frozen=True)
class PanelTiles:
    """Writes functions named after `name`, each once.

    Sums are float32, a row of them a panel wide. Whole ones are written as float32 rows of
    `out_row` numbers, or with `gate` as rows of its form.
    """

    module: Module
    name: str
    isa: Isa
    numeric: Literal["bf16", "f32"]
    weights: Weights
    rows: Prepared
    has_bias: bool
    out_row: int
    gate: Gate | None

    @property
    def out_item_bytes(self) -> int:
        """Bytes of a number of the rows that are written."""
        return 4 if self.gate is None or self.gate.form.kind == "f32" else 2

    @property
    def out_bytes(self) -> int:
        """Bytes from one row that is written to the next."""
        return self.out_row * 4 if self.gate is None else self.gate.form.row_bytes

    @property
    def piece(self) -> int:
        """Values of the depth that are unpacked in one tile: a part of whole blocks."""
        is_whole = isinstance(self.weights, BlockWeights) and self.weights.block % 32 == 0
        return 32 if is_whole else 16

    @property
    def value_bytes(self) -> int:
        """Bytes of a number of the rows, and of the panel."""
        return 4 if self.numeric == "f32" else 2

    def weights_bytes(self, depth: int) -> int:
        """Give the bytes of a panel's weights for some of the depth, rounded up."""
        w = self.weights
        if isinstance(w, PlainWeights):
            return depth * PANEL * 4
        return -(-depth * w.block_bytes // w.block)

    def unpacking(self) -> str:
        """Write the function (weights, piece, panel, ahead) that unpacks a piece of a run.

        The same piece of the weights `ahead` is asked for.
        """
        name = f"{self.name}_unpack"
        if self.module.has(name):
            return name
        labels = [("weights", "ptr"), ("piece", "i64"), ("panel", "ptr"), ("ahead", "ptr")]
        f = Function(self.module, name, labels)
        weights, piece, panel, ahead = f.arguments
        unpack = Unpack(f, self.weights, self.rows.kind, is_beside=False)
        eights = self.piece // EIGHT
        first = f.multiply(piece, eights)
        blocks = [unpack.block(weights, first, v) for v in range(VECTORS)]
        with f.loop(0, eights) as number:
            self._ask(f, ahead, piece, number)
            for v, block in enumerate(blocks):
                for _ in unpack.steps(weights, block, f.add(first, number), v, panel):
                    pass
        f.finish()
        return name

    def tile(self, rows: int, run: Run, *, is_filling: bool = False) -> str:
        """Write the function that adds to sums of some rows and one panel, or ends them.

        Its arguments: rows, panel, sums, where whole ones go, the bias if there is one and sums
        begin with it; then, of what is unpacked on the way, the weights, the number of the piece,
        where to, and the weights that are asked for meanwhile.
        Of a gate, the other half's whole sums are as many bytes before these as `gates` says.
        """
        edges = f"{int(run.is_first)}{int(run.is_last)}{'_filling' * is_filling}"
        name = f"{self.name}_tile{rows}_{run.depth}_{edges}"
        if self.module.has(name):
            return name
        has_bias = self.has_bias and run.is_first
        labels = ["rows", "panel", "sums", *["out"] * run.is_last]
        labels += ["gates"] * self.is_gated(run) + ["bias"] * has_bias
        if is_filling:
            labels += ["weights", "piece", "next", "ahead"]
        types = [(label, "i64" if label == "piece" else "ptr") for label in labels]
        f = Function(self.module, name, types)
        of = dict(zip(labels, f.arguments, strict=True))
        tile = RegisterTile(f, self.isa, self.numeric, rows, VECTORS)
        step = PANEL * self.value_bytes * NUMERICS[self.numeric].group
        sides = Side(of["rows"], self.rows.row_bytes), Side(of["panel"], step)
        if is_filling:
            self._multiply_and_fill(tile, sides, run.depth)
        else:
            tile.multiply(*sides, run.depth)
        arithmetic = Arithmetic(f, LANES)
        for y, slots in enumerate(tile.accumulators):
            for v, slot in enumerate(slots):
                at = (y * PANEL + v * LANES) * 4
                total = slot.get()
                if has_bias:
                    shift = arithmetic.load("f32", f.at(of["bias"], v * LANES * 4))
                    total = arithmetic.math.add(total, shift)
                if not run.is_first:
                    before = arithmetic.load("f32", f.at(of["sums"], at))
                    total = arithmetic.math.add(total, before)
                if not run.is_last:
                    arithmetic.store("f32", total, f.at(of["sums"], at))
                    continue
                gate = [f.at(of["gates"], at)] if self.gate else []
                place = y * self.out_bytes + v * LANES * self.out_item_bytes
                self._write_whole(arithmetic, total, f.at(of["out"], place), *gate)
        f.finish()
        return name

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
        """Write the product over `depth`, and the unpacking of a piece of the next panel.

        Two values of one vector of columns at a time: a core has begun enough multiply-adds before
        them to go on with, and most of unpacking is no work for the units that these need.
        """
        f, (left, right) = tile.f, sides
        weights, piece, target, ahead = f.arguments[-4:]
        unpack = Unpack(f, self.weights, self.rows.kind, is_beside=True)
        eights, group = self.piece // EIGHT, NUMERICS[self.numeric].group
        # Parts of the depth, one for each step of unpacking or for several.
        steps = EIGHT // 2
        while steps > 1 and depth % (VECTORS * eights * steps * group):
            steps //= 2
        part = depth // (VECTORS * eights * steps)
        assert part % group == 0 == depth % part, "rows are whole vectors"
        for v in range(VECTORS):
            block = unpack.block(weights, f.multiply(piece, eights), v)
            with f.loop(0, eights) as number:
                if v == 0:
                    self._ask(f, ahead, piece, number)
                eight = f.add(f.multiply(piece, eights), number)
                first = f.add(f.multiply(number, steps * part), v * eights * steps * part)
                here = f.at(left.pointer, f.multiply(first, self.value_bytes))
                there = f.at(right.pointer, f.multiply(first, PANEL * self.value_bytes))
                unpacking = unpack.steps(weights, block, eight, v, target)
                for step, _ in enumerate(unpacking):
                    if step < steps:
                        at = step * part * self.value_bytes
                        own = Side(f.at(here, at), left.step_bytes)
                        tile.multiply(own, Side(f.at(there, at * PANEL), right.step_bytes), part)

    def _ask(self, f: Function, ahead: Value, piece: Value, number: Value) -> None:
        """Ask for the part of a piece of the weights ahead that goes with eight values of it."""
        piece_bytes = self.weights_bytes(self.piece)
        lines = -(-piece_bytes // (64 * (self.piece // EIGHT)))
        line = f.add(f.multiply(piece, piece_bytes), f.multiply(number, lines * 64))
        for place in range(0, lines * 64, 64):
            prefetch_line(f, f.at(f.at(ahead, line), place))
