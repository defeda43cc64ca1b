"""Factors by which tensors may grow so that powers of two fit them.

A scale that is a power of two covers up to twice the range that a tensor has, 3 dB of noise in the
mean. But most tensors may be multiplied with any number, as long as the constants that make them
and those that read them know of it:

    y = W·x + b   becomes   c_y·y = (W · c_y ÷ c_x)·(c_x·x) + c_y·b

What only moves numbers, keeps their sign or adds tensors gives its factor on. A normalization
takes any (its ε grows by c²) and gives any (with its scale and shift); of a product of two
tensors, factors multiply. Everything else, inputs and outputs leave numbers as they are.

Factors are eighths of an octave: noise, relative to each tensor and weight, is added up for each
of the eight, and factors are brought to their best in turn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.attributes import number
from vermilion.quantize.formats import IntegerFormat
from vermilion.quantize.names import Names
from vermilion.quantize.observe import Histogram
from vermilion.quantize.operators import pads_with_zeros
from vermilion.quantize.plan import Plan

Doubles = NDArray[np.float64]

_NOTE = "vermilion.factors"

STEPS = 8
"""Factors in an octave."""

_OCTAVES = 2  # of scales that are tried: one that cuts nothing off, and one that does
_MERGED = 8  # bins of a histogram joined into one
_ROUNDS = 4
_WEIGHT_BINS = 512
_LARGEST_WEIGHT = 1 << 14  # numbers of a weight that are looked at, about

# Of a weight's noise, what is left where errors cancel.
_WEIGHT_SHARE = 0.1

# Less gain than this, of all noise of a group, is none.
_LEAST_GAIN = 0.02

_KEEPS = frozenset(
    {
        *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Expand", "Tile"),
        *("Slice", "Split", "DepthToSpace", "SpaceToDepth", "Gather", "Resize", "Upsample"),
        *("Relu", "LeakyRelu", "Abs", "Neg", "MaxPool", "AveragePool", "GlobalAveragePool"),
        *("GlobalMaxPool", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSum", "Dropout"),
    }
)
_ADDS = frozenset({"Add", "Sub", "Concat", "Max", "Min", "Sum"})
_LAYERS = frozenset({"Conv", "Gemm", "MatMul", "ConvTranspose"})
_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_NORMALIZES = frozenset({"LayerNormalization", "InstanceNormalization", "GroupNormalization"})


@dataclass(frozen=True)
class _Constant:
    """A constant, or the ε of `node`, and the power of each tensor's factor that it grows with."""

    value: ir.Value | None
    node: ir.Node
    powers: Mapping[ir.Value, int]


@dataclass
class _Ties:
    """Which factors are one, which are each other's inverse, and which are 1."""

    parent: dict[ir.Value | None, tuple[ir.Value | None, int]] = field(default_factory=dict)

    def root(self, value: ir.Value | None) -> tuple[ir.Value | None, int]:
        """Return the tensor whose factor this one's is, or with -1 the inverse of; None: 1."""
        sign = 1
        while value in self.parent:
            value, turned = self.parent[value]
            sign *= turned
        return value, sign

    def tie(self, a: ir.Value | None, b: ir.Value | None, sign: int = 1) -> None:
        """Let the factor of `a` be that of `b`, or its inverse."""
        (first, s), (second, t) = self.root(a), self.root(b)
        sign *= s * t
        if first is second:
            if sign < 0 and first is not None:
                self.parent[first] = (None, 1)
            return
        if first is None:
            first, second = second, first
        self.parent[first] = (second, sign)

    def fix(self, values: Iterable[ir.Value | None]) -> None:
        """Let the factors of these be 1."""
        for value in values:
            if value is not None and value.const_value is None:
                self.tie(value, None)

    def is_fixed(self, value: ir.Value) -> bool:
        """Say whether the factor is 1."""
        return self.root(value)[0] is None


@dataclass(frozen=True)
class Factors:
    """What each tensor is multiplied with, by name; all else with 1."""

    by_name: Mapping[str, float] = field(default_factory=dict)

    def of(self, name: str) -> float:
        """Return the factor of a tensor."""
        return self.by_name.get(name, 1.0)

    def note_in(self, model: ir.Model) -> None:
        """Write them into the model, for who compares its tensors with those of the float one."""
        if self.by_name:
            model.metadata_props[_NOTE] = json.dumps(dict(self.by_name), sort_keys=True)


def noted_factors(model: ir.Model) -> Factors:
    """Return the factors that a model's file tells; what makes no sense there is none."""
    try:
        found = json.loads(model.metadata_props.get(_NOTE, "{}"))
    except ValueError:
        return Factors()
    if not isinstance(found, dict):
        return Factors()
    return Factors({n: f for n, f in found.items() if type(f) is float and 0.5 <= f <= 2.0})


