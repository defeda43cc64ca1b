"""Sizes for open dimensions: what the graph fixes, then plausible ones in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import onnx
import onnx_ir as ir

from vermilion.ir.opset import constant_of, required_inputs
from vermilion.ir.samples.facts import Shape, equal_sizes, operand, shapes_of
from vermilion.ir.samples.values import SampleKind

IMAGE_SIDE = 64
"""Taken for an open height or width: divisible by 32, the usual total stride of a network."""

# (batch, side of an image, any other length), the likeliest first.
_FIRST: Mapping[SampleKind, tuple[tuple[int, int, int], ...]] = {
    "ordinary": ((1, IMAGE_SIDE, 1), (1, IMAGE_SIDE, 8)),
    "edges": ((1, 96, 3), (1, IMAGE_SIDE, 2), (1, IMAGE_SIDE, 8)),
    "large": ((2, IMAGE_SIDE, 5), (2, IMAGE_SIDE, 12), (1, 96, 6)),
}
# Far apart first: sound has hundreds of values at least, and six attempts are all there are.
_LENGTHS = (32, 512, 2, 128, 3, 4096, 4, 6, 12, 16, 24, 64, 256, 1024, 16000)
_SIDES = (IMAGE_SIDE, 32, 224, 128, 16, 640, 8, 96)
_MAX_LENGTH = 1 << 16
# Of several lengths so many are tried alone, at frames of sound of 16 and 8 kHz.
_MOST_ALONE, _FRAMES = 4, (512, 256)

_PLAIN = (ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)

Sizes = dict[str, int]


def open_name(value: ir.Value, axis: int) -> str:
    """Return the name of an open dimension of an input, one made from its place where it has none.

    `?`, which exporters write for no name, is not one.
    """
    size = value.shape.dims[axis] if value.shape is not None else 0
    name = None if isinstance(size, int) else size.value
    return str(name) if name and name != "?" else f"{value.name}[{axis}]"


def open_axes(model: ir.Model) -> Iterator[tuple[ir.Value, int, str]]:
    """Yield the open dimensions of the inputs: the input, the axis, the name."""
    for value in required_inputs(model):
        for axis, size in enumerate(value.shape.dims if value.shape is not None else ()):
            if not isinstance(size, int) or size < 0:
                yield value, axis, open_name(value, axis)


def candidates(
    model: ir.Model, kind: SampleKind, symbolic: Callable[[], onnx.GraphProto | None]
) -> Iterator[Sizes]:
    """Yield sizes for all open dimensions, the likeliest first.

    Where the first ones do not do, the graph is looked into: `symbolic` returns it inferred with
    names. A dimension that meets a constant is of that size; the others follow a plan each time.
    """
    axes = list(open_axes(model))
    if not axes:
        yield {}
        return
    sides = {n for v, axis, n in axes if v.dtype in _PLAIN and len(_dims(v)) == 4 and axis >= 2}
    # A length that is some input's first dimension and nothing else is a batch.
    leads = {n for v, axis, n in axes if axis == 0 and len(_dims(v)) > 1} - sides
    leads -= {n for _, axis, n in axes if axis > 0}

    def sizes(plan: tuple[int, int, int], fixed: Sizes) -> Sizes:
        batch, side, length = plan
        return {
            n: fixed.get(n, side if n in sides else batch if n in leads else length)
            for _, _, n in axes
        }

    first = sizes(_FIRST[kind][0], {})
    yield first
    graph = symbolic()
    dims = _Dims(graph) if graph is not None else None
    fixed = dims.fixed(model) if dims is not None else {}
    seen = {tuple(first.values())}
    lengths = list(dict.fromkeys(n for _, _, n in axes if n not in sides and n not in leads))
    alone = _alone(sizes((1, IMAGE_SIDE, 1), fixed), [n for n in lengths if n not in fixed])
    plans = (sizes(plan, fixed) for plan in _plans(kind, _divisors(model, dims)))
    for found in (*islice(plans, len(_FIRST[kind])), *alone, *plans):
        key = tuple(found.values())
        if key not in seen:
            seen.add(key)
            yield found


def _alone(small: Sizes, lengths: list[str]) -> Iterator[Sizes]:
    """Yield sizes with one length that is not 1: sound beside a state of one batch."""
    for length in _FRAMES:
        for name in lengths[:_MOST_ALONE] if len(lengths) > 1 else ():
            yield {**small, name: length}


def _dims(value: ir.Value) -> tuple[int | ir.SymbolicDim, ...]:
    return () if value.shape is None else tuple(value.shape.dims)


def _plans(kind: SampleKind, hints: list[int]) -> Iterator[tuple[int, int, int]]:
    yield from _FIRST[kind]
    for hint in hints:
        yield 1, IMAGE_SIDE, hint
        yield hint, IMAGE_SIDE, 8
    for at, length in enumerate(_LENGTHS):
        yield 1 + at % 2, _SIDES[at % len(_SIDES)], length
    for length in (*hints, *_LENGTHS):
        yield length, IMAGE_SIDE, length


def _divisors(model: ir.Model, dims: _Dims | None) -> list[int]:
    """Return what an open length may have to be a multiple of: the constants of Reshapes."""
    found: dict[int, None] = {}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        if node.op_type != "Reshape" or len(found) > 8:
            continue
        target = constant_of(operand(node, 1))
        if target is None or target.size > 16:
            continue
        sizes = [int(size) for size in target.numpy().ravel()]
        product = math.prod(size for size in sizes if size > 0)
        data = dims.of(operand(node, 0)) if dims is not None else None
        own = math.prod(size for size in data or () if isinstance(size, int))
        for multiple in (product // math.gcd(product, max(own, 1)), product):
            if 1 < multiple <= _MAX_LENGTH:
                found[multiple] = None
                if -1 in sizes and 2 * multiple <= _MAX_LENGTH:
                    found[2 * multiple] = None
    return list(found)[:8]


class _Dims:
    """Sizes and names of dimensions of all values of an inferred graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._shapes = {
            value.name: [
                dim.dim_value if dim.HasField("dim_value") else dim.dim_param
                for dim in value.type.tensor_type.shape.dim
            ]
            for value in (*graph.input, *graph.value_info, *graph.output)
            if value.type.tensor_type.HasField("shape")
        }

    def of(self, value: ir.Value | None) -> list[int | str] | None:
        """Return sizes and names, of a constant too; None where the rank is not known."""
        if value is None:
            return None
        tensor = constant_of(value)
        if tensor is not None:
            return [int(size) for size in tensor.shape.numpy()]
        return self._shapes.get(value.name or "")

    def fixed(self, model: ir.Model) -> Sizes:
        """Return the sizes of the dimensions that must be equal to a known one."""
        same: dict[str, str] = {}
        sizes: Sizes = {}

        def root(name: str) -> str:
            while name in same:
                name = same[name]
            return name

        for node in model.graph:
            for a, b in self._equal(node):
                if isinstance(a, int) and isinstance(b, int):
                    continue
                if isinstance(a, str) and isinstance(b, str):
                    if a and b and root(a) != root(b):
                        same[root(a)] = root(b)
                    continue
                name, size = (a, b) if isinstance(a, str) else (b, a)
                if name and isinstance(size, int) and size > 0:
                    sizes.setdefault(str(name), size)
        by_root = {root(name): size for name, size in sizes.items()}
        return {n: by_root[root(n)] for n in {*sizes, *same} if root(n) in by_root}

    def contradict(self, model: ir.Model) -> bool:
        """Say whether two known sizes differ that a node needs to be equal."""
        return any(
            isinstance(a, int) and isinstance(b, int) and a != b
            for node in model.graph
            for a, b in self._equal(node)
        )

    def _equal(self, node: ir.Node) -> Iterator[tuple[int | str, int | str]]:
        """Yield pairs of dimensions that a node needs to be equal."""
        shapes = [self.of(value) for value in node.inputs]
        try:
            yield from equal_sizes(node, [shape or [] for shape in shapes])
        except IndexError:
            return  # of unknown rank, or a graph that contradicts itself


def fits(model: ir.Model, graph: onnx.GraphProto) -> bool:
    """Say whether an inferred graph is possible: sizes below 0 and other element counts are not.

    Nor are sizes that differ where a node needs them equal: inference looks at some of those only.
    """
    shapes = dict(shapes_of(graph))
    if _Dims(graph).contradict(model):
        return False
    if any(size is not None and size < 0 for shape in shapes.values() for size in shape):
        return False
    return all(
        _count(shapes.get(node.input[0])) in (None, _count(shapes.get(node.output[0])))
        or _count(shapes.get(node.output[0])) is None
        for node in graph.node
        if node.op_type == "Reshape" and node.domain == "" and node.input and node.output
    )


def _count(shape: Shape | None) -> int | None:
    if shape is None or None in shape:
        return None
    return math.prod(size for size in shape if size is not None)
