"""Rewriting a quantized graph so that tensors stay integers for as long as they can.

The graph before lowering is what the user's file says: DequantizeLinear before every operator,
QuantizeLinear behind it. After these rewrites, which change no number that is computed:

    QLinearConv, QLinearMatMul         → DequantizeLinear, Conv or MatMul, QuantizeLinear
    signed 8-bit activations           → unsigned ones, value and zero point 128 higher
    move(DequantizeLinear(x))          → DequantizeLinear(move(x)), where data only moves
    QuantizeLinear(move(x))            → move(QuantizeLinear(x))
    QuantizeLinear(DequantizeLinear(x)) of one grid → x
    DequantizeLinear(constant), where no integer product reads it → a constant
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from vermilion.codegen.lower.dequantized import dequantized_constant, is_constant
from vermilion.codegen.lower.quantized import (
    Grid,
    grid_of,
    integer_product,
)
from vermilion.codegen.lower.wide_product import wide_product
from vermilion.ir.arrays import Array
from vermilion.ir.attributes import integers, text
from vermilion.ir.opset import constant_of, is_operator, static_shape

# What gives each number of its first input at another place, or the greatest of some.
_MOVES = frozenset(
    {
        "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Expand",
        "Identity", "MaxPool", "DepthToSpace", "SpaceToDepth", "Tile", "GlobalMaxPool",
    }
)  # fmt: skip

_ROUNDS = 64


def keep_integers(model: ir.Model) -> ir.Model:
    """Return the graph rewritten; the given model stays as it is."""
    if not any("Linear" in node.op_type for node in model.graph):
        return model
    work = model.clone()
    graph = work.graph
    rewriter = _Rewriter(graph)
    rewriter.each(rewriter.split_linear)
    rewriter.each(rewriter.make_unsigned)
    for _ in range(_ROUNDS):
        changed = rewriter.each(rewriter.sink)
        changed |= rewriter.each(rewriter.hoist)
        changed |= rewriter.each(rewriter.cancel)
        if not changed:
            break
    rewriter.each(rewriter.fold)
    rewriter.drop_unread()
    graph.sort()
    return work


class _Rewriter:
    """The rewrites of one graph, node by node."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._count = 0
        self._signs: dict[ir.Value, ir.Value] = {}

    def each(self, rewrite: Callable[[ir.Node], bool]) -> bool:
        """Offer every node to a rewrite; say whether it changed any."""
        changed = False
        for node in list(self.graph):
            if node.graph is self.graph:
                changed |= rewrite(node)
        return changed

    # Making nodes ----------------------------------------------------------------------------

    def constant(self, array: np.ndarray[Any, Any]) -> ir.Value:
        """Add a weight."""
        self._count += 1
        name = f"integers/{self._count}"
        value = ir.Value(
            name=name,
            type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
            shape=ir.Shape(array.shape),
            const_value=ir.Tensor(array, name=name),
        )
        self.graph.register_initializer(value)
        return value

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        like: ir.Value,
        dtype: ir.DataType,
        before: ir.Node,
        attributes: Sequence[ir.Attr] = (),
    ) -> ir.Value:
        """Add a node whose result has the shape of `like`; give the result."""
        self._count += 1
        name = f"{like.name}/{op_type}/{self._count}"
        output = ir.Value(name=name, type=ir.TensorType(dtype), shape=like.shape)
        made = ir.Node("", op_type, inputs, attributes, outputs=[output], name=name)
        self.graph.insert_before(before, made)
        return output

    def grid(self, grid: Grid) -> tuple[ir.Value, ir.Value]:
        """Add a scale and a zero point."""
        kind = {"u8": np.uint8, "s8": np.int8, "u16": np.uint16, "s16": np.int16}[grid.storage]
        return self.constant(np.array(grid.scale, np.float32)), self.constant(
            np.array(grid.zero, kind)
        )

    # Rewrites --------------------------------------------------------------------------------

    def split_linear(self, node: ir.Node) -> bool:
        """QLinearConv and QLinearMatMul into the three operators that they stand for."""
        if not is_operator(node, "QLinearConv", "QLinearMatMul"):
            return False
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, *rest = node.inputs
        output = node.outputs[0]
        assert x is not None
        assert w is not None
        # The integers of a sum are multiplied by one number, x_scale × w_scale ÷ y_scale rounded to
        # f32 twice: with three operators' scales in turn, halves are rounded the other way.
        scales = [constant_of(scale) for scale in (x_scale, w_scale, y_scale)]
        factor = self.constant(_factor(*(scale.numpy() for scale in scales if scale is not None)))
        one = self.constant(np.array(1, np.float32))
        axis = 0 if node.op_type == "QLinearConv" else 1
        parts: list[ir.Value | None] = [
            self.node("DequantizeLinear", [x, one, x_zero], x, ir.DataType.FLOAT, node),
            self.node(
                "DequantizeLinear", [w, factor, w_zero], w, ir.DataType.FLOAT, node,
                [ir.AttrInt64("axis", axis)],
            ),
        ]  # fmt: skip
        bias = rest[0] if rest else None
        if bias is not None:
            parts.append(
                self.node(
                    "DequantizeLinear", [bias, factor], bias, ir.DataType.FLOAT, node,
                    [ir.AttrInt64("axis", 0)],
                )
            )  # fmt: skip
        kind = "Conv" if axis == 0 else "MatMul"
        product = self.node(
            kind, parts, output, ir.DataType.FLOAT, node, list(node.attributes.values())
        )
        assert output.dtype is not None
        result = self.node("QuantizeLinear", [product, one, y_zero], output, output.dtype, node)
        self._replace(output, result)
        self.graph.remove(node, safe=True)
        return True

    def make_unsigned(self, node: ir.Node) -> bool:
        """A DequantizeLinear of signed 8-bit numbers reads unsigned ones, 128 higher."""
        grid = grid_of(node)
        source = node.inputs[0]
        if not is_operator(node, "DequantizeLinear") or grid is None or grid.storage != "s8":
            return False
        assert source is not None
        if constant_of(source) is not None:
            return False
        unsigned = Grid(grid.scale, grid.zero + 128, "u8")
        if source not in self._signs:
            self._signs[source] = self._unsigned(source, unsigned, node)
        scale, zero = self.grid(unsigned)
        for index, value in enumerate((self._signs[source], scale, zero)):
            node.replace_input_with(index, value) if index < len(node.inputs) else None
        if len(node.inputs) < 3:
            node.resize_inputs(3)
            node.replace_input_with(2, zero)
        return True

    def _unsigned(self, source: ir.Value, grid: Grid, reader: ir.Node) -> ir.Value:
        """Return the tensor with its numbers 128 higher."""
        maker = source.producer()
        made = grid_of(maker) if is_operator(maker, "QuantizeLinear") else None
        if maker is not None and made is not None:
            scale, zero = self.grid(Grid(made.scale, made.zero + 128, "u8"))
            result = self.node(
                "QuantizeLinear", [maker.inputs[0], scale, zero], source, ir.DataType.UINT8, maker
            )
            if source.is_graph_output():  # which is then a copy with the sign bit turned over
                back = self.node(
                    "DequantizeLinear", [result, scale, zero], source, ir.DataType.FLOAT, maker
                )
                maker.replace_input_with(0, back)
            return result
        signed_scale, signed_zero = self.grid(Grid(1.0, 0, "s8"))
        plain = self.node(
            "DequantizeLinear", [source, signed_scale, signed_zero], source,
            ir.DataType.FLOAT, reader,
        )  # fmt: skip
        self._signs[source] = source  # the node just made reads the signed numbers
        scale, zero = self.grid(Grid(1.0, 128, "u8"))
        return self.node("QuantizeLinear", [plain, scale, zero], source, ir.DataType.UINT8, reader)

    def sink(self, node: ir.Node) -> bool:
        """Move a DequantizeLinear behind what moves data, or joins tensors of one grid."""
        if not _moves(node) or any(v.is_graph_output() for v in node.outputs):
            return False
        pieces = [v for v in node.inputs if v is not None] if _joins(node) else [node.inputs[0]]
        makers = [None if v is None else v.producer() for v in pieces]
        grids = {
            grid_of(m) if is_operator(m, "DequantizeLinear") and not is_constant(v) else None
            for m, v in zip(makers, pieces, strict=True)
        }
        if len(grids) != 1 or None in grids:
            return False
        first = makers[0]
        assert first is not None
        source = first.inputs[0]
        assert source is not None
        assert source.dtype is not None
        for index, maker in enumerate(makers):
            assert maker is not None
            node.replace_input_with(index, maker.inputs[0])
        for output in node.outputs:
            self._behind(node, output, first, source.dtype)
        return True

    def _behind(
        self, node: ir.Node, output: ir.Value, dequantize: ir.Node, dtype: ir.DataType
    ) -> None:
        """Put a DequantizeLinear like `dequantize` between `output` and all its readers."""
        uses = list(output.uses())
        result = ir.Value(
            name=f"{output.name}/float", type=ir.TensorType(ir.DataType.FLOAT), shape=output.shape
        )
        made = ir.Node(
            "", "DequantizeLinear", [output, *dequantize.inputs[1:]],
            outputs=[result], name=f"{node.name}/DequantizeLinear",
        )  # fmt: skip
        output.type = ir.TensorType(dtype)
        self.graph.insert_after(node, made)
        for use in uses:
            use.node.replace_input_with(use.idx, result)

    def hoist(self, node: ir.Node) -> bool:
        """Move a QuantizeLinear before an operator that moves data, if nobody else reads it."""
        value = node.inputs[0]
        mover = None if value is None else value.producer()
        if not is_operator(node, "QuantizeLinear") or grid_of(node) is None or mover is None:
            return False
        assert value is not None
        alone = len(list(value.uses())) == 1 and not value.is_graph_output()
        if not alone or not _moves(mover) or len(mover.outputs) != 1:
            return False
        output = node.outputs[0]
        assert output.dtype is not None
        count = len(mover.inputs) if _joins(mover) else 1
        sources = list(mover.inputs[:count])
        # A weight or an input of the model gains nothing by it.
        if not any(v is not None and v.producer() is not None for v in sources):
            return False
        for index, source in enumerate(sources):
            assert source is not None
            whole = self.node(
                "QuantizeLinear", [source, *node.inputs[1:]], source, output.dtype, mover
            )
            mover.replace_input_with(index, whole)
        value.type = ir.TensorType(output.dtype)
        self._replace(output, value)
        self.graph.remove(node, safe=True)
        return True

    def cancel(self, node: ir.Node) -> bool:
        """QuantizeLinear of what was dequantized from the same grid is the tensor itself."""
        value = node.inputs[0]
        maker = None if value is None else value.producer()
        if not is_operator(node, "QuantizeLinear") or not is_operator(maker, "DequantizeLinear"):
            return False
        grid = grid_of(node)
        if maker is None or grid is None or grid_of(maker) != grid:
            return False
        source = maker.inputs[0]
        if source is None or node.outputs[0].is_graph_output():
            return False
        self._replace(node.outputs[0], source)
        self.graph.remove(node, safe=True)
        return True

    def fold(self, node: ir.Node) -> bool:
        """Compute a DequantizeLinear of constants for whoever does not multiply integers."""
        value = node.outputs[0]
        if not is_operator(node, "DequantizeLinear") or not is_constant(value):
            return False
        others = [use for use in value.uses() if not _multiplies_integers(use.node)]
        if not others:
            return False
        array = dequantized_constant(value)
        assert array is not None
        folded = self.constant(array)
        for use in others:
            use.node.replace_input_with(use.idx, folded)
        return True

    def drop_unread(self) -> None:
        """Remove nodes whose results nobody reads."""
        for node in reversed(list(self.graph)):
            if not any(v.is_graph_output() or list(v.uses()) for v in node.outputs):
                self.graph.remove(node, safe=True)

    def _replace(self, old: ir.Value, new: ir.Value) -> None:
        """Let every reader of one value read another; an output of the graph keeps its name."""
        for use in list(old.uses()):
            use.node.replace_input_with(use.idx, new)
        for index, value in enumerate(self.graph.outputs):
            if value is old:
                name = old.name
                old.name = f"{name}/before"
                new.name = name
                self.graph.outputs[index] = new


