"""Files in BFP16: recognised by what they compute, and compiled as the float model they stand for.

Tools that quantize to BFP16 write the rounding into the graph: some twenty operators before each
product that give the nearest values in blocks of 8 with a common exponent. A device that has such
numbers rounds by itself. What is written is not trusted: each group of operators is run, and is
taken for a rounding only where it gives, bit for bit, what the format does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.backends.npu_numbers import summed_axes
from vermilion.codegen.lower.rules import PRODUCTS
from vermilion.errors import OptionError, VermilionError
from vermilion.hardware.targets.target import Target
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.opset import constant_of, is_operator, required_inputs, static_shape
from vermilion.ir.passes.redundancy import remove_dead_nodes
from vermilion.ir.passes.rewrite import Notes
from vermilion.partition.cut import Extractor
from vermilion.quantize.blocks import round_to

NAME = "bfp16"
# What may stand between the rounding itself and the value that is read; and how much before it.
_FORWARD = ("Clip", "Mul", "Reshape", "Slice", "Transpose", "Where")
_MOST_NODES = 64
_OPERATORS = frozenset(
    {
        "Abs", "And", "Cast", "Clip", "Concat", "Div", "Equal", "Floor", "Gather", "Greater",
        "GreaterOrEqual", "Less", "LessOrEqual", "Log", "Max", "Min", "Mul", "Neg", "Not", "Or",
        "Pad", "Pow", "ReduceMax", "Reshape", "Round", "Shape", "Sign", "Slice", "Squeeze", "Sub",
        "Transpose", "Unsqueeze", "Where",
    }
)  # fmt: skip


@dataclass(frozen=True)
class BlockNumbers:
    """A model without the operators that round, and how many groups of them there were."""

    model: ir.Model
    groups: int


def recognise(model: ir.Model) -> BlockNumbers | str:
    """Return the float model that a BFP16 file stands for.

    Else why it is none, empty if plainly so.

    `model` is simplified, with fixed shapes, and stays as it is. It is BFP16 where all that its
    products multiply is in blocks along what they sum over: a device rounds all or none.
    """
    if not any(is_operator(node, "Round") for node in model.graph):
        return ""
    work = model.clone()
    finder = _Finder(work)
    sources: dict[ir.Value, _Rounding] = {}
    for node in work.graph:
        if is_operator(node, "Round"):
            found = finder.rounding(node)
            if found is not None:
                sources[found.result] = found
    if not sources:
        return ""
    products = [node for node in work.graph if is_operator(node, *PRODUCTS)]
    other = sum(not _is_rounded(node, sources) for node in products)
    if other:
        return f"{other} of {len(products)} products are not in BFP16"
    for rounding in sources.values():
        _replace(work, rounding.result, _unrounded(rounding.source, sources))
    remove_dead_nodes(work, Notes())
    return BlockNumbers(work, len(sources))


def settled_numbers(
    model: ir.Model, target: Target, precision: str
) -> tuple[ir.Model, str, tuple[str, ...]]:
    """Return the model and the precision to compile it in for `target`, and notes on both.

    Raises: OptionError where another precision is asked for than the file's own.
    """
    if target.kind != "npu" or "bf16" not in target.formats:
        return model, precision, ()
    found = recognise(model)
    if isinstance(found, str):
        note = f"the model rounds to BFP16 in operators of its own, which stay: {found}"
        return model, precision, (note,) if found else ()
    if precision not in ("auto", NAME):
        raise OptionError(
            f"the model is {NAME}, which {target.name} computes as it is",
            where=f"--precision {precision}",
            hint="leave the option out, or give the float model",
        )
    note = (
        f"the model is BFP16: {target.name} rounds to blocks by itself, and the operators that do"
        f" so in {found.groups} places were left out"
    )
    return found.model, NAME, (note,)


@dataclass(frozen=True)
class _Rounding:
    """A value, and the same in blocks along an axis."""

    source: ir.Value
    result: ir.Value
    axis: int


class _Finder:
    """Looks for roundings in one model; what was run once is known."""

    def __init__(self, model: ir.Model) -> None:
        self._extractor = Extractor(model)
        self._places = {node: place for place, node in enumerate(model.graph)}
        self._known: dict[object, int | None] = {}

    def rounding(self, node: ir.Node) -> _Rounding | None:
        """Return the widest group of operators around a Round that is a rounding to blocks."""
        for result in reversed(list(_onwards(node))):
            for source, group in self._origins(result):
                axis = self._axis(source, result, group)
                if axis is not None:
                    return _Rounding(source, result, axis)
        return None

    def _origins(self, result: ir.Value) -> Iterator[tuple[ir.Value, list[int]]]:
        """Yield the values of the same shape from which alone `result` is computed."""
        shape = static_shape(result)
        open_values = {result}
        group: list[int] = []
        while len(group) < _MOST_NODES:
            makers = [v.producer() for v in open_values]
            last = max((m for m in makers if m is not None), key=self._places.get, default=None)  # type: ignore[arg-type]
            if last is None or last.op_type not in _OPERATORS or last.domain:
                return
            group.append(self._places[last])
            open_values -= set(last.outputs)
            open_values |= {v for v in last.inputs if v is not None and constant_of(v) is None}
            if len(open_values) == 1:
                (source,) = open_values
                if shape is not None and static_shape(source) == shape:
                    yield source, sorted(group)

    def _axis(self, source: ir.Value, result: ir.Value, group: list[int]) -> int | None:
        """Run the group on numbers of all sizes; give the axis along which it makes blocks."""
        piece = self._extractor.extract("rounding", group)
        key = _form(piece)
        if key not in self._known:
            self._known[key] = _run(piece, str(source.name), str(result.name))
        return self._known[key]


def _onwards(node: ir.Node) -> Iterator[ir.Value]:
    """Yield what is made of a node's output alone, step by step."""
    while True:
        value = node.outputs[0]
        yield value
        readers = list(value.uses())
        if len(readers) != 1 or value.is_graph_output():
            return
        node = readers[0].node
        if not is_operator(node, *_FORWARD):
            return


