"""Shapes of all values, and those elements of small integer vectors that are known beforehand.

A vector that becomes a shape is often put together from constants, sizes and inputs. What is not
known in it is NaN: arithmetic carries that along by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, reduce

import numpy as np
import onnx
import onnx_ir as ir

from vermilion.ir.opset import constant_of
from vermilion.ir.samples.values import Floats

MAX_FOLLOWED = 64
"""Elements of a followed vector: shapes, bounds, axes and amounts of padding have fewer."""

MAX_DEPTH = 50
"""Nodes from a vector back to what it is made from; longer chains are not followed."""

Shape = tuple[int | None, ...]
Infer = Callable[[], onnx.GraphProto | None]


class Facts:
    """What is known of values; inference runs when the first inner shape is asked for."""

    def __init__(self, model: ir.Model, sizes: Mapping[str, Shape], infer: Infer) -> None:
        """`sizes` are the shapes of the inputs, `infer` returns the inferred graph if it can."""
        self._inputs = sizes
        self._infer = infer
        self._known: dict[str, Floats | None] = {}
        for value in model.graph.inputs:
            shape = self.static(value) if value.name in sizes else None
            if shape is not None and math.prod(shape) <= MAX_FOLLOWED:
                self._known[value.name or ""] = np.full(shape, np.nan)

    @cached_property
    def _shapes(self) -> Mapping[str, Shape]:
        graph = self._infer()
        return {} if graph is None else dict(shapes_of(graph))

    def shape(self, value: ir.Value | None) -> Shape | None:
        """Return the sizes, None for those and for a rank that nobody knows."""
        if value is None:
            return None
        tensor = constant_of(value)
        if tensor is not None:
            return tuple(int(size) for size in tensor.shape.numpy())
        found = self._inputs.get(value.name or "")
        return self._shapes.get(value.name or "") if found is None else found

    def static(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the sizes where all are known."""
        shape = self.shape(value)
        if shape is None:
            return None
        sizes = tuple(size for size in shape if size is not None)
        return sizes if len(sizes) == len(shape) else None

    def values(self, value: ir.Value | None, depth: int = MAX_DEPTH) -> Floats | None:
        """Return the elements, NaN where one is not known; None for what is not followed."""
        if value is None:
            return None
        name = value.name or ""
        if name not in self._known:
            found = _constant(value)
            self._known[name] = self._made(value, depth) if found is None else found
        return self._known[name]

    def certain(self, value: ir.Value | None) -> Floats | None:
        """Return the elements where all are known."""
        found = self.values(value)
        return None if found is None or np.isnan(found).any() else found

    def is_small_input(self, name: str) -> bool:
        """Say whether an input's elements are followed."""
        return name in self._inputs and self._known.get(name) is not None

    def _made(self, value: ir.Value, depth: int) -> Floats | None:
        """Return what the value's node makes of what is known of its operands."""
        node = value.producer()
        follow = _FOLLOWED.get(node.op_type) if node is not None and node.domain == "" else None
        if node is None or follow is None or depth == 0:
            return None
        try:
            if node.op_type not in _OF_SIZES:
                for source in node.inputs:
                    self.values(source, depth - 1)
            found = follow(node, self)
        except (ValueError, IndexError, TypeError, OverflowError):
            return None  # a graph that contradicts itself: whoever runs it says so
        if found is None or found.size > MAX_FOLLOWED:
            return None
        return np.asarray(found, np.float64)


def shapes_of(graph: onnx.GraphProto) -> Iterator[tuple[str, Shape]]:
    """Yield the values of known rank, those in bodies too, with their sizes."""
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        if tensor.HasField("shape"):
            yield (
                value.name,
                tuple(
                    int(dim.dim_value) if dim.HasField("dim_value") else None
                    for dim in tensor.shape.dim
                ),
            )
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs) if attribute.type else ():
                yield from shapes_of(body)


def _constant(value: ir.Value) -> Floats | None:
    tensor = constant_of(value)
    if tensor is None:
        return _written(value.producer())
    if tensor.size > MAX_FOLLOWED or tensor.dtype == ir.DataType.STRING:
        return None
    return np.asarray(tensor.numpy()).astype(np.float64)


def _written(node: ir.Node | None) -> Floats | None:
    """Return the value of a Constant that is written as an integer, a float or a list of them."""
    if node is None or node.op_type != "Constant":
        return None
    for name in ("value_int", "value_ints", "value_float", "value_floats"):
        if name in node.attributes:
            return np.asarray(node.attributes[name].value, np.float64)
    return None


