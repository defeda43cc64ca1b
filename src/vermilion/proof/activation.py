"""What an activation makes of a sum is judged by the sum.

    y = Clip (Conv (x, w), 0, 6)

A row that the Clip takes nearly all of has no size of its own, and where the numbers before it are
thousands, a rounding turns 0 into 6. Before it, roundings are of the size of the numbers: they give
an interval, and what the activation makes of that is what may be found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from vermilion.errors import VermilionError
from vermilion.ir.arrays import Array
from vermilion.ir.literal.interpret import interpret
from vermilion.ir.literal.run import open_literally
from vermilion.ir.opset import constant_of, is_operator, static_shape
from vermilion.proof.bounds import FormatName, bound_of
from vermilion.proof.check import allowed_errors, check_output, rows, spread_of
from vermilion.proof.cut import cut_at, given_name, piece_of

# What is computed number by number, without a step on the way.
_SMOOTH = (
    "Abs", "Add", "Celu", "Clip", "Div", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish",
    "LeakyRelu", "Max", "Min", "Mish", "Mul", "Neg", "PRelu", "Pow", "Relu", "Selu", "Sigmoid",
    "Softplus", "Softsign", "Sqrt", "Sub", "Swish", "Tanh",
)  # fmt: skip
# Of these, what ONNX Runtime computes to the last rounding: float64 gives nothing better.
_ROUNDED_ONCE = (
    "Abs",
    "Add",
    "Clip",
    "LeakyRelu",
    "Max",
    "Min",
    "Mul",
    "Neg",
    "PRelu",
    "Relu",
    "Sub",
)
# Where in the interval the activation is computed: most rise or fall, or turn once.
_PLACES = (-1.0, -0.5, 0.0, 0.5, 1.0)


def before_activation(model: ir.Model, name: str) -> str:
    """Return the one computed result, of an output's shape, that it is a function of.

    Constants and inputs of the model may enter it too. Empty where there is no such result.
    """
    value, before, _ = _before(model, name)
    if value is None or before is None or static_shape(value) is None:
        return ""
    return str(before.name) if static_shape(before) == static_shape(value) else ""


def with_exact_activation(
    model: ir.Model, name: str, inputs: Mapping[str, Array], expected: Array
) -> Array | None:
    """Return what a model gives where the activation at its end is computed in float64.

    ONNX Runtime's sigmoid is 0 below -18, and off by 1e-7 elsewhere: `expected` of a detector that
    detects nothing holds no other numbers. None where no such activation ends the model.
    """
    _, before, operators = _before(model, name)
    if operators <= set(_ROUNDED_ONCE):
        return None
    if before is None or not np.issubdtype(expected.dtype, np.floating):
        return None
    work = model.clone()
    made = {str(v.name): v for node in work.graph for v in node.outputs}
    work.graph.outputs.append(made[str(before.name)])
    try:
        sums = open_literally(work).run(inputs, [str(before.name)])[str(before.name)]
        exact = _Tail(model, str(before.name), name, inputs).of(sums)
    except VermilionError:
        return None
    return exact.astype(expected.dtype) if exact.shape == expected.shape else None


class _Tail:
    """What a model makes of one inner result, in float64; inputs with a default may be left out."""

    def __init__(
        self, model: ir.Model, before: str, name: str, inputs: Mapping[str, Array]
    ) -> None:
        cut = cut_at(model, [before, name])
        self._model, self._before, self._name = piece_of(cut, name), given_name(before), name
        read = {str(value.name) for value in self._model.graph.inputs}
        self._inputs = {key: array for key, array in inputs.items() if key in read}

    def of(self, sums: Array) -> Array:
        """Return the output. Raises: UnsupportedError for an operator that is not known."""
        given = {**self._inputs, self._before: sums}
        return interpret(self._model, given, [self._name], wide=True)[self._name]


def _before(model: ir.Model, name: str) -> tuple[ir.Value | None, ir.Value | None, frozenset[str]]:
    """Return an output, the one computed result that it is a function of, and its operators."""
    value = next((one for one in model.graph.outputs if one.name == name), None)
    operators: set[str] = set()
    if value is None:
        return None, None, frozenset()
    leaves: dict[ir.Value, None] = {value: None}
    while True:
        further = next((one for one in leaves if _is_smooth(one)), None)
        if further is None:
            break
        del leaves[further]
        node = further.producer()
        assert node is not None, "an operator gives it"
        operators.add(node.op_type)
        leaves |= dict.fromkeys(
            one for one in node.inputs if one is not None and constant_of(one) is None
        )
    computed = [one for one in leaves if one.producer() is not None]
    before = computed[0] if len(computed) == 1 and computed[0] is not value else None
    return value, before, frozenset(operators)


def _is_smooth(value: ir.Value) -> bool:
    return is_operator(value.producer(), *_SMOOTH)


def explains(
    model: ir.Model,
    name: str,
    before: str,
    inputs: Mapping[str, Array],
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
    tail = _Tail(model, before, name, inputs)
    ends = [tail.of(exact + place * width) for place in _PLACES]
    nearest = np.clip(found, np.minimum.reduce(ends), np.maximum.reduce(ends))
    energy = float(np.sum(np.square(found - runs[0][name])))
    explained = max(
        whole.allowed_energy(bound.factor),
        float(np.sum(np.square(runs[0][name]))) * 10.0 ** (-bound.sqnr_db / 10.0),
    )
    within = check_output(name, nearest, found, form, fewer_products=fewer_products)
    return energy <= explained and within.passed
