"""Noise of the size of one rounding, put into a model: what it does to the outputs is allowed.

    y = Conv(x, w)    becomes    y' = Conv(x, w·(1 ± e)),  y = y' · (1 ± e)

for each operator that rounds, with fresh random factors at each element and in each run. Operators
that only move data are left as they are: they round nothing.

What lies as good as between two steps of a QuantizeLinear may become either: it is moved across in
one of the runs, be it in the middle of what is judged, where nobody sees what the program took.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from vermilion.ir.arrays import Array
from vermilion.ir.literal.interpret import interpret
from vermilion.ir.literal.run import LiteralModel, open_literally
from vermilion.ir.opset import constant_of, is_operator, static_shape
from vermilion.ir.passes.rewrite import read_instead
from vermilion.proof.bounds import BOUNDS, FormatName

RUNS = 3
# Of models that quantize, two runs more: all that lies between two steps goes up, or all down.
_UP, _DOWN = 2.0, -2.0

# As near to the middle of two steps, relative to the value (as in `decisions`), or to the whole
# range of the quantizer: sums that cancel have roundings of the size of their terms.
_NEAR, _NEAR_OF_RANGE = 2.0**-18, 2.0**-21

# What gives values that were there already.
EXACT = frozenset(
    {
        "Abs", "Cast", "CastLike", "Concat", "Constant", "ConstantOfShape", "DepthToSpace",
        "DequantizeLinear", "Dropout", "Expand", "Flatten", "Gather", "GatherElements", "GatherND",
        "GlobalMaxPool", "Identity", "Max", "MaxPool", "Min", "Neg", "OneHot", "Pad", "Range",
        "Relu", "ReduceMax", "ReduceMin", "Reshape", "Sign", "Slice", "SpaceToDepth", "Split",
        "Squeeze", "Tile", "TopK", "Transpose", "Trilu", "Unsqueeze", "Where", "Round", "Floor",
        "Ceil", "ScatterElements", "ScatterND", "ArgMax", "ArgMin", "NonMaxSuppression", "Clip",
    }
)  # fmt: skip
# Inputs from this one on say how, not what.
_DATA_INPUTS: Mapping[str, int] = {
    "Resize": 1, "Upsample": 1, "QuantizeLinear": 1, "DequantizeLinear": 0, "Pad": 1,
    "Pow": 1, "Clip": 1, "Range": 0, "Dropout": 1, "NonMaxSuppression": 2, "ConstantOfShape": 0,
    "OneHot": 0,
}  # fmt: skip
# What makes one number of many.
_SUMS = ("Reduce", "GlobalAverage", "AveragePool")
# K terms of one sign, added in any order, are off by up to 1.5 √K units of their sum (random walk;
# Higham and Mary 2019, "A new approach to probabilistic rounding error analysis"). Noise of a unit
# in each operand moves the sum by 1 ÷ √K of that, and allowed is `factor` times the worst of a row:
# K ÷ 16 units in each operand allow 1.6 √K.
_TERMS_OF_A_UNIT = 16.0
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16)


class NoisyModel:
    """A model that is run with noise; each run has other factors."""

    def __init__(self, model: ir.Model, form: FormatName, scale: float = 1.0) -> None:
        """Open `model` for runs with noise of the format's roundings, `scale` times as large."""
        self._bound = BOUNDS[form]
        self._scale = scale
        work = model.clone()
        self._weights = _as_inputs(work)
        _insert(work, self._bound.result_noise * scale)
        self._side = _move_ties(work)
        self._literal: LiteralModel = open_literally(work)

    def runs(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], count: int = RUNS, seed: int = 0
    ) -> list[dict[str, Array]]:
        """Return the outputs of several runs. Raises: UnsupportedError where one fails."""
        random = np.random.default_rng(seed)
        found = []
        for side in (*[0.0] * count, *([_UP, _DOWN] if self._side else [])):
            noisy = {**inputs, **self._weights}
            if side == 0.0:  # else all ties go one way, and nothing may take them back
                for name, array in noisy.items():
                    noisy[name] = _shaken(array, self._bound.operand_noise * self._scale, random)
            if self._side:
                noisy[self._side] = np.array(side, np.float32)
            found.append(self._literal.run(noisy, outputs))
        return found


