"""Products of rows with the weights of those experts alone that the rows chose.

Rows are copied to the slots of their experts; then each expert with rows computes them by the
kernel that any product has, given its own weights and slots; last, what a row's experts gave is
summed by their weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vermilion.codegen.emit.arithmetic import Arithmetic
from vermilion.codegen.emit.builder import Function, Module
from vermilion.codegen.emit.decoder.block_product import BlockProductSpec
from vermilion.codegen.emit.decoder.control import Control
from vermilion.codegen.emit.decoder.panel_product import PanelProductSpec
from vermilion.codegen.emit.decoder.routes import RouteReader, Routes, with_rows
from vermilion.codegen.emit.decoder.row import RowSpec
from vermilion.codegen.emit.decoder.weights import LANES, PANEL
from vermilion.codegen.emit.values import Value, constant
from vermilion.codegen.emit.walk import begin_kernel
from vermilion.codegen.isa import Isa

_LINE = 64


@dataclass(frozen=True)
class RoutedCopySpec:
    """The rows of all slots, `row_bytes` each. Arguments: control, routes, rows, slots' rows."""

    routes: Routes
    row_bytes: int

    family = "routed_copy"

    @property
    def units(self) -> int:
        """One unit a slot."""
        return self.routes.slots

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        assert self.row_bytes % _LINE == 0, "rows are whole lines"
        f, (control, pointer, rows, out), (begin, end) = begin_kernel(module, name, 4)
        routes = RouteReader(f, self.routes, pointer)
        there = routes.word("used")
        with f.loop(*Control(f, control).share(begin, end, self.units, there)) as slot:
            row = routes.word("rows", slot)
            source = f.at(rows, f.multiply(row, self.row_bytes))
            target = f.at(out, f.multiply(slot, self.row_bytes))
            with f.loop(0, self.row_bytes, _LINE) as at:
                line = f.load(f"<{_LINE} x i8>", source, at, align=1)
                f.store(line, target, at, align=1)
        f.finish()


@dataclass(frozen=True)
class RoutedRowsSpec:
    """What `rows` does to a row, done to all slots. Arguments: control, routes, those of `rows`."""

    routes: Routes
    rows: RowSpec
    count: int  # of the arguments of `rows`, without the control block

    family = "routed_rows"

    @property
    def units(self) -> int:
        """One unit a slot."""
        return self.routes.slots

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function and the one that it calls."""
        assert self.rows.max_rows == self.units, "a row is a slot"
        inner = f"{name}_rows"
        self.rows.write(module, inner, isa)
        f, (control, pointer, *rest), (begin, end) = begin_kernel(module, name, 2 + self.count)
        used = RouteReader(f, self.routes, pointer).word("used")
        _call(f, inner, [with_rows(f, control, used), *rest], begin, end)
        f.finish()


@dataclass(frozen=True)
class ExpertProductSpec:
    """A product of the rows in each expert's slots with its own weights.

    `product` is that of one expert, whose weights are `product.weights.size_bytes` behind those of
    the one before it, and its bias likewise. Arguments: control, routes, slots' rows, weights, out,
    and the biases if there are any.
    """

    routes: Routes
    product: BlockProductSpec | PanelProductSpec

    family = "expert_product"

    @property
    def units(self) -> int:
        """One unit a unit of an expert that has rows."""
        return self.routes.most_active * self.product.units

    @property
    def out_bytes(self) -> int:
        """Bytes from one row that is written to the next."""
        product = self.product
        if isinstance(product, PanelProductSpec) and product.gate is not None:
            return product.gate.form.row_bytes
        return product.out_row * 4

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function and the one that it calls."""
        inner = f"{name}_one"
        self.product.write(module, inner, isa)
        has_bias = self.product.has_bias
        f, pointers, (begin, end) = begin_kernel(module, name, 5 + has_bias)
        control, pointer, rows, weights, out, *biases = pointers
        routes = RouteReader(f, self.routes, pointer)
        each = self.product.units
        there = f.multiply(routes.word("active"), each)
        low, high = Control(f, control).share(begin, end, self.units, there)
        with f.loop(f.divide(low, each), f.divide(f.add(high, each - 1), each)) as number:
            before = f.multiply(number, each)
            expert = routes.word("list", number)
            first = routes.word("firsts", expert)
            arguments = [
                with_rows(f, control, routes.word("counts", expert)),
                f.at(rows, f.multiply(first, self.product.rows.row_bytes)),
                f.at(weights, f.multiply(expert, self.product.weights.size_bytes)),
                f.at(out, f.multiply(first, self.out_bytes)),
            ]
            size = self.product.weights.panels * PANEL * 4
            arguments += [f.at(one, f.multiply(expert, size)) for one in biases]
            nothing, behind = constant("i64", 0), f.subtract(low, before)
            is_inside = f.compare("sgt", behind, nothing)
            own_begin = f.select(is_inside, behind, nothing)
            own_end = f.minimum(f.subtract(high, before), each)
            _call(f, inner, arguments, own_begin, own_end)
        f.finish()


