"""A part written so that IREE computes it well: padded Softmax, 1×1 convolutions.

x → Softmax → y      becomes      x → Pad with -∞ → Softmax → Slice → y

e^(-∞) is 0 and takes no part in the maximum, so that every number stays what it was. For a row of
6625, the characters of an OCR network, IREE 3.13 unrolls the whole row for each lane of gfx1100:
131 KB of code, 6217 spilled registers, 85 s of compiling. For 6656 it is 2.6 KB, none, and 0.6 s.

x → Conv 1×1, stride 2 → y      becomes      x → Slice, step 2 → Conv 1×1 → y

The compiler makes scalar loops of the first in a network, and matrix instructions of the second
(IREE 3.13, ResNet-50 in float16: 6 kernels of 39 for gfx942 and for gfx1100). Not behind a
DequantizeLinear: a slice there keeps IREE from compiling the quantized product at all.

x → Conv 1×1 → y      becomes      x → Reshape to rows → Conv 1 → Reshape → y

with an open batch and a known image. Of the first in front of a 3×3 convolution, 7×7 pixels in
float16, IREE 3.13 makes what LLVM cannot select for gfx942 (`Cannot select: f32 = Constant<-1>`).
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.ir.opset import opset_of, static_shape
from vermilion.ir.passes.rewrite import read_instead
from vermilion.quantize.names import Names

# A row this short is held in registers whatever its length (500: no spills, 1000: 29).
_SHORT = 512
# Rows of 6624 and 6656 compile well, both multiples of a wave of 32; 128 serves waves of 64, too.
_LANES = 128
_TO_THE_END = 2**63 - 1  # of a dimension whose size is not known before the run


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
    read_instead(graph, result, narrow, cut)
    narrow.name, result.name = result.name, names.free(f"{result.name}_wide")
    result.shape = padded_shape
    node.replace_input_with(0, padded)
    graph.insert_before(node, pad)
    graph.insert_after(node, cut)


def slice_strided(model: ir.Model) -> int:
    """Rewrite `model` in place; give how many convolutions were. They share slices."""
    graph = model.graph
    names = Names(graph)
    sliced: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}
    count = 0
    for node in list(graph):
        steps = _steps(node)
        value = node.inputs[0] if node.inputs else None
        shape = None if value is None or value.shape is None else value.shape.dims
        if steps is None or value is None or shape is None or _is_quantized(value):
            continue
        key = (value, steps)
        if key not in sliced:
            sliced[key] = _sliced(graph, node, value, shape, steps, names)
        node.replace_input_with(0, sliced[key])
        node.attributes["strides"] = ir.AttrInt64s("strides", [1] * len(steps))
        count += 1
    return count


def flatten_pointwise(model: ir.Model) -> int:
    """Rewrite `model` in place; give how many 1×1 convolutions over an open batch were."""
    graph = model.graph
    names = Names(graph)
    count = 0
    for node in list(graph):
        sizes = _pointwise(node)
        if sizes is not None:
            _flatten(graph, node, sizes, names)
            count += 1
    return count


def _pointwise(node: ir.Node) -> tuple[int, ...] | None:
    """Return the channels and the image of a 1×1 convolution in steps of 1, its batch being open.

    None for every other node.
    """
    weight = node.inputs[1] if _is_unpadded(node) else None
    value = node.inputs[0] if node.inputs else None
    strides = node.attributes.get("strides")
    if weight is None or weight.const_value is None or value is None:
        return None
    if value.shape is None or value.dtype is None or _is_quantized(value):
        return None
    if strides is not None and any(step != 1 for step in strides.as_ints()):
        return None
    batch, *sizes = value.shape.dims
    if isinstance(batch, int) or len(sizes) < 3:
        return None
    known = tuple(size for size in sizes if isinstance(size, int))
    return known if len(known) == len(sizes) else None


def _flatten(graph: ir.Graph, node: ir.Node, sizes: tuple[int, ...], names: Names) -> None:
    value, weight, result = node.inputs[0], node.inputs[1], node.outputs[0]
    assert value is not None, "it has sizes"
    assert weight is not None, "it has a weight"
    assert weight.const_value is not None, "the weight is constant"
    channels, *image = sizes
    filters = weight.const_value.numpy()
    pixels = int(np.prod(image))

    def reshaped(given: ir.Value, to: list[int]) -> ir.Node:
        lengths = names.constant(f"{given.name}_sizes", np.asarray([0, *to], np.int64))
        made = ir.node("Reshape", [given, lengths], name=names.free(f"{given.name}_Reshape"))
        made.outputs[0].type = given.type
        assert given.shape is not None, "its sizes are known"
        made.outputs[0].shape = ir.Shape([given.shape[0], *to])
        return made

    rows = reshaped(value, [channels, pixels])
    rows.outputs[0].name = names.free(f"{value.name}_rows")
    node.replace_input_with(0, rows.outputs[0])
    flat = names.constant(f"{weight.name}_rows", filters.reshape(*filters.shape[:2], 1))
    node.replace_input_with(1, flat)
    for name in ("kernel_shape", "strides", "pads", "dilations"):
        node.attributes.pop(name, None)
    image_again = reshaped(result, [filters.shape[0], *image])
    narrow = image_again.outputs[0]
    read_instead(graph, result, narrow, image_again)
    narrow.name, result.name = result.name, names.free(f"{result.name}_rows")
    assert value.shape is not None, "its sizes are known"
    result.shape = ir.Shape([value.shape[0], filters.shape[0], pixels])
    graph.insert_before(node, rows)
    graph.insert_after(node, image_again)
    if weight.is_initializer() and not weight.uses():
        del graph.initializers[str(weight.name)]


def _is_quantized(value: ir.Value) -> bool:
    """Say whether a slice would part the convolution from its DequantizeLinear."""
    producer = value.producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


def _is_unpadded(node: ir.Node) -> bool:
    """Say whether a node is a 1×1 convolution without padding."""
    if node.op_type != "Conv" or node.domain not in ("", "ai.onnx") or node.inputs[1] is None:
        return False
    weight = static_shape(node.inputs[1])
    if weight is None or any(size != 1 for size in weight[2:]):
        return False
    pads, automatic = node.attributes.get("pads"), node.attributes.get("auto_pad")
    if pads is not None and any(pads.as_ints()):
        return False
    return automatic is None or automatic.as_string() in ("NOTSET", "VALID")


def _steps(node: ir.Node) -> tuple[int, ...] | None:
    """Return the strides of a 1×1 convolution without padding, None for every other node."""
    strides = node.attributes.get("strides")
    if strides is None or not _is_unpadded(node):
        return None
    steps = tuple(strides.as_ints())
    return steps if any(step > 1 for step in steps) else None


def _sliced(
    graph: ir.Graph,
    node: ir.Node,
    value: ir.Value,
    shape: tuple[int | ir.SymbolicDim, ...],
    steps: tuple[int, ...],
    names: Names,
) -> ir.Value:
    spatial = [size if isinstance(size, int) else None for size in shape[2:]]
    rows = {
        "starts": [0] * len(steps),
        "ends": [_TO_THE_END if size is None else size for size in spatial],
        "axes": list(range(2, len(shape))),
        "steps": list(steps),
    }
    constants = [
        names.constant(f"{value.name}_{name}", np.asarray(row, np.int64))
        for name, row in rows.items()
    ]
    cut = ir.node("Slice", [value, *constants], name=names.free(f"{value.name}_Slice"))
    result = cut.outputs[0]
    result.name = names.free(f"{value.name}_sliced")
    result.type = value.type
    sizes = [
        None if size is None else -(-size // step)
        for size, step in zip(spatial, steps, strict=True)
    ]
    result.shape = ir.Shape([*shape[:2], *sizes])
    graph.insert_before(node, cut)
    return result