def wide_runs(
    model: ir.Model,
    inputs: Mapping[str, Array],
    outputs: Sequence[str],
    form: FormatName,
    seconds: float = math.inf,
) -> list[dict[str, Array]]:
    """Return runs in float64 with noise in inputs and weights, and nowhere else.

    It is as large as one rounding, and in the terms of sums, as what their roundings do in any
    order. What that does is a property of the model.

    Raises: UnsupportedError where the interpreter does not know an operator, or takes longer than
    `seconds`.
    """
    until = time.thread_time() + seconds
    work = model.clone()
    given = {**inputs, **_as_inputs(work)}
    random = np.random.default_rng(0)
    size = BOUNDS[form].operand_noise
    unit = 2.0**-53 if form == "fp64" else 2.0**-24  # what is narrow is added up in float32
    terms = {name: unit * count / _TERMS_OF_A_UNIT for name, count in _sums(model).items()}
    runs = []
    for _ in range(RUNS):
        shaken = {
            name: _shaken(array, size, random, terms.get(name, 0.0))
            for name, array in given.items()
        }
        left = until - time.thread_time()
        runs.append(interpret(work, shaken, outputs, wide=True, seconds=left))
    return runs


def _sums(model: ir.Model) -> dict[str, int]:
    """Return the tensors that sums are made of, and how many terms the longest of them has."""
    found: dict[str, int] = {}
    for node in model.graph.all_nodes():
        terms = _terms(node)
        for value in node.inputs[:2] if terms > 1 else ():
            if value is not None and value.name:
                found[value.name] = max(terms, found.get(value.name, 1))
    return found