def attribute_or(node: ir.Node, name: str, default: int) -> int:
    """Return an integer attribute as it is written; nothing is raised for what is not one."""
    attribute = node.attributes.get(name)
    if attribute is None or attribute.type != ir.AttributeType.INT:
        return default
    return int(attribute.as_int())


def attribute_list(node: ir.Node, name: str) -> list[int] | None:
    """Return a list of integers as it is written."""
    attribute = node.attributes.get(name)
    if attribute is None or attribute.type != ir.AttributeType.INTS:
        return None
    return [int(number) for number in attribute.as_ints()]


def operand(node: ir.Node, at: int) -> ir.Value | None:
    """Return an input of a node, None where it is left out."""
    return node.inputs[at] if at < len(node.inputs) else None


def _operand(node: ir.Node, facts: Facts, at: int) -> Floats:
    found = facts.values(operand(node, at))
    if found is None:
        raise ValueError("not followed")
    return found


def _sizes(node: ir.Node, facts: Facts) -> Floats | None:
    shape = facts.shape(node.inputs[0])
    if shape is None:
        return None
    sizes = np.array([math.nan if size is None else size for size in shape], np.float64)
    end = attribute_or(node, "end", len(sizes))
    return sizes[attribute_or(node, "start", 0) : end]


def _count(node: ir.Node, facts: Facts) -> Floats | None:
    sizes = facts.static(node.inputs[0])
    return None if sizes is None else np.array(math.prod(sizes), np.float64)


def _moved(node: ir.Node, facts: Facts) -> Floats | None:
    found, sizes = _operand(node, facts, 0), facts.static(node.outputs[0])
    if sizes is not None:
        return found.reshape(sizes)
    # Behind a Range inference knows no sizes.
    axes = attribute_list(node, "axes") or _known_list(node, facts, 1)
    if axes is None or node.op_type not in ("Squeeze", "Unsqueeze"):
        return None
    return (np.squeeze if node.op_type == "Squeeze" else np.expand_dims)(found, tuple(axes))


def _cast(node: ir.Node, facts: Facts) -> Floats | None:
    found = _operand(node, facts, 0)
    to = attribute_or(node, "to", 1)
    return np.trunc(found) if ir.DataType(to).is_integer() else found


def _concat(node: ir.Node, facts: Facts) -> Floats | None:
    parts = [_operand(node, facts, at) for at in range(len(node.inputs))]
    return np.concatenate(parts, axis=attribute_or(node, "axis", 0))


def _gather(node: ir.Node, facts: Facts) -> Floats | None:
    index = facts.certain(node.inputs[1])
    if index is None:
        return None
    axis = attribute_or(node, "axis", 0)
    return np.take(_operand(node, facts, 0), index.astype(np.int64), axis=axis)


def slices(node: ir.Node, facts: Facts) -> tuple[slice, ...] | None:
    """Return what a Slice with known bounds takes along each axis."""
    if len(node.inputs) == 1:
        starts, ends = attribute_list(node, "starts"), attribute_list(node, "ends")
        axes, steps = attribute_list(node, "axes"), None
    else:
        lists = [_known_list(node, facts, at) for at in range(1, 5)]
        starts, ends, axes, steps = lists
    shape = facts.shape(node.inputs[0])
    if shape is None or starts is None or ends is None:
        return None
    if (axes is None and operand(node, 3) is not None) or (
        steps is None and operand(node, 4) is not None
    ):
        return None
    taken = [slice(None)] * len(shape)
    for at, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis = axes[at] if axes is not None else at
        step = steps[at] if steps is not None else 1
        # Below the first element a slice that goes backwards ends with it.
        size = shape[axis]
        last = None if step < 0 and end < -(size or 0) else end
        taken[axis] = slice(start, last, step)
    return tuple(taken)


def _known_list(node: ir.Node, facts: Facts, at: int) -> list[int] | None:
    found = facts.certain(operand(node, at))
    return None if found is None else [int(number) for number in found.ravel()]


def _slice(node: ir.Node, facts: Facts) -> Floats | None:
    taken = slices(node, facts)
    return None if taken is None else _operand(node, facts, 0)[taken]


def _spread(node: ir.Node, facts: Facts) -> Floats | None:
    sizes = facts.static(node.outputs[0])
    if sizes is None or math.prod(sizes) > MAX_FOLLOWED:
        return None
    return np.broadcast_to(_operand(node, facts, 0), sizes)


