"""What an LSTM, GRU or RNN node says: sizes, weights, directions and activations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.lower.shapes import given_input
from vermilion.ir.attributes import integer, number, text
from vermilion.ir.expression import Constant, Expression, apply
from vermilion.ir.opset import constant_of, static_shape
from vermilion.ir.symbolic import is_known

Array = NDArray[Any]

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}
# Beyond it the table of steps outweighs the code: they are one call then, of one worker.
_LONGEST = 1024


def _softsign(x: Expression) -> Expression:
    return apply("div", x, apply("add", apply("abs", x), Constant(1.0)))


FUNCTIONS: Mapping[str, Callable[[Expression], Expression]] = {
    "sigmoid": lambda x: apply("sigmoid", x),
    "tanh": lambda x: apply("tanh", x),
    "relu": lambda x: apply("max", x, Constant(0.0)),
    "softplus": lambda x: apply("softplus", x),
    "softsign": _softsign,
}


def check_recurrent(node: ir.Node) -> str:
    """Say why an LSTM, GRU or RNN is not generated, empty if it is."""
    name = node.op_type
    sizes = static_shape(node.inputs[0])
    if sizes is None or len(sizes) != 3:
        return f"{name} whose sequence has no fixed shape"
    for index, what in ((1, "weights"), (2, "weights"), (3, "a bias"), (7, "peepholes")):
        value = given_input(node, index)
        if value is not None and constant_of(value) is None:
            return f"{name} with {what} that are not constant"
    axis = 1 if integer(node, "layout", 0) else 0
    lengths = given_input(node, 4)
    if lengths is not None:
        given = constant_of(lengths)
        is_whole = given is not None and is_known(sizes[axis])
        if given is None or not is_whole or (given.numpy() != sizes[axis]).any():
            return f"{name} over sequences of different lengths"
    if is_one_call(sizes[axis]) and name == "GRU" and not integer(node, "linear_before_reset", 0):
        how = f"more than {_LONGEST}" if is_known(sizes[axis]) else "a dynamic number of"
        return f"GRU over {how} steps, of which each has two products"
    if "activation_alpha" in node.attributes or "activation_beta" in node.attributes:
        return f"{name} with parameters of its activations"
    unknown = [a for a in _activations(node, 2) if a.lower() not in FUNCTIONS]
    return f"{name} with the activation {unknown[0]}" if unknown else ""


def is_one_call(steps: int) -> bool:
    """Say whether all steps in time are one call: they are many, or only a run has their number."""
    return not is_known(steps) or steps > _LONGEST


def _activations(node: ir.Node, directions: int) -> list[str]:
    attribute = node.attributes.get("activations")
    if attribute is None:
        return list(_ACTIVATIONS[node.op_type]) * directions
    return list(attribute.as_strings())


@dataclass(frozen=True)
class Cell:
    """A recurrent node, all its attributes read. Shapes of arrays as ONNX gives them."""

    node: ir.Node
    steps: int
    batch: int
    hidden: int
    directions: tuple[bool, ...]  # for each, whether it runs backwards
    inputs: Array
    states: Array
    bias: Array  # (directions, 2, gates, hidden)
    peepholes: Array | None
    clip: float

    @property
    def gates(self) -> int:
        """Products with the state for each hidden unit."""
        return _GATES[self.node.op_type]

    @property
    def is_batch_first(self) -> bool:
        """Whether the batch is the outermost dimension, not time."""
        return bool(integer(self.node, "layout", 0))

    @property
    def resets_after(self) -> bool:
        """Whether a GRU resets after the product with the state, not before."""
        return bool(integer(self.node, "linear_before_reset", 0))

    def activation(self, direction: int, number: int) -> str:
        """Return the name of an activation: f, g and h of the formulas are 0, 1 and 2."""
        names = _activations(self.node, len(self.directions))
        return names[direction * len(_ACTIVATIONS[self.node.op_type]) + number].lower()

    def activated(self, direction: int, number: int, x: Expression) -> Expression:
        """Clip and apply an activation."""
        if self.clip:
            x = apply("min", apply("max", x, Constant(-self.clip)), Constant(self.clip))
        return FUNCTIONS[self.activation(direction, number)](x)


def read_cell(node: ir.Node) -> Cell:
    """Read a node that `check_recurrent` has passed."""

    def array(index: int) -> Array | None:
        constant = constant_of(given_input(node, index))
        return None if constant is None else constant.numpy().astype(np.float32)

    sizes = static_shape(node.inputs[0])
    inputs, states, bias = array(1), array(2), array(3)
    assert sizes is not None
    assert inputs is not None
    assert states is not None
    hidden, gates = states.shape[2], _GATES[node.op_type]
    direction = text(node, "direction", "forward")
    backwards = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    if bias is None:
        bias = np.zeros((inputs.shape[0], 2 * gates * hidden), np.float32)
    steps, batch = (sizes[1], sizes[0]) if integer(node, "layout", 0) else sizes[:2]
    return Cell(
        node, steps, batch, hidden, backwards[direction], inputs, states,
        bias.reshape(-1, 2, gates, hidden), array(7), number(node, "clip", 0.0),
    )  # fmt: skip
