"""Operators that move blocks of data: the source seen as many small dimensions, copied once."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.codegen.emit.fill import RangeSpec
from vermilion.codegen.emit.map import map_step
from vermilion.codegen.kernel import Step
from vermilion.codegen.lower.context import Lowering, identity, key_of
from vermilion.codegen.lower.data_movement_shapes import range_bound
from vermilion.codegen.lower.elementwise import kind_of, layout_like
from vermilion.codegen.lower.shapes import constant_ints, given_input
from vermilion.codegen.lower.window_shapes import whole_numbers
from vermilion.codegen.tensor import View, allocate
from vermilion.ir.attributes import integer, text
from vermilion.ir.expression import Apply, Constant, Operand
from vermilion.ir.opset import constant_of, static_shape
from vermilion.ir.symbolic import is_known


def lower_depth_to_space(lowering: Lowering, node: ir.Node) -> None:
    """DepthToSpace: blocks of channels become blocks of pixels."""
    source, target = _both(lowering, node)
    n, c, h, w = source.shape
    block = integer(node, "blocksize", 1)
    depth = c // (block * block)
    if text(node, "mode", "DCR") == "DCR":
        order = (0, 3, 4, 1, 5, 2)
        parts = (n, block, block, depth, h, w)
    else:
        order = (0, 1, 4, 2, 5, 3)
        parts = (n, depth, block, block, h, w)
    blocks = _split(source, parts).permuted(order)
    place = _split(target, (n, depth, h, block, w, block))
    _copy(lowering, node, blocks, place)


def lower_space_to_depth(lowering: Lowering, node: ir.Node) -> None:
    """SpaceToDepth: blocks of pixels become blocks of channels."""
    source, target = _both(lowering, node)
    n, c, h, w = source.shape
    block = integer(node, "blocksize", 1)
    blocks = _split(source, (n, c, h // block, block, w // block, block))
    if text(node, "mode", "DCR") == "DCR":
        order, parts = (0, 3, 5, 1, 2, 4), (n, block, block, c, h // block, w // block)
    else:
        order, parts = (0, 1, 3, 5, 2, 4), (n, c, block, block, h // block, w // block)
    _copy(lowering, node, blocks.permuted(order), _split(target, parts))


def check_tile(node: ir.Node) -> str:
    """Say why a Tile is not generated, empty if it is."""
    return "" if whole_numbers(node.inputs[1]) is not None else "Tile whose repeats are not known"


def lower_tile(lowering: Lowering, node: ir.Node) -> None:
    """Tile: every dimension becomes two, of which the first repeats."""
    source, target = _both(lowering, node)
    repeats = constant_ints(node, 1) or []
    parts = [size for pair in zip(repeats, source.shape, strict=True) for size in pair]
    single = [size for extent in source.shape for size in (1, extent)]
    repeated = _split(source, single).broadcast(parts)
    _copy(lowering, node, repeated, _split(target, parts))


def check_range(node: ir.Node) -> str:
    """Say why a Range is not generated, empty if it is."""
    known = all(range_bound(node, at) is not None for at in range(3))
    kinds = (ir.DataType.INT64, ir.DataType.INT32, ir.DataType.FLOAT)
    is_kind = node.outputs[0].dtype in kinds
    return "" if known and is_kind else "Range whose bounds are not whole numbers that are known"


def lower_range(lowering: Lowering, node: ir.Node) -> None:
    """Range: whole numbers from one on, as many as the sizes of the run say."""
    (start,), _, (step,) = (constant_ints(node, at) or [0] for at in range(3))
    target = lowering.output(node.outputs[0])
    assert target.storage in ("i32", "i64")
    spec = RangeSpec(target.storage, target.elements, start, step)
    lowering.add(Step(spec, (target,), (target,), (str(node.name),)))


def check_trilu(node: ir.Node) -> str:
    """Say why a Trilu is not generated, empty if it is."""
    diagonal = given_input(node, 1)
    is_known = diagonal is None or constant_of(diagonal) is not None
    return "" if is_known else "Trilu whose diagonal is not constant"


def lower_trilu(lowering: Lowering, node: ir.Node) -> None:
    """Trilu: a triangle of each matrix, the rest 0."""
    source, target = _both(lowering, node)
    rows, columns = source.shape[-2:]
    (diagonal,) = constant_ints(node, 1) or [0]
    kind = kind_of(lowering, node.outputs[0])
    if not (is_known(rows) and is_known(columns)):
        # Whether the column's number less the row's is on the diagonal's side.
        down = _counted(lowering, node, rows, diagonal).permuted((1, 0))
        across = _counted(lowering, node, columns, 0)
        low, high = (Operand(1, "int"), Operand(2, "int"))
        ordered = (low, high) if integer(node, "upper", 1) else (high, low)
        inside = Apply("less_equal", ordered, "bool")
        chosen = Apply("select", (inside, Operand(0, kind), Constant(0, kind)), kind)
        lowering.add(map_step([source, down, across], [target], [chosen], [str(node.name)]))
        return
    ones = np.ones((rows, columns), np.bool_)
    mask = np.triu(ones, diagonal) if integer(node, "upper", 1) else np.tril(ones, diagonal)
    kept = lowering.weight((key_of(node), "triangle"), lambda: mask, "bool")
    chosen = Apply("select", (Operand(1, "bool"), Operand(0, kind), Constant(0, kind)), kind)
    lowering.add(map_step([source, kept], [target], [chosen], [str(node.name)]))


def _counted(lowering: Lowering, node: ir.Node, count: int, start: int) -> View:
    """Return whole numbers from one on, as a row."""
    view = allocate(f"places of {node.name}", "i32", (1, count))
    spec = RangeSpec("i32", count, start, 1)
    lowering.add(Step(spec, (view,), (view,), (f"places of {node.name}",)))
    return view


def _both(lowering: Lowering, node: ir.Node) -> tuple[View, View]:
    """Return the source and the result, which lies as the source does."""
    data = node.inputs[0]
    assert data is not None
    source = lowering.demand(data)
    rank = len(static_shape(node.outputs[0]) or ())
    return source, lowering.output(node.outputs[0], layout_like([source], rank))


def _split(view: View, shape: tuple[int, ...] | list[int]) -> View:
    split = view.reshaped(shape)
    assert split is not None, "cutting dimensions into parts needs no copy"
    return split


def _copy(lowering: Lowering, node: ir.Node, source: View, target: View) -> None:
    lowering.add(map_step([source], [target], [identity(source)], [str(node.name)]))
