"""The functions that a product of panels calls: tiles of rows, and pieces of unpacking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module, Value
from vermilion.codegen.emit.decoder.prepared import Prepared
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
class PanelTiles:
    """Writes functions named after `name`, each once.

    Sums are float32, a row of them a panel wide.
    """

    module: Module
    name: str
    isa: Isa
    numeric: Literal["bf16", "f32"]
    weights: Weights
    rows: Prepared
    has_bias: bool

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
        unpack = Unpack(f, self.weights, self.rows.kind)
        eights = self.piece // EIGHT
        with f.loop(0, eights) as number:
            self._ask(f, ahead, piece, number)
            eight = f.add(f.multiply(piece, eights), number)
            for v in range(VECTORS):
                unpack.write(weights, eight, v, panel)
        f.finish()
        return name

    def tile(self, rows: int, depth: int, *, is_first: bool, is_filling: bool = False) -> str:
        """Write the function that sets or adds to sums of some rows and one panel.

        Its arguments: rows, panel, sums, the bias if there is one and it is to be added; then, of
        what is unpacked on the way, the weights, the number of the piece, where to, and the weights
        that are asked for meanwhile.
        """
        name = f"{self.name}_tile{rows}_{depth}_{int(is_first)}{'_filling' * is_filling}"
        if self.module.has(name):
            return name
        has_bias = self.has_bias and is_first
        labels = [("rows", "ptr"), ("panel", "ptr"), ("sums", "ptr"), *[("bias", "ptr")] * has_bias]
        if is_filling:
            labels += [("weights", "ptr"), ("piece", "i64"), ("next", "ptr"), ("ahead", "ptr")]
        f = Function(self.module, name, labels)
        left, right, sums, *more = f.arguments
        tile = RegisterTile(f, self.isa, self.numeric, rows, VECTORS)
        step = PANEL * self.value_bytes * NUMERICS[self.numeric].group
        sides = Side(left, self.rows.row_bytes), Side(right, step)
        if is_filling:
            self._multiply_and_fill(tile, sides, depth)
        else:
            tile.multiply(*sides, depth)
        arithmetic = Arithmetic(f, LANES)
        for y, slots in enumerate(tile.accumulators):
            for v, slot in enumerate(slots):
                place = f.at(sums, (y * PANEL + v * LANES) * 4)
                total = slot.get()
                if has_bias:
                    shift = arithmetic.load("f32", f.at(more[0], v * LANES * 4))
                    total = arithmetic.math.add(total, shift)
                if not is_first:
                    total = arithmetic.math.add(total, arithmetic.load("f32", place))
                arithmetic.store("f32", total, place)
        f.finish()
        return name

    def _multiply_and_fill(self, tile: RegisterTile, sides: tuple[Side, Side], depth: int) -> None:
        """Write the product over `depth`, and the unpacking of a piece of the next panel.

        Eight values of one vector of columns at a time: a core has begun enough multiply-adds
        before them to go on with, and most of unpacking is no work for the units that these need.
        """
        f, (left, right) = tile.f, sides
        weights, piece, target, ahead = f.arguments[-4:]
        unpack = Unpack(f, self.weights, self.rows.kind)
        eights, group = self.piece // EIGHT, NUMERICS[self.numeric].group
        assert depth % (eights * VECTORS * group) == 0, "rows are whole vectors"
        part = depth // (eights * VECTORS)
        with f.loop(0, eights) as number:
            self._ask(f, ahead, piece, number)
            eight = f.add(f.multiply(piece, eights), number)
            for v in range(VECTORS):
                at = f.add(f.multiply(number, part * VECTORS), v * part)
                here = f.at(left.pointer, f.multiply(at, self.value_bytes))
                there = f.at(right.pointer, f.multiply(at, PANEL * self.value_bytes))
                tile.multiply(
                    Side(here, left.step_bytes), Side(there, right.step_bytes), part
                )  # fmt: skip
                unpack.write(weights, eight, v, target)

    def _ask(self, f: Function, ahead: Value, piece: Value, number: Value) -> None:
        """Ask for the part of a piece of the weights ahead that goes with eight values of it."""
        piece_bytes = self.weights_bytes(self.piece)
        lines = -(-piece_bytes // (64 * (self.piece // EIGHT)))
        line = f.add(f.multiply(piece, piece_bytes), f.multiply(number, lines * 64))
        for place in range(0, lines * 64, 64):
            prefetch_line(f, f.at(f.at(ahead, line), place))