def fill(graph: ir.Graph, plan: Plan, histograms: Mapping[str, Histogram]) -> Factors:
    """Choose factors and multiply the constants of `graph` in place.

    `histograms` are those of the plan's tensors as they were.
    """
    ties, constants = _relations(graph, plan)
    costs = _costs(plan, histograms)
    members: dict[ir.Value, list[tuple[ir.Value, int]]] = {}
    values = [v for v in _computed_values(graph) if not ties.is_fixed(v)]
    for value in values:
        root, sign = ties.root(value)
        assert root is not None, "it is not fixed"
        members.setdefault(root, []).append((value, sign))
    weights = [c for c in constants if c.value in plan.weights and c.node.op_type in _LAYERS]
    steps = _chosen(members, ties, costs, weights, plan.scheme.weight)
    factors = {
        value: 2.0 ** (sign * steps[root] / STEPS)
        for root, tensors in members.items()
        for value, sign in tensors
        if steps[root]
    }
    names = Names(graph)
    for constant in constants:
        by = math.prod(factors.get(v, 1.0) ** power for v, power in constant.powers.items())
        if by != 1.0:
            _multiply(constant, by, names)
    return Factors({str(value.name): factor for value, factor in factors.items()})


def _computed_values(graph: ir.Graph) -> list[ir.Value]:
    return [*graph.inputs, *(value for node in graph for value in node.outputs)]


def _relations(graph: ir.Graph, plan: Plan) -> tuple[_Ties, list[_Constant]]:
    ties, constants = _Ties(), list[_Constant]()
    products: list[tuple[ir.Value, ir.Value, ir.Value]] = []
    ties.fix(graph.inputs)
    ties.fix(graph.outputs)
    for node in graph:
        found = _of_node(node, ties, products, node in plan.nodes)
        if found is None:
            ties.fix((*node.inputs, *node.outputs))
            continue
        for constant in found:
            if constant.value is None or _is_own(constant.value, graph, node in plan.nodes):
                constants.append(constant)
            else:
                ties.fix(constant.powers)
    for value in _computed_values(graph):
        if any(use.node.graph is not graph for use in value.uses()):
            ties.fix([value])
    _settle(products, ties)
    return ties, constants


def _settle(products: list[tuple[ir.Value, ir.Value, ir.Value]], ties: _Ties) -> None:
    """Tie what two tensors make of each other once one of the three is known."""
    left = list(products)
    while left:
        known = next((p for p in left if any(ties.is_fixed(v) for v in p)), None)
        if known is None:
            ties.fix([left[0][1]])
            continue
        left.remove(known)
        a, b, out = known
        if ties.is_fixed(a):
            ties.tie(b, out)
        elif ties.is_fixed(b):
            ties.tie(a, out)
        else:
            ties.tie(a, b, -1)


def _is_own(value: ir.Value, graph: ir.Graph, is_rounded: bool) -> bool:
    """Say whether a constant may change; a number that is not rounded can be copied."""
    tensor = value.const_value
    return (
        tensor is not None
        and tensor.dtype == ir.DataType.FLOAT
        and value.graph is graph
        and (len(value.uses()) == 1 or (tensor.size == 1 and not is_rounded))
        and not value.is_graph_output()
    )


def _of_node(
    node: ir.Node,
    ties: _Ties,
    products: list[tuple[ir.Value, ir.Value, ir.Value]],
    is_rounded: bool,
) -> list[_Constant] | None:
    """Tie what a node reads and gives; return its constants, None where nothing may change."""
    if node.domain not in ("", "ai.onnx") or not node.outputs or node.inputs[:1] in ((), (None,)):
        return None
    op_type, out = node.op_type, node.outputs[0]
    inputs = [v for v in node.inputs if v is not None]
    computed = [v for v in inputs if v.const_value is None]
    if op_type == "Gather" and inputs[0].const_value is not None:
        return [_Constant(inputs[0], node, {out: 1})]
    if op_type in _KEEPS or (op_type == "Pad" and pads_with_zeros(node)):
        if inputs[0].const_value is not None:
            return None
        ties.fix(computed[1:])
        for output in node.outputs:
            ties.tie(output, inputs[0])
        return []
    if op_type in _ADDS:
        for value in computed:
            ties.tie(value, out)
        return [_Constant(v, node, {out: 1}) for v in inputs if v.const_value is not None]
    if op_type in {"Mul", "MatMul"} and len(computed) == 2:
        products.append((computed[0], computed[1], out))
        return []
    if op_type == "Mul" and len(computed) == 1 and not is_rounded:
        constant = next(v for v in inputs if v.const_value is not None)
        return [_Constant(constant, node, {out: 1, computed[0]: -1})]
    if op_type == "Mul" or (op_type == "Div" and inputs[0] in computed and len(computed) == 1):
        ties.tie(computed[0], out) if computed else ties.fix([out])
        return []
    if op_type in _LAYERS:
        return _of_layer(node, ties)
    if op_type in _RECURRENT and inputs[0] in computed and inputs[1] not in computed:
        ties.fix((*computed[1:], *node.outputs))
        return [_Constant(inputs[1], node, {inputs[0]: -1})]
    if op_type in _NORMALIZES and len(computed) == 1 and inputs[0] in computed:
        ties.fix(node.outputs[1:])
        own = [_Constant(v, node, {out: 1}) for v in inputs[1:]]
        return [*own, _Constant(None, node, {inputs[0]: 2})] if own else None
    return None