def _call(
    f: Function, function: str, arguments: Sequence[Value], begin: Value, end: Value
) -> None:  # fmt: skip
    """Write the call of a kernel's function for a range of its units."""
    pointers = f.scratch(8 * len(arguments))
    for number, argument in enumerate(arguments):
        f.store(argument, pointers, 8 * number, align=8)
    f.call_void(function, [pointers, begin, end])


@dataclass(frozen=True)
class CombineSpec:
    """Each row's sum of what its experts gave, by their weights, and of what all rows have.

    `slot_row`, `out_row`, `shared_row` and `share_row` are the numbers from one row to the next of
    the slots, the result, the shared expert's result and the number whose sigmoid that is
    multiplied with; 0 for what is not there. Arguments: control, routes, slots' rows, shared rows,
    shares, out; only those that are there.
    """

    routes: Routes
    width: int
    slot_row: int
    out_row: int
    shared_row: int = 0
    share_row: int = 0

    family = "combine_experts"

    @property
    def units(self) -> int:
        """One unit a row."""
        return self.routes.max_rows

    def write(self, module: Module, name: str, isa: Isa) -> None:
        """Write the function."""
        assert self.width % LANES == 0, "rows are whole vectors"
        there = 4 + bool(self.shared_row) + bool(self.share_row)
        f, pointers, (begin, end) = begin_kernel(module, name, there)
        control, pointer, slots, *others, out = pointers
        arithmetic, routes = Arithmetic(f, LANES), RouteReader(f, self.routes, pointer)
        m = arithmetic.math
        rows = Control(f, control).share(begin, end, self.units, Control(f, control).rows)
        with f.loop(*rows) as row:
            target = f.at(out, f.multiply(row, 4 * self.out_row))
            first = f.multiply(row, self.routes.chosen)
            shared = f.at(others[0], f.multiply(row, 4 * self.shared_row)) if others else None
            share = None
            if self.share_row:
                place = f.at(others[1], f.multiply(row, 4 * self.share_row))
                share = m.sigmoid(arithmetic.load_splat("f32", place))
            with f.loop(0, self.width, LANES) as at:
                value = m.number(0.0)
                if shared is not None:
                    value = arithmetic.load("f32", f.at(shared, f.multiply(at, 4)))
                    value = value if share is None else m.multiply(value, share)
                arithmetic.store("f32", value, f.at(target, f.multiply(at, 4)))
            with f.loop(0, self.routes.chosen) as number:
                pair = f.add(first, number)
                weight = arithmetic.load_splat("f32", routes.weight_place(pair))
                slot = f.multiply(routes.word("places", pair), 4 * self.slot_row)
                source = f.at(slots, slot)
                with f.loop(0, self.width, LANES) as at:
                    place = f.at(target, f.multiply(at, 4))
                    given = arithmetic.load("f32", f.at(source, f.multiply(at, 4)))
                    total = m.fma(given, weight, arithmetic.load("f32", place))
                    arithmetic.store("f32", total, place)
        f.finish()
