"""Builders of LSTM, GRU and RNN in all directions, layouts and activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from random_graphs.elementwise import Build
from random_graphs.graph_writer import GraphWriter

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}


def recurrent(op_type: str) -> Build:
    gates = _GATES[op_type]

    def build(w: GraphWriter) -> object:
        steps, batch = w.one_of([1, 2, 3, 5, 7]), w.one_of([1, 2, 3])
        inputs, hidden = w.one_of([1, 2, 3, 5, 8, 16, 17]), w.one_of([1, 2, 3, 5, 8, 16, 17, 33])
        layout = int(w.opset >= 14 and w.maybe(0.15))
        direction = w.one_of(["forward", "reverse", "bidirectional", None])
        d = 2 if direction == "bidirectional" else 1
        shape = (batch, steps, inputs) if layout else (steps, batch, inputs)
        x = w.take(lambda v: v.shape == shape and v.array.dtype == w.float_type,
                   lambda: w.new(shape))  # fmt: skip
        scale = 0.7 / np.sqrt(hidden)

        def array(*sizes: int) -> Any:
            return w.constant(np.asarray(w.random.normal(0, scale, sizes), w.float_type))

        states = (batch, d, hidden) if layout else (d, batch, hidden)
        rest: list[Any] = [array(d, gates * hidden, inputs), array(d, gates * hidden, hidden)]
        rest.append(array(d, 2 * gates * hidden) if w.maybe(0.7) else None)
        lengths = np.full(batch, steps, np.int32)
        rest.append(w.constant(lengths) if w.maybe(0.15) else None)
        rest.append(w.new(states) if w.maybe(0.4) else None)
        if op_type == "LSTM":
            rest.append(w.new(states) if w.maybe(0.4) else None)
            rest.append(array(d, 3 * hidden) if w.maybe(0.2) else None)
        while rest[-1] is None:
            rest.pop()
        named: dict[str, Any] = {"hidden_size": hidden}
        named |= {"direction": direction} if direction else {}
        named |= {"layout": 1} if layout else {}
        named |= {"clip": w.one_of([0.5, 2.0])} if w.maybe(0.15) else {}
        if w.maybe(0.3):
            bounded = ["Tanh", "Sigmoid", "Softsign"]
            # Without a bound a state grows with each step: in few bits a rounding decides whether
            # it is infinite at the end, of a gate in any number.
            is_wide = w.number_format in ("fp32", "int8")
            others = [*bounded, "Relu", "Softplus"] if is_wide else bounded
            named["activations"] = [
                w.one_of(bounded if at % _FUNCTIONS[op_type] == 0 else others)
                for at in range(d * _FUNCTIONS[op_type])
            ]
        if op_type == "GRU" and w.maybe(0.5):
            named["linear_before_reset"] = 1
        wanted = [w.maybe(0.8), w.maybe(0.6)]
        if op_type == "LSTM":
            wanted.append(w.maybe(0.5))
        if not any(wanted):
            wanted[0] = True
        while not wanted[-1]:
            wanted.pop()
        return w.ops(op_type, wanted, x, *rest, **named)

    return build


BUILDERS: Mapping[str, tuple[int, Build]] = {
    name: (7, recurrent(name)) for name in ("LSTM", "GRU", "RNN")
}
