"""LSTM, GRU and RNN, step by step, in both directions and over sequences of different lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.ir.literal.call import Call, Table, computes
from vermilion.ir.literal.elementwise import sigmoid

Array = NDArray[Any]
Activation = Callable[[Array], Array]


@dataclass(frozen=True)
class _Kind:
    """What an activation computes of (x, alpha, beta), and the defaults of both."""

    function: Callable[[Array, float, float], Array]
    alpha: float = 0.0
    beta: float = 0.0


# Source: ONNX LSTM-22, "Activation functions"; defaults as of the operators of the same name.
_ACTIVATIONS: Mapping[str, _Kind] = {
    "relu": _Kind(lambda x, a, b: np.maximum(x, 0.0)),
    "tanh": _Kind(lambda x, a, b: np.tanh(x)),
    "sigmoid": _Kind(lambda x, a, b: sigmoid(x)),
    "affine": _Kind(lambda x, a, b: a * x + b, 1.0, 0.0),
    "leakyrelu": _Kind(lambda x, a, b: np.where(x >= 0, x, a * x), 0.01),
    "thresholdedrelu": _Kind(lambda x, a, b: np.where(x >= a, x, 0.0), 1.0),
    "scaledtanh": _Kind(lambda x, a, b: a * np.tanh(b * x), 1.0, 1.0),
    "hardsigmoid": _Kind(lambda x, a, b: np.clip(a * x + b, 0.0, 1.0), 0.2, 0.5),
    "elu": _Kind(lambda x, a, b: np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0.0))), 1.0),
    "softsign": _Kind(lambda x, a, b: x / (1.0 + np.abs(x))),
    "softplus": _Kind(lambda x, a, b: np.logaddexp(0.0, x)),
}
_TAKES_ALPHA = frozenset(
    {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
)
_TAKES_BETA = frozenset({"affine", "scaledtanh", "hardsigmoid"})

_DEFAULTS: Mapping[str, tuple[str, ...]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}


@dataclass(frozen=True)
class _Cell:
    """One direction: its weights and activations. Shapes: rows are gates · hidden."""

    weights: Array
    recurrence: Array
    bias: Array
    recurrent_bias: Array
    peepholes: Array
    activations: tuple[Activation, ...]
    is_coupled: bool
    resets_after: bool


# Gives (hidden, cell) of the next step from those of the last one.
Step = Callable[[_Cell, Array, Array, Array], tuple[Array, Array]]


def _rnn(cell: _Cell, x: Array, hidden: Array, state: Array) -> tuple[Array, Array]:
    total = x @ cell.weights.T + hidden @ cell.recurrence.T + cell.bias + cell.recurrent_bias
    return cell.activations[0](total), state


def _lstm(cell: _Cell, x: Array, hidden: Array, state: Array) -> tuple[Array, Array]:
    f, g, h = cell.activations
    total = x @ cell.weights.T + hidden @ cell.recurrence.T + cell.bias + cell.recurrent_bias
    into, out, forget, candidate = np.split(total, 4, axis=-1)
    peep_in, peep_out, peep_forget = np.split(cell.peepholes, 3)
    i = f(into + peep_in * state)
    kept = 1.0 - i if cell.is_coupled else f(forget + peep_forget * state)
    state = kept * state + i * g(candidate)
    return f(out + peep_out * state) * h(state), state


def _gru(cell: _Cell, x: Array, hidden: Array, state: Array) -> tuple[Array, Array]:
    f, g = cell.activations
    size = hidden.shape[-1]
    given = x @ cell.weights.T + cell.bias
    gates = hidden @ cell.recurrence[: 2 * size].T + cell.recurrent_bias[: 2 * size]
    z, r = np.split(f(given[..., : 2 * size] + gates), 2, axis=-1)
    rows, bias = cell.recurrence[2 * size :], cell.recurrent_bias[2 * size :]
    after, before = r * (hidden @ rows.T + bias), (r * hidden) @ rows.T + bias
    recurrent = after if cell.resets_after else before
    return (1.0 - z) * g(given[..., 2 * size :] + recurrent) + z * hidden, state


_STEPS: Mapping[str, tuple[int, Step]] = {"LSTM": (4, _lstm), "GRU": (3, _gru), "RNN": (1, _rnn)}


def _activations(call: Call, directions: int) -> list[Activation]:
    written = call.node.attributes.get("activations")
    default = _DEFAULTS[call.node.op_type]
    names = list(default) * directions if written is None else list(written.as_strings())
    if len(names) != len(default) * directions:
        raise call.error(f"it has {len(names)} activations for {directions} directions")
    waiting = {
        key: [] if key not in call.node.attributes else list(call.node.attributes[key].as_floats())
        for key in ("activation_alpha", "activation_beta")
    }
    limit = call.number("clip", 0.0)
    found: list[Activation] = []
    for place, name in enumerate(names):
        kind = _ACTIVATIONS.get(name.lower())
        if kind is None:
            raise call.error(f"the activation `{name}` is none of the operator")
        alpha, beta = kind.alpha, kind.beta
        if name.lower() in _TAKES_ALPHA and waiting["activation_alpha"]:
            alpha = waiting["activation_alpha"].pop(0)
        if name.lower() in _TAKES_BETA and waiting["activation_beta"]:
            beta = waiting["activation_beta"].pop(0)
        # As in ONNX Runtime, the cell of an LSTM is not clipped on its way out.
        is_on_the_way_out = place % len(default) == 2
        found.append(_activation(kind, alpha, beta, 0.0 if is_on_the_way_out else limit))
    return found


def _activation(kind: _Kind, alpha: float, beta: float, limit: float) -> Activation:
    def activated(x: Array) -> Array:
        return kind.function(np.clip(x, -limit, limit) if limit else x, alpha, beta)

    return activated


def _run(
    cell: _Cell, step: Step, x: Array, lengths: Array, hidden: Array, state: Array
) -> tuple[Array, Array, Array]:
    """Run one direction forwards. Shapes: x (time, batch, input), states (batch, hidden)."""
    results = np.zeros((*x.shape[:2], hidden.shape[-1]))
    for time in range(x.shape[0]):
        runs = (time < lengths)[:, None]
        new_hidden, new_state = step(cell, x[time], hidden, state)
        hidden, state = np.where(runs, new_hidden, hidden), np.where(runs, new_state, state)
        results[time] = np.where(runs, hidden, 0.0)
    return results, hidden, state


def _turned(x: Array, lengths: Array) -> Array:
    """Return sequences backwards, each within its length."""
    steps = np.arange(x.shape[0])[:, None]
    places = np.where(steps < lengths, lengths - 1 - steps, steps)
    return np.asarray(x[places, np.arange(x.shape[1])])


def _recurrent(call: Call) -> tuple[Array, ...]:
    gates, step = _STEPS[call.node.op_type]
    is_batch_first = bool(call.integer("layout", 0))
    x = call[0].swapaxes(0, 1) if is_batch_first else call[0]
    weights, recurrence = call[1], call[2]
    directions, hidden_size = weights.shape[0], recurrence.shape[-1]
    batch = x.shape[1]
    lengths = call[4].astype(np.int64) if call.has(4) else np.full(batch, x.shape[0])
    bias = call[3] if call.has(3) else np.zeros((directions, 2 * gates * hidden_size))
    has_peepholes = call.node.op_type == "LSTM" and call.has(7)
    peepholes = call[7] if has_peepholes else np.zeros((directions, 3 * hidden_size))
    start = np.zeros((directions, batch, hidden_size))
    first = [start, start]
    for index, at in enumerate((5, 6) if call.node.op_type == "LSTM" else (5,)):
        if call.has(at):
            first[index] = call[at].swapaxes(0, 1) if is_batch_first else call[at]
    activations = _activations(call, directions)
    each = len(activations) // directions
    way = call.text("direction", "forward")
    if directions != (2 if way == "bidirectional" else 1):
        raise call.error(f"its weights are for {directions} directions, not for `{way}`")
    found = []
    for at in range(directions):
        half = gates * hidden_size
        cell = _Cell(
            weights[at],
            recurrence[at],
            bias[at][:half],
            bias[at][half:],
            peepholes[at],
            tuple(activations[at * each : (at + 1) * each]),
            bool(call.integer("input_forget", 0)),
            bool(call.integer("linear_before_reset", 0)),
        )
        is_back = at == 1 or way == "reverse"
        given = _turned(x, lengths) if is_back else x
        results, hidden, state = _run(cell, step, given, lengths, first[0][at], first[1][at])
        found.append((_turned(results, lengths) if is_back else results, hidden, state))
    y = np.stack([results for results, _, _ in found], 1)
    ends = [np.stack([ending[at] for ending in found]) for at in (1, 2)]
    if is_batch_first:
        y, ends = y.transpose(2, 0, 1, 3), [end.swapaxes(0, 1) for end in ends]
    return (y, *ends) if call.node.op_type == "LSTM" else (y, ends[0])


OPERATORS: Table = {name: computes(_recurrent) for name in _STEPS}