def _factor(x_scale: Array, w_scale: Array, y_scale: Array) -> Array:
    """Return what a sum of integers is multiplied by, in the shape of `w_scale`.

    Source: ONNX Runtime's `qlinearconv.cc` and `quantize_linear_matmul.cc` (output_scales).
    """
    x, w, y = (scale.astype(np.float32) for scale in (x_scale, w_scale, y_scale))
    return np.asarray(x.reshape(()) * w / y.reshape(()), np.float32)


def _multiplies_integers(node: ir.Node) -> bool:
    return integer_product(node) is not None or wide_product(node) is not None


def _joins(node: ir.Node) -> bool:
    return is_operator(node, "Concat")


def _has_pixels(node: ir.Node) -> bool:
    """Say whether every window has a pixel at any size: of none there is no greatest code."""
    kernel, pads = integers(node, "kernel_shape", ()), integers(node, "pads", ())
    if not any(pads) and text(node, "auto_pad", "NOTSET") in ("NOTSET", "VALID"):
        return True
    is_dense = all(step == 1 for step in integers(node, "dilations", ()))
    return is_dense and all(pad < size for pad, size in zip(pads, (*kernel, *kernel), strict=False))


def _moves(node: ir.Node | None) -> bool:
    """Say whether an operator gives numbers of its inputs as they are."""
    if node is None or not is_operator(node, *_MOVES, "Concat", "Split", "Resize"):
        return False
    if len(node.outputs) > 1 and node.op_type != "Split":
        return False
    if static_shape(node.outputs[0]) is None:
        return False
    if node.op_type == "Resize":
        return text(node, "mode", "nearest") == "nearest"
    if node.op_type == "MaxPool":
        return _has_pixels(node)
    return node.op_type != "Gather" or constant_of(node.inputs[1]) is not None
