"""A Softmax over a row of awkward length, computed over one that a GPU's lanes divide.

    x → Softmax → y      becomes      x → Pad with -∞ → Softmax → Slice → y

e^(-∞) is 0 and takes no part in the maximum, so that every number stays what it was. For a row of
6625, the characters of an OCR network, IREE 3.13 unrolls the whole row for each lane of gfx1100:
131 KB of code, 6217 spilled registers, 85 s of compiling. For 6656 it is 2.6 KB, none, and 0.6 s.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.ir.opset import opset_of, static_shape
from vermilion.quantize.names import Names

# A row this short is held in registers whatever its length (500: no spills, 1000: 29).
_SHORT = 512
# Rows of 6624 and 6656 compile well, both multiples of a wave of 32; 128 serves waves of 64, too.
_LANES = 128


def pad_softmax(model: ir.Model) -> int:
    """Rewrite `model` in place; give how many Softmax and LogSoftmax were."""
    graph = model.graph
    names = Names(graph)
    count = 0
    for node in list(graph):
        shape = _awkward(node, opset_of(model))
        if shape is not None:
            _rewrite(graph, node, shape, names)
            count += 1
    return count


def _awkward(node: ir.Node, opset: int) -> tuple[int, ...] | None:
    """Return the shape that the node works on if it is to be padded, None for every other node."""
    if node.op_type not in ("Softmax", "LogSoftmax") or node.domain not in ("", "ai.onnx"):
        return None
    value = node.inputs[0]
    shape = static_shape(value)
    if value is None or not shape or opset < 13 or value.dtype not in _TYPES:
        return None
    axis = node.attributes.get("axis")
    last = axis is None or axis.as_int() in (-1, len(shape) - 1)
    return shape if last and shape[-1] > _SHORT and shape[-1] % _LANES else None


_TYPES = {ir.DataType.FLOAT: np.float32, ir.DataType.FLOAT16: np.float16}


def _rewrite(graph: ir.Graph, node: ir.Node, shape: tuple[int, ...], names: Names) -> None:
    value, result = node.inputs[0], node.outputs[0]
    assert value is not None, "it has a shape"
    assert value.dtype is not None, "it has a type"
    rank, length = len(shape), shape[-1]
    wide = -(-length // _LANES) * _LANES
    padded_shape = ir.Shape([*shape[:-1], wide])
    ends = np.asarray([*[0] * (2 * rank - 1), wide - length], np.int64)
    pad = ir.node(
        "Pad",
        [
            value,
            names.constant(f"{value.name}_pads", ends),
            names.constant(f"{value.name}_nothing", np.asarray(-np.inf, _TYPES[value.dtype])),
        ],
        name=names.free(f"{value.name}_Pad"),
    )
    padded = pad.outputs[0]
    padded.name = names.free(f"{value.name}_padded")
    padded.type, padded.shape = value.type, padded_shape
    rows = {"starts": 0, "ends": length, "axes": rank - 1}
    cut = ir.node(
        "Slice",
        [node.outputs[0]]
        + [
            names.constant(f"{result.name}_{k}", np.asarray([v], np.int64)) for k, v in rows.items()
        ],
        name=names.free(f"{result.name}_Slice"),
    )
    narrow = cut.outputs[0]
    narrow.type, narrow.shape = result.type, result.shape
    for use in list(result.uses()):
        if use.node is not cut:
            use.node.replace_input_with(use.idx, narrow)
    for index, output in enumerate(graph.outputs):
        if output is result:
            graph.outputs[index] = narrow
    narrow.name, result.name = result.name, names.free(f"{result.name}_wide")
    result.shape = padded_shape
    node.replace_input_with(0, padded)
    graph.insert_before(node, pad)
    graph.insert_after(node, cut)
