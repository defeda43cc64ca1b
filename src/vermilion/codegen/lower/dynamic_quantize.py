"""DynamicQuantizeLinear: the range of a tensor, its scale and zero point, its codes.

Every step is in float32 and rounds as ONNX Runtime's does, which divides where others multiply with
an inverse (`core/util/qmath.h`, GetQuantizationParameter and ParQuantizeLinearStd).
"""

from __future__ import annotations

import math

import onnx_ir as ir

from vermilion.codegen.emit.map import Dimension, collapse
from vermilion.codegen.emit.reduce import ExtremesSpec
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering, operations_of
from vermilion.codegen.lower.elementwise import add_map, layout_like
from vermilion.codegen.lower.integer_convolution import convolved_border
from vermilion.codegen.tensor import View, allocate, contiguous_strides
from vermilion.ir.expression import Apply, Constant, Convert, Expression, Operand, apply
from vermilion.ir.opset import constant_of, is_operator, static_shape
from vermilion.ir.symbolic import is_known, is_one, typical

_LEVELS = 255
# Numbers whose range one worker finds before another would have begun.
_FEW = 16_384
# Elements of an innermost dimension from which on it is enough for one unit of work.
_LONG_ROW = 256


def lower_dynamic_quantize(lowering: Lowering, node: ir.Node) -> None:
    """Write the range, then scale and zero point as numbers in memory, then the codes."""
    data = node.inputs[0]
    assert data is not None
    source = lowering.demand(data)
    codes, scale, point = node.outputs
    scale_view = lowering.output(scale)
    point_view = lowering.output(point)
    name = str(node.name)
    _add_range(lowering, source, (scale_view, point_view), name)
    shape = static_shape(codes) or ()
    border = convolved_border(codes, point)
    if border is not None and not border.is_empty:
        target = lowering.bordered(str(codes.name), "u8", shape, border, point_view)
        lowering.views[str(codes.name)] = target
    else:
        order = (0, 2, 3, 1) if border is not None else layout_like([source], len(shape))
        target = lowering.output(codes, order)
    operands = [source, scale_view, point_view]
    add_map(lowering, operands, target, _code(), [name], operations_of([node]))


def scales_of_run(graph: ir.Graph) -> frozenset[str]:
    """Return the scales that are found in a run, their products with constants, and these.

    They are numbers in float32 whatever the precision: codes and sums follow from them as they are.
    """
    found: set[str] = set()
    for node in graph:
        if is_operator(node, "DynamicQuantizeLinear"):
            found.add(str(node.outputs[1].name))
        elif is_operator(node, "Mul"):
            names = {str(v.name) for v in node.inputs if v is not None and constant_of(v) is None}
            if names and names <= found:
                found.update(str(v.name) for v in (*node.inputs, *node.outputs) if v is not None)
    return frozenset(found)


def _scale(low: Expression, high: Expression) -> Expression:
    """Return the width of a step; 1 where all numbers are 0."""
    width = apply("div", apply("sub", high, low), Constant(float(_LEVELS)))
    return Apply("select", (apply("equal", high, low), Constant(1.0), width))


def _zero_point(low: Expression, scale: Expression) -> Expression:
    """Return the code of 0, half to even."""
    exact = apply("sub", Constant(0.0), apply("div", low, scale))
    bounded = apply("min", Constant(float(_LEVELS)), apply("max", Constant(0.0), exact))
    return Convert(apply("round", bounded), "int")


def _code() -> Expression:
    """Return the code of operand 0 by the scale and the zero point, operands 1 and 2."""
    whole = Convert(apply("round", apply("div", Operand(0), Operand(1))), "int")
    code = apply("add", whole, Operand(2, "int"))
    return apply("min", apply("max", code, Constant(0, "int")), Constant(_LEVELS, "int"))


def _add_range(lowering: Lowering, source: View, targets: tuple[View, View], name: str) -> None:
    """Write scale and zero point: of many numbers, the ends of each row come first."""
    low = apply("min", Constant(0.0), Operand(0))
    high = apply("max", Constant(0.0), Operand(1))
    step = _scale(low, high)
    last = (step, _zero_point(low, step))
    axes = sorted(range(len(source.shape)), key=lambda at: -typical(source.strides[at]))
    axes = [at for at in axes if not is_one(source.shape[at])]
    inner = 1 if not axes or typical(source.shape[axes[-1]]) >= _LONG_ROW else 2
    if is_known(source.elements) and source.elements <= _FEW:
        inner = max(1, len(axes))

    def walked(some: list[int]) -> list[Dimension]:
        strides = tuple(source.strides[at] for at in some)
        return collapse([source.shape[at] for at in some], [strides], 0)

    rows = walked(axes[:-inner]) if axes[:-inner] else []
    row = tuple((size, come) for size, (come,) in walked(axes[-inner:]))
    if not rows:
        spec = ExtremesSpec(source.storage, (), row, False, last, ("f32", "u8"))
        lowering.add(Step(spec, (source, *targets), targets, (name,)))
        return
    places = contiguous_strides([size for size, _ in rows])
    kept = tuple((size, come, go) for (size, (come,)), go in zip(rows, places, strict=True))
    count = math.prod(size for size, _ in rows)
    low_rows, high_rows = (allocate(f"{name} {word}", "f32", (count,)) for word in ("low", "high"))
    first = ExtremesSpec(source.storage, kept, row, False, (Operand(0), Operand(1)), ("f32", "f32"))
    lowering.add(Step(first, (source, low_rows, high_rows), (low_rows, high_rows), (name,)))
    second = ExtremesSpec("f32", (), ((count, 1),), True, last, ("f32", "u8"))
    lowering.add(Step(second, (low_rows, high_rows, *targets), targets, (name,)))
