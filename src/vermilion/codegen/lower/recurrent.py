"""LSTM, GRU and RNN: one product for the inputs of all times, then one step a time.

Source of every formula: ONNX LSTM-14, GRU-14 and RNN-14.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.recurrent import RecurrentSpec, pack_gates
from vermilion.codegen.emit.walk import Access
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.cells import FUNCTIONS, Cell, is_one_call, read_cell
from vermilion.codegen.lower.context import Lowering, key_of
from vermilion.codegen.lower.geometry import ConvGeometry
from vermilion.codegen.lower.product_step import product_step
from vermilion.codegen.lower.shapes import given_input
from vermilion.codegen.numeric import multiplied_storage, numeric_for, stored_weights
from vermilion.codegen.tensor import View, allocate
from vermilion.ir.attributes import integer
from vermilion.ir.expression import Apply, Constant, Expression, Operand, apply
from vermilion.ir.opset import static_shape

Array = NDArray[Any]

_ROWS = ConvGeometry((1, 1), (1, 1), (1, 1), (0, 0, 0, 0), 1)


def lower_recurrent(lowering: Lowering, node: ir.Node) -> None:
    """Write the product of the inputs, the steps in time, and what leaves them."""
    cell = read_cell(node)
    products = _input_products(lowering, cell)
    histories, cells = [], []
    # One direction after the other: the weights of one stay in a core's cache, of both often not.
    for direction in range(len(cell.directions)):
        is_looped = is_one_call(cell.steps)
        history = _all_states(cell) if is_looped else _history(lowering, cell)
        memory = allocate(f"{node.name} cell {direction}", "f32", (cell.batch, cell.hidden))
        cells.append(memory)
        chain = _Chain(lowering, cell, direction, products, history, memory)
        if is_looped:
            lowering.add(chain.one_call())
            after = 0 if cell.directions[direction] else 1
            histories.append(history.sliced(0, after, cell.steps))
            continue
        histories.append(history)
        for step in (step for steps in chain.steps() for step in steps):
            lowering.add(step)
    _results(lowering, cell, histories, cells)


def _is_wanted(node: ir.Node, index: int) -> bool:
    if index >= len(node.outputs):
        return False
    value = node.outputs[index]
    return bool(value.name) and (bool(value.uses()) or value.is_graph_output())


def _input_products(lowering: Lowering, cell: Cell) -> View:
    """Return input × weights + bias of all times.

    Shape: (steps, batch, directions, gates, hidden).
    """
    data = cell.node.inputs[0]
    assert data is not None
    view = lowering.demand(data)
    if cell.is_batch_first:
        view = view.permuted((1, 0, 2))
    storage = multiplied_storage(view.storage, lowering.isa)
    if not view.is_contiguous or view.storage != storage:
        view = lowering.copied(view, storage=storage)
    width = view.shape[2]
    rows, columns = cell.steps * cell.batch, cell.inputs.shape[0] * cell.inputs.shape[1]
    source = replace(view, shape=(1, width, 1, rows), strides=(0, 1, 0, width))
    shape = (cell.steps, cell.batch, len(cell.directions), cell.gates, cell.hidden)
    products = allocate(f"{cell.node.name} inputs", "f32", shape)
    output = replace(products, shape=(1, columns, 1, rows), strides=(0, 1, 0, columns))
    key = (key_of(cell.node), "recurrent")
    bias = lowering.weight((*key, "bias"), lambda: _joined_bias(cell).reshape(-1), "f32")
    operand = replace(bias, shape=(1, columns, 1, 1), strides=(0, 1, 0, 0))
    numeric = numeric_for(source.storage, lowering.isa)
    assert numeric is not None, f"no product on {source.storage}"
    weights = stored_weights(cell.inputs, lowering.storage(data)).reshape(columns, 1, 1, width)
    step = product_step(
        lowering, source, weights, key, _ROWS, output,
        [operand], apply("add", Operand(0), Operand(1)), [cell.node], numeric,
    )  # fmt: skip
    lowering.add(replace(step, operations=2 * rows * columns * width))
    return products


def _joined_bias(cell: Cell) -> Array:
    """Return the bias of inputs and states together, without what a GRU resets."""
    joined: Array = cell.bias.sum(1)
    if cell.node.op_type == "GRU" and cell.resets_after:
        joined[:, 2] = cell.bias[:, 0, 2]
    return joined


def _history(lowering: Lowering, cell: Cell) -> View:
    """Allocate the states of all times of one direction. Shape: (steps, batch, hidden)."""
    shape = (cell.steps, cell.batch, cell.hidden)
    value = cell.node.outputs[0]
    is_alone = len(cell.directions) == 1 and not cell.is_batch_first
    if _is_wanted(cell.node, 0) and is_alone and _is_plain(lowering, value):
        result = lowering.output(value).reshaped(shape)
        assert result is not None, "a direction of one has no stride"
        return result
    return allocate(f"{cell.node.name} states", "f32", shape)


def _all_states(cell: Cell) -> View:
    """Allocate the first state and those of all times, in their order in time."""
    return allocate(f"{cell.node.name} states", "f32", (cell.steps + 1, cell.batch, cell.hidden))


def _is_plain(lowering: Lowering, value: ir.Value) -> bool:
    return lowering.storage(value) == "f32" and str(value.name) not in lowering.borders


@dataclass
class _Chain:
    """The steps of one direction, each the next in time."""

    lowering: Lowering
    cell: Cell
    direction: int
    products: View
    history: View
    memory: View

    def steps(self) -> Iterator[list[Step]]:
        """Yield the steps of each time, in the order in which they run."""
        times = range(self.cell.steps)
        state = self._initial(5)
        cell = self._initial(6) if self.cell.node.op_type == "LSTM" else None
        for time in reversed(times) if self.cell.directions[self.direction] else times:
            now = self.history.sliced(0, time, 1)
            target = replace(now, shape=now.shape[1:], strides=now.strides[1:])
            form = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}
            yield form[self.cell.node.op_type](time, state, cell, target)
            state = target
            cell = self.memory

    def one_call(self) -> Step:
        """Return all times as one step; `history` has room for the first state, which is copied."""
        c = self.cell
        is_backward = c.directions[self.direction]

        def state_of(time: int) -> View:
            view = self.history.sliced(0, time, 1)
            return replace(view, shape=view.shape[1:], strides=view.strides[1:])

        first = state_of(c.steps if is_backward else 0)
        self.lowering.copy_into(self._initial(5), first, c.node)
        cell = None
        if c.node.op_type == "LSTM":
            cell = self.memory
            self.lowering.copy_into(self._initial(6), cell, c.node)
        before, after = state_of(int(is_backward)), state_of(int(not is_backward))
        form = {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}
        (step,) = form[c.node.op_type](0, before, cell, after)
        assert isinstance(step.spec, RecurrentSpec)
        strides = {
            id(self.products.buffer): self.products.strides[0],
            id(self.history.buffer): self.history.strides[0],
        }
        state, _, *others = step.arguments
        spec = replace(
            step.spec, times=c.steps, is_backward=is_backward,
            time_strides=tuple(strides.get(id(view.buffer), 0) for view in (state, *others)),
        )  # fmt: skip
        return replace(step, spec=spec, operations=step.operations * c.steps)

    def _initial(self, index: int) -> View:
        """Return the first state as float32 rows, zeros where none is given."""
        c = self.cell
        value = given_input(c.node, index)
        if value is None:
            return self._constant("zeros", np.zeros(c.hidden, np.float32))
        axis = 1 if c.is_batch_first else 0
        one = self.lowering.demand(value).sliced(axis, self.direction, 1)
        rows = one.reshaped((c.batch, c.hidden))
        assert rows is not None, "one direction is a matrix"
        if rows.storage == "f32" and rows.strides[1] == 1:
            return rows
        copy = allocate(f"{value.name} {self.direction}", "f32", rows.shape)
        self.lowering.copy_into(rows, copy, c.node)
        return copy

    def _inputs(self, time: int, gates: Sequence[int]) -> list[View]:
        """Return the products of the inputs of one time for these gates, as rows."""
        found = []
        for gate in gates:
            view = self.products
            for axis, at in ((0, time), (2, self.direction), (3, gate)):
                view = view.sliced(axis, at, 1)
            shape = (self.cell.batch, self.cell.hidden)
            found.append(replace(view, shape=shape, strides=(view.strides[1], view.strides[4])))
        return found

    def _constant(self, name: str, make: Array) -> View:
        key = (key_of(self.cell.node), name, str(self.direction))
        view = self.lowering.weight(key, lambda: make, "f32")
        return replace(view, shape=(self.cell.batch, self.cell.hidden), strides=(0, 1))

    def _step(
        self,
        gates: Sequence[int],
        state: View,
        operands: Sequence[View],
        outputs: Sequence[tuple[View, Expression]],
    ) -> Step:
        c, isa = self.cell, self.lowering.isa
        spec = RecurrentSpec(
            gates=len(gates), rows=c.batch, hidden=c.hidden, depth=c.hidden,
            state_row=state.strides[0],
            operands=tuple(Access(view.storage, (view.strides[0], 1)) for view in operands),
            outputs=tuple(Access(view.storage, (view.strides[0], 1)) for view, _ in outputs),
            expressions=tuple(expression for _, expression in outputs),
            lanes=isa.lanes,
        )  # fmt: skip
        key = (key_of(c.node), "states", str(self.direction), str(gates))
        weights = c.states[self.direction].reshape(c.gates, c.hidden, c.hidden)
        chosen = weights[list(gates)]
        packed = self.lowering.weight(key, lambda: pack_gates(chosen, isa.lanes), "f32")
        views = [view for view, _ in outputs]
        return Step(
            spec, (state, packed, *operands, *views), tuple(views), (str(c.node.name),),
            2 * c.batch * c.hidden * c.hidden * len(gates),
        )  # fmt: skip

    def _lstm(self, time: int, state: View, cell: View | None, target: View) -> list[Step]:
        assert cell is not None
        c, d = self.cell, self.direction
        order = (0, 1, 2, 3)  # input, output, forget, cell
        operands = [*self._inputs(time, order), cell]
        before = Operand(8)
        sums = [apply("add", Operand(gate), Operand(4 + gate)) for gate in order]
        peepholes: list[Expression] = []
        if c.peepholes is not None:
            for number, row in enumerate(c.peepholes[d].reshape(3, c.hidden)):
                operands.append(self._constant(f"peephole {number}", row))
                peepholes.append(Operand(9 + number))

        def seen(number: int, gate: int, memory: Expression) -> Expression:
            if not peepholes:
                return sums[gate]
            return Apply("fma", (peepholes[number], memory, sums[gate]))

        enter = c.activated(d, 0, seen(0, 0, before))
        if integer(c.node, "input_forget", 0):
            forget = apply("sub", Constant(1.0), enter)  # as ONNX Runtime couples them
        else:
            forget = c.activated(d, 0, seen(2, 2, before))
        new = apply("mul", enter, c.activated(d, 1, sums[3]))
        memory = Apply("fma", (forget, before, new))
        leave = c.activated(d, 0, seen(1, 1, memory))
        squashed = FUNCTIONS[c.activation(d, 2)](memory)
        result = apply("mul", leave, squashed)
        return [self._step(order, state, operands, [(target, result), (self.memory, memory)])]

    def _gru(self, time: int, state: View, cell: View | None, target: View) -> list[Step]:
        form = self._gru_after if self.cell.resets_after else self._gru_before
        return form(time, state, target)

    def _gru_after(self, time: int, state: View, target: View) -> list[Step]:
        """Reset the product with the state."""
        c, d = self.cell, self.direction
        order = (0, 1, 2)  # update, reset, new
        bias = self._constant("reset bias", c.bias[d, 1, 2])
        operands = [*self._inputs(time, order), state, bias]
        update, reset = (
            c.activated(d, 0, apply("add", Operand(gate), Operand(3 + gate))) for gate in (0, 1)
        )
        inner = apply("add", Operand(2), Operand(7))
        new = c.activated(d, 1, Apply("fma", (reset, inner, Operand(5))))
        return [self._step(order, state, operands, [(target, _mixed(update, new, Operand(6)))])]

    def _gru_before(self, time: int, state: View, target: View) -> list[Step]:
        """Reset the state, then multiply: the product waits for all reset gates."""
        c, d = self.cell, self.direction
        rows = (c.batch, c.hidden)
        update_view = allocate(f"{c.node.name} update {d}", "f32", rows)
        reset_view = allocate(f"{c.node.name} reset {d}", "f32", rows)
        update, reset = (
            c.activated(d, 0, apply("add", Operand(gate), Operand(2 + gate))) for gate in (0, 1)
        )
        first = self._step(
            (0, 1), state, [*self._inputs(time, (0, 1)), state],
            [(update_view, update), (reset_view, apply("mul", reset, Operand(4)))],
        )  # fmt: skip
        new = c.activated(d, 1, apply("add", Operand(0), Operand(1)))
        second = self._step(
            (2,), reset_view, [*self._inputs(time, (2,)), update_view, state],
            [(target, _mixed(Operand(2), new, Operand(3)))],
        )  # fmt: skip
        return [first, second]

    def _rnn(self, time: int, state: View, cell: View | None, target: View) -> list[Step]:
        total = apply("add", Operand(0), Operand(1))
        result = self.cell.activated(self.direction, 0, total)
        return [self._step((0,), state, self._inputs(time, (0,)), [(target, result)])]


def _mixed(update: Expression, new: Expression, before: Expression) -> Expression:
    """Return (1 - update)·new + update·before."""
    return Apply("fma", (update, before, apply("mul", apply("sub", Constant(1.0), update), new)))


def _results(
    lowering: Lowering, cell: Cell, histories: Sequence[View], cells: Sequence[View]
) -> None:
    """Register or copy what the node gives: all states, the last states, the last cells."""
    node = cell.node
    if _is_wanted(node, 0) and str(node.outputs[0].name) not in lowering.views:
        target = lowering.output(node.outputs[0])
        # (steps, directions, batch, hidden), or batch first
        ordered = target.permuted((1, 2, 0, 3)) if cell.is_batch_first else target
        for direction, history in enumerate(histories):
            one = ordered.sliced(1, direction, 1)
            lowering.copy_into(
                history, replace(one, shape=history.shape, strides=_without(one.strides, 1)), node
            )
    last = []
    for backwards, history in zip(cell.directions, histories, strict=True):
        view = history.sliced(0, 0 if backwards else cell.steps - 1, 1)
        last.append(replace(view, shape=view.shape[1:], strides=view.strides[1:]))
    for index, views in ((1, last), (2, cells)):
        if _is_wanted(node, index):
            _final(lowering, cell, node.outputs[index], views)


def _without(strides: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*strides[:axis], *strides[axis + 1 :])


def _final(lowering: Lowering, cell: Cell, value: ir.Value, views: Sequence[View]) -> None:
    axis = 1 if cell.is_batch_first else 0
    if len(views) == 1 and lowering.storage(value) == "f32":
        shape = static_shape(value)
        assert shape is not None
        same = views[0].reshaped(shape)
        assert same is not None, "one direction more or less has no stride"
        lowering.views[str(value.name)] = same
        return
    target = lowering.output(value)
    for direction, view in enumerate(views):
        one = target.sliced(axis, direction, 1)
        place = replace(one, shape=view.shape, strides=_without(one.strides, axis))
        lowering.copy_into(view, place, cell.node)