def _terms(node: ir.Node) -> int:
    """Return how many numbers a node adds up for one of its results."""
    shapes = [None if v is None else static_shape(v) for v in (*node.inputs[:2], *node.outputs[:1])]
    x, w = (*shapes[: len(node.inputs[:2])], None, None)[:2]
    y = shapes[-1] if node.outputs else None
    if node.op_type == "Conv" and w:
        return math.prod(w[1:])
    if node.op_type == "ConvTranspose" and w:
        return math.prod(w[:1] + w[2:])
    if node.op_type in ("MatMul", "Gemm", "FusedMatMul") and x:
        return max(x[-2:])  # of a Gemm whose first matrix is transposed, the other one
    if node.op_type.startswith(_SUMS) and x and y:
        return max(1, math.prod(x) // max(1, math.prod(y)))
    return 1


def _shaken(
    array: Array, size: float, random: np.random.Generator, either_way: float = 0.0
) -> Array:
    """Return the array with each element made smaller by up to twice `size`.

    Never larger: the largest number of a format, as masks have it, would become infinite. Of
    what is added up, it goes `either_way`: a sum of one sign must not become smaller as a whole.
    """
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fV" or not array.size:
        return array
    kind = np.float64 if array.dtype == np.float64 else np.float32
    factors = 1.0 - 2.0 * size * random.random(array.shape, dtype=np.float32)
    if either_way:
        wide = random.random(array.shape, dtype=np.float32).astype(np.float64)
        factors = factors * (1.0 + either_way * (2.0 * wide - 1.0))
    with np.errstate(invalid="ignore", over="ignore"):
        shaken = array.astype(kind) * np.asarray(factors, kind)
    return np.asarray(shaken, array.dtype)  # numpy makes a number of what has no dimensions


def _as_inputs(work: ir.Model) -> dict[str, Array]:
    """Make inputs of the weights that operators compute with; return them by name."""
    graph = work.graph
    found: dict[str, Array] = {}
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.dtype not in _FLOATS or not _is_data(value):
            continue
        if value.is_graph_output() or value.is_graph_input():
            continue
        array = tensor.numpy()
        if array.size < 1:
            continue
        found[name] = array
        del graph.initializers[name]
        value.const_value = None
        value.shape = ir.Shape(array.shape)
        value.dtype = tensor.dtype
        graph.inputs.append(value)
    return found


def _is_data(value: ir.Value) -> bool:
    uses = value.uses()
    return bool(uses) and all(
        use.node.graph is value.graph and use.idx < _DATA_INPUTS.get(use.node.op_type, 1 << 30)
        for use in uses
    )


def tie_runs(
    model: ir.Model, inputs: Mapping[str, Array], outputs: Sequence[str], seconds: float = math.inf
) -> list[dict[str, Array]]:
    """Return runs in float64: as the model is, with all ties up, and with all down.

    Raises: UnsupportedError where the interpreter does not know an operator, or takes longer than
    `seconds`.
    """
    until = time.thread_time() + seconds
    work = model.clone()
    side = _move_ties(work, at_random=False)
    runs = []
    for way in (0.0, _UP, _DOWN) if side else (0.0,):
        given = {**inputs, side: np.array(way, np.float32)} if side else inputs
        left = until - time.thread_time()
        runs.append(interpret(work, given, outputs, wide=True, seconds=left))
    return runs


def _move_ties(work: ir.Model, *, at_random: bool = True) -> str:
    """Move what enters each QuantizeLinear by as much as makes a tie, up or down.

    Return the name of a new input that says where to, `_UP`, `_DOWN` or 0 for either at random, or
    for nowhere; empty if nothing is quantized.
    """
    graph = work.graph
    nodes = [node for node in graph if is_operator(node, "QuantizeLinear") and node.inputs[0]]
    if not nodes:
        return ""
    side = ir.Value(name="noise/side", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(()))
    graph.inputs.append(side)
    for number, node in enumerate(nodes):
        _move_tie(graph, node, side, number if at_random else None)
    return str(side.name)


def _move_tie(graph: ir.Graph, node: ir.Node, side: ir.Value, number: int | None) -> None:
    source = node.inputs[0]
    assert source is not None, "what is quantized is there"
    writer = _Writer(f"{node.outputs[0].name}/tie")
    single = source.dtype == ir.DataType.FLOAT
    x = source if single else writer.node("Cast", [source], to=int(ir.DataType.FLOAT))
    where_to = side
    if number is not None:
        seed = float(number + 1)
        either = writer.node("RandomUniformLike", [x], low=-1.0, high=1.0, seed=seed)
        where_to = writer.node("Add", [either, side])
    way = writer.node("Sign", [where_to])
    near = writer.node("Mul", [writer.node("Abs", [x]), writer.constant(graph, _NEAR)])
    least = _near_of_range(node)
    if least:
        near = writer.node("Max", [near, writer.constant(graph, least)])
    moved = writer.node("Add", [x, writer.node("Mul", [near, way])])
    if not single:
        moved = writer.node("Cast", [moved], to=int(source.dtype or ir.DataType.FLOAT))
    moved.type, moved.shape = source.type, source.shape
    node.replace_input_with(0, moved)
    graph.insert_before(node, writer.nodes)


def _near_of_range(node: ir.Node) -> float:
    """Return how far roundings reach in a sum that cancels, 0 if the scale is not one constant."""
    constant = constant_of(node.inputs[1])
    bits = node.outputs[0].dtype
    if constant is None or constant.size != 1 or bits is None or not bits.is_integer():
        return 0.0
    step = float(abs(constant.numpy().reshape(-1)[0]))
    return step * 2.0**bits.bitwidth * _NEAR_OF_RANGE


class _Writer:
    """Writes nodes with names of their own, in order."""

    def __init__(self, label: str) -> None:
        self._label = label
        self.nodes: list[ir.Node] = []

    def node(self, op_type: str, inputs: list[ir.Value], **attributes: float | int) -> ir.Value:
        made = ir.node(op_type, inputs, attributes, name=f"{self._label}/{len(self.nodes)}")
        made.outputs[0].name = f"{self._label}/{len(self.nodes)}"
        self.nodes.append(made)
        return made.outputs[0]

    def constant(self, graph: ir.Graph, number: float) -> ir.Value:
        name = f"{self._label}/{number}"
        if name in graph.initializers:  # two bounds may be one number
            return graph.initializers[name]
        value = ir.val(name, const_value=ir.tensor(np.array(number, np.float32), name=name))
        graph.register_initializer(value)
        return value


def _insert(work: ir.Model, size: float) -> None:
    """Multiply what each operator that rounds gives by 1 ± `size`."""
    graph = work.graph
    work.opset_imports.setdefault("", 17)
    for number, node in enumerate(list(graph)):
        if node.op_type in EXACT:
            continue
        for output in node.outputs:
            if output.name and output.dtype in _FLOATS and isinstance(output.type, ir.TensorType):
                _shake_output(graph, node, output, size, number)


def _shake_output(
    graph: ir.Graph, node: ir.Node, output: ir.Value, size: float, number: int
) -> None:
    name = str(output.name)
    kind = ir.DataType.DOUBLE if output.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    writer = _Writer(f"{name}/noise")
    is_wide = output.dtype == kind
    source = output if is_wide else writer.node("Cast", [output], to=int(kind))
    factors = writer.node(
        "RandomUniformLike", [source], low=1.0 - size, high=1.0 + size, seed=float(number + 1)
    )
    result = writer.node("Mul", [source, factors])
    if not is_wide:
        result = writer.node("Cast", [result], to=int(output.dtype or kind))
    result.type, result.shape = output.type, output.shape
    is_output = output.is_graph_output()
    read_instead(graph, output, result, *writer.nodes)
    if is_output:
        output.name, result.name = f"{name}/exact", name
    graph.insert_after(node, writer.nodes)