def _form(piece: ir.Model) -> object:
    """Return what two pieces have in common that compute the same: all but names."""
    numbers: dict[str, int] = {}
    rows: list[object] = []
    for value in required_inputs(piece):
        numbers[str(value.name)] = len(numbers)
        rows.append(str(value.shape))
    for node in piece.graph:
        inputs: list[object] = []
        for read in node.inputs:
            tensor = None if read is None else constant_of(read)
            if tensor is not None:
                inputs.append((tensor.dtype, tuple(tensor.shape), tensor.numpy().tobytes()))
            else:
                inputs.append(None if read is None else numbers[str(read.name)])
        for output in node.outputs:
            numbers[str(output.name)] = len(numbers)
        attributes = sorted((name, str(a.value)) for name, a in node.attributes.items())
        rows.append((node.op_type, tuple(inputs), tuple(attributes)))
    rows.append(tuple(numbers[str(value.name)] for value in piece.graph.outputs))
    return tuple(rows)


def _run(piece: ir.Model, source: str, result: str) -> int | None:
    inputs = required_inputs(piece)
    if [str(value.name) for value in inputs] != [source] or inputs[0].dtype != ir.DataType.FLOAT:
        return None
    shape = static_shape(inputs[0])
    if not shape or result not in [value.name for value in piece.graph.outputs]:
        return None
    numbers = _numbers_of_all_sizes(shape)
    try:
        given = run_session(open_session(piece, quiet=True), {source: numbers})[result]
    except VermilionError:
        return None  # an excerpt that does not run is no rounding
    axes = range(len(shape))
    return next((a for a in axes if np.array_equal(given, round_to(numbers, NAME, a))), None)


def _numbers_of_all_sizes(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return numbers that any other rounding takes elsewhere: ties, powers of two, zeros, sizes."""
    random = np.random.default_rng(0)
    numbers = random.standard_normal(shape, dtype=np.float32)
    numbers = np.ldexp(numbers, random.integers(-12, 13, shape)).astype(np.float32)
    ties = np.ldexp(random.integers(-255, 256, shape) / 2.0, random.integers(-3, 4, shape))
    chosen = random.random(shape)
    numbers = np.where(chosen < 0.3, ties.astype(np.float32), numbers)
    return np.where(chosen > 0.9, np.float32(0), numbers).astype(np.float32)


def _is_rounded(node: ir.Node, sources: dict[ir.Value, _Rounding]) -> bool:
    """Say whether all that a product multiplies is in blocks along what it sums over."""
    for index, axis in summed_axes(node):
        value = node.inputs[index]
        tensor = None if value is None else constant_of(value)
        if tensor is not None:
            if tensor.dtype != ir.DataType.FLOAT:
                return False
            weights = tensor.numpy()
            if not np.array_equal(weights, round_to(weights, NAME, axis)):
                return False
        elif value is None or value not in sources or sources[value].axis != axis:
            return False
    return True


def _unrounded(value: ir.Value, sources: dict[ir.Value, _Rounding]) -> ir.Value:
    while value in sources:
        value = sources[value].source
    return value


def _replace(model: ir.Model, result: ir.Value, source: ir.Value) -> None:
    """Let whoever reads the rounded value read the value itself; outputs keep their names."""
    for use in list(result.uses()):
        use.node.replace_input_with(use.idx, source)
    if not result.is_graph_output() or source.producer() is None or source.is_graph_output():
        return
    name = str(result.name)
    result.name = f"{name}/rounded"
    source.name = name
    for at, output in enumerate(model.graph.outputs):
        if output is result:
            model.graph.outputs[at] = source