def _divided(a: Floats, b: Floats, *, whole: bool) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        quotient = np.where(b == 0, np.nan, a / np.where(b == 0, 1, b))
    return np.trunc(quotient) if whole else quotient


def _div(node: ir.Node, facts: Facts) -> Floats | None:
    dtype = node.inputs[0].dtype if node.inputs[0] is not None else None
    whole = dtype is None or dtype.is_integer()
    return _divided(_operand(node, facts, 0), _operand(node, facts, 1), whole=whole)


def _where(node: ir.Node, facts: Facts) -> Floats | None:
    condition = facts.certain(node.inputs[0])
    if condition is None:
        return None
    return np.where(condition != 0, _operand(node, facts, 1), _operand(node, facts, 2))


def _product(node: ir.Node, facts: Facts) -> Floats | None:
    sizes = facts.static(node.outputs[0])
    found = _operand(node, facts, 0)
    if sizes is None or math.prod(sizes) != 1:
        return None
    return np.full(sizes, np.prod(found), np.float64)


def _range(node: ir.Node, facts: Facts) -> Floats | None:
    ends = [facts.certain(value) for value in node.inputs]
    start, limit, step = (None if end is None else float(end.ravel()[0]) for end in ends)
    if start is None or limit is None or not step or (limit - start) / step > MAX_FOLLOWED:
        return None
    return np.arange(start, limit, step, dtype=np.float64)


def _joined(function: Callable[[Floats, Floats], Floats]) -> Callable[[ir.Node, Facts], Floats]:
    return lambda node, facts: reduce(
        function, [_operand(node, facts, at) for at in range(len(node.inputs))]
    )


_OF_SIZES = ("Shape", "Size")  # the values of their operands do not matter

_FOLLOWED: Mapping[str, Callable[[ir.Node, Facts], Floats | None]] = {
    "Add": _joined(np.add),
    "Cast": _cast,
    "Concat": _concat,
    "Div": _div,
    "Expand": _spread,
    "Flatten": _moved,
    "Gather": _gather,
    "Identity": lambda node, facts: _operand(node, facts, 0),
    "Max": _joined(np.maximum),
    "Min": _joined(np.minimum),
    "Mul": _joined(np.multiply),
    "Neg": lambda node, facts: -_operand(node, facts, 0),
    "Range": _range,
    "ReduceProd": _product,
    "Reshape": _moved,
    "Shape": _sizes,
    "Size": _count,
    "Slice": _slice,
    "Squeeze": _moved,
    "Sub": _joined(np.subtract),
    "Unsqueeze": _moved,
    "Where": _where,
}


Dim = int | str
"""A size, or the name of one."""

_ELEMENTWISE = {"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mod", "PRelu", "Sum", "Mean"}
_ELEMENTWISE |= {"Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "And", "Or", "Xor"}


def equal_sizes(node: ir.Node, shapes: Sequence[Sequence[Dim]]) -> Iterator[tuple[Dim, Dim]]:
    """Yield pairs of dimensions.

    Raises: IndexError for a rank that is not known, or that the node cannot have.
    """
    op_type = node.op_type
    if op_type in _ELEMENTWISE or op_type == "Where":
        for shape in shapes[1:]:
            for a, b in zip(reversed(shapes[0]), reversed(shape), strict=False):
                if 1 not in (a, b):
                    yield a, b
    elif op_type == "MatMul":
        yield shapes[0][-1], shapes[1][-2 if len(shapes[1]) > 1 else -1]
    elif op_type == "Gemm":
        inner = 0 if attribute_or(node, "transA", 0) else 1
        yield shapes[0][inner], shapes[1][1 if attribute_or(node, "transB", 0) else 0]
    elif op_type == "Conv":
        channels = shapes[1][1]
        if isinstance(channels, int):
            yield shapes[0][1], channels * attribute_or(node, "group", 1)
    elif op_type in ("ConvTranspose", "BatchNormalization", "InstanceNormalization"):
        yield shapes[0][1], shapes[1][0]
    elif op_type in ("LayerNormalization", "RMSNormalization", "SkipLayerNormalization"):
        yield shapes[0][-1], shapes[1][-1]
    elif op_type in ("LSTM", "GRU", "RNN"):
        yield shapes[0][2], shapes[1][2]
    elif op_type == "Concat":
        axis = attribute_or(node, "axis", 0) % max(len(shapes[0]), 1)
        for shape in shapes[1:]:
            for at, (a, b) in enumerate(zip(shapes[0], shape, strict=False)):
                if at != axis:
                    yield a, b
