"""Noise of the size of one rounding, put into a model: what it does to the outputs is allowed.

    y = Conv(x, w)    becomes    y' = Conv(x, w·(1 ± e)),  y = y' · (1 ± e)

for each operator that rounds, with fresh random factors at each element and in each run. Operators
that only move data are left as they are: they round nothing.
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
from vermilion.ir.opset import static_shape
from vermilion.proof.bounds import BOUNDS, FormatName

RUNS = 3

# What gives values that were there already.
_EXACT = frozenset(
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
        self._literal: LiteralModel = open_literally(work)

    def runs(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], count: int = RUNS, seed: int = 0
    ) -> list[dict[str, Array]]:
        """Return the outputs of several runs. Raises: UnsupportedError where one fails."""
        random = np.random.default_rng(seed)
        found = []
        for _ in range(count):
            noisy = {**inputs, **self._weights}
            for name, array in noisy.items():
                noisy[name] = _shaken(array, self._bound.operand_noise * self._scale, random)
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
        shaken: Array = (array.astype(kind) * factors.astype(kind)).astype(array.dtype)
    return shaken


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


def _insert(work: ir.Model, size: float) -> None:
    """Multiply what each operator that rounds gives by 1 ± `size`."""
    graph = work.graph
    work.opset_imports.setdefault("", 17)
    for number, node in enumerate(list(graph)):
        if node.op_type in _EXACT:
            continue
        for output in node.outputs:
            if output.name and output.dtype in _FLOATS and isinstance(output.type, ir.TensorType):
                _shake_output(graph, node, output, size, number)


def _shake_output(
    graph: ir.Graph, node: ir.Node, output: ir.Value, size: float, number: int
) -> None:
    name = str(output.name)
    kind = ir.DataType.DOUBLE if output.dtype == ir.DataType.DOUBLE else ir.DataType.FLOAT
    label = f"{name}/noise"
    nodes: list[ir.Node] = []

    def write(op_type: str, inputs: list[ir.Value], **attributes: float | int) -> ir.Value:
        made = ir.node(op_type, inputs, attributes, name=f"{label}/{op_type}")
        made.outputs[0].name = f"{label}/{len(nodes)}"
        nodes.append(made)
        return made.outputs[0]

    is_wide = output.dtype == kind
    source = output if is_wide else write("Cast", [output], to=int(kind))
    factors = write(
        "RandomUniformLike", [source], low=1.0 - size, high=1.0 + size, seed=float(number + 1)
    )
    product = write("Mul", [source, factors])
    if not is_wide:
        write("Cast", [product], to=int(output.dtype or kind))
    result = nodes[-1].outputs[0]
    result.type, result.shape = output.type, output.shape
    own = {id(one) for one in nodes}
    for use in list(output.uses()):
        if id(use.node) not in own:
            use.node.replace_input_with(use.idx, result)
    if output.is_graph_output():
        for index, value in enumerate(graph.outputs):
            if value is output:
                graph.outputs[index] = result
        output.name, result.name = f"{name}/exact", name
    graph.insert_after(node, nodes)
