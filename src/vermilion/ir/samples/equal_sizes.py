"""Which dimensions of its operands a node needs to be equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx_ir as ir

from vermilion.ir.samples.facts import attribute_or

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
