"""What a Relu, Clip or Sigmoid leaves is judged by the numbers before it.

    y = Clip (Conv (x, w), 0, 6)

A row that the Clip takes nearly all of has no size of its own, and where the numbers before it are
thousands, a rounding turns 0 into 6. Before it, roundings are of the size of the numbers: they give
an interval, and the function, which only rises, makes another of its ends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from vermilion.ir.arrays import Array
from vermilion.ir.attributes import number
from vermilion.ir.literal.interpret import interpret
from vermilion.ir.opset import constant_of, is_operator
from vermilion.proof.bounds import FormatName, bound_of
from vermilion.proof.check import allowed_errors, check_output, rows, spread_of
from vermilion.proof.cut import cut_at, piece_of

_RISING = ("Relu", "Sigmoid", "Tanh", "HardSigmoid", "Softplus", "Softsign", "Elu", "Selu", "Celu")


def before_limits(model: ir.Model, name: str) -> str:
    """Return the result that functions which only rise make an output of; empty if none does."""
    first = next((value for value in model.graph.outputs if value.name == name), None)
    found = first
    while found is not None and _is_rising(found.producer()):
        node = found.producer()
        found = None if node is None else node.inputs[0]
    if found is None or found is first or found.producer() is None:
        return ""
    return str(found.name)


def _is_rising(node: ir.Node | None) -> bool:
    if node is None:
        return False
    if is_operator(node, "LeakyRelu"):
        return number(node, "alpha", 0.01) >= 0.0
    if is_operator(node, "Clip"):
        return all(value is None or constant_of(value) is not None for value in node.inputs[1:])
    return is_operator(node, *_RISING) and number(node, "alpha", 1.0) >= 0.0


def explains(
    model: ir.Model,
    name: str,
    before: str,
    runs: Sequence[Mapping[str, Array]],
    found: Array,
    form: FormatName,
    *,
    fewer_products: bool = False,
) -> bool:
    """Say whether roundings of `before` explain what was found of an output.

    `runs` are in float64: the exact one, then those with noise, both results in each.

    Raises: UnsupportedError where the interpreter does not know an operator.
    """
    exact = runs[0][before]
    arrays = [run[key] for run in runs for key in (before, name)]
    if exact.shape != found.shape or not all(np.isfinite(a).all() for a in (*arrays, found)):
        return False
    bound = bound_of(form, fewer_products=fewer_products)
    spread = spread_of(exact, [run[before] for run in runs[1:]])
    whole = spread_of(runs[0][name], [run[name] for run in runs[1:]])
    if spread is None or whole is None:
        return False
    sizes = rows(np.abs(exact)).max(axis=1, initial=0.0)
    allowed = allowed_errors(sizes, bound, spread)[:, None]
    width = np.broadcast_to(allowed, rows(exact).shape).reshape(exact.shape)
    tail = piece_of(cut_at(model, [before, name]), name)
    (given,) = (str(value.name) for value in tail.graph.inputs)
    least, most = (
        interpret(tail, {given: exact + side * width}, [name], wide=True)[name]
        for side in (-1.0, 1.0)
    )
    nearest = np.clip(found, least, most)
    energy = float(np.sum(np.square(found - runs[0][name])))
    explained = max(
        whole.allowed_energy(bound.factor),
        float(np.sum(np.square(runs[0][name]))) * 10.0 ** (-bound.sqnr_db / 10.0),
    )
    within = check_output(name, nearest, found, form, fewer_products=fewer_products)
    return energy <= explained and within.passed