def _of_layer(node: ir.Node, ties: _Ties) -> list[_Constant] | None:
    read, weight = node.inputs[:2]
    out = node.outputs[0]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    if read is None or weight is None or read.const_value is not None or weight.const_value is None:
        return None
    found = [_Constant(weight, node, {out: 1, read: -1})]
    if bias is not None and bias.const_value is None:
        ties.tie(bias, out)
    elif bias is not None:
        found.append(_Constant(bias, node, {out: 1}))
    return found


def _multiply(constant: _Constant, by: float, names: Names) -> None:
    if constant.value is None:
        grown = number(constant.node, "epsilon", 1e-5) * by
        constant.node.attributes["epsilon"] = ir.AttrFloat32("epsilon", grown)
        return
    tensor = constant.value.const_value
    assert tensor is not None, "it is a constant"
    array = (tensor.numpy() * np.float32(by)).astype(np.float32)
    if len(constant.value.uses()) == 1:
        constant.value.const_value = ir.Tensor(array, name=constant.value.name)
        return
    own = names.constant(f"{constant.value.name}_of_{constant.node.name}", array)
    for index, value in enumerate(constant.node.inputs):
        if value is constant.value:
            constant.node.replace_input_with(index, own)


def _costs(plan: Plan, histograms: Mapping[str, Histogram]) -> dict[str, Doubles]:
    """Return the noise of each observed tensor, relative to its power, for all eight factors."""
    found = {}
    for name, histogram in histograms.items():
        if histogram.exponent is None:
            continue
        counts = histogram.counts.reshape(-1, _MERGED).sum(axis=1)
        filled = np.flatnonzero(counts)
        centres = (filled + 0.5) * (_MERGED * histogram.width)
        found[name] = _noise(
            centres, counts[filled].astype(np.float64), histogram.largest, plan.scheme.activation
        )
    return found


def _noise(
    centres: NDArray[np.floating], counts: Doubles, largest: float, number: IntegerFormat
) -> Doubles:
    """Return the noise with each of eight factors and the power of two that suits it best."""
    first = math.ceil(STEPS * math.log2(largest / number.high))  # this one covers all
    exponents = first + STEPS - 1 - np.arange(_OCTAVES * STEPS)
    scales = np.exp2(exponents / STEPS)[:, None]
    scaled = centres / scales
    off = (scaled - np.minimum(np.rint(scaled), number.high)) * scales
    errors = (off * off) @ counts / max(float(counts @ (centres * centres)), 1e-300)
    # A tensor multiplied with 2^(m/8) has the scale 2^-p where it had 2^(-p - m/8) before.
    best = np.full(STEPS, np.inf)
    np.minimum.at(best, -exponents % STEPS, errors)
    return best


def _weight_noise(value: ir.Value, number: IntegerFormat) -> Doubles:
    assert value.const_value is not None, "a weight has a value"
    array = np.abs(value.const_value.numpy().reshape(-1))
    largest = float(array.max(initial=0.0))
    if largest == 0.0:
        return np.zeros(STEPS)
    some = array[:: max(1, array.size // _LARGEST_WEIGHT)]
    places = (some * np.float32(_WEIGHT_BINS * (1.0 - 1e-6) / largest)).astype(np.int64)
    counts = np.bincount(places, minlength=_WEIGHT_BINS)
    centres = (np.arange(_WEIGHT_BINS) + 0.5) * (largest / _WEIGHT_BINS)
    return _noise(centres, counts.astype(np.float64), largest, number)


def _chosen(
    members: Mapping[ir.Value, Sequence[tuple[ir.Value, int]]],
    ties: _Ties,
    costs: Mapping[str, Doubles],
    weights: Sequence[_Constant],
    number: IntegerFormat,
) -> dict[ir.Value, int]:
    """Return the factor of each group, in eighths of an octave."""
    steps = dict.fromkeys(members, 0)
    octave = np.arange(STEPS)
    near: dict[ir.Value, list[tuple[_Constant, Doubles]]] = {root: [] for root in members}
    for constant in weights:
        roots = {root for v in constant.powers if (root := ties.root(v)[0]) is not None}
        if roots and constant.value is not None:
            noise = _WEIGHT_SHARE * _weight_noise(constant.value, number)
            for root in roots:
                near[root].append((constant, noise))
    for _ in range(_ROUNDS):
        before = dict(steps)
        for root, tensors in members.items():
            total = np.zeros(STEPS)
            for value, sign in tensors:
                cost = costs.get(str(value.name))
                if cost is not None:
                    total += cost[(sign * octave) % STEPS]
            for constant, noise in near[root]:
                grown = np.zeros(STEPS, np.int64)
                for value, power in constant.powers.items():
                    own, sign = ties.root(value)
                    if own is not None:
                        grown += power * sign * (octave if own is root else steps[own])
                total += noise[grown % STEPS]
            best = int(np.argmin(total))
            if total[best] < (1.0 - _LEAST_GAIN) * total[steps[root]]:
                steps[root] = best
        if steps == before:
            break
    return steps
