"""A strided 1×1 convolution, written as the product that it is.

    x → Conv 1×1, stride 2 → y      becomes      x → Slice, step 2 → Conv 1×1 → y

The compiler makes scalar loops of the first in a network, and matrix instructions of the second
(IREE 3.13, ResNet-50 in float16: 6 kernels of 39 for gfx942 and for gfx1100). Not behind a
DequantizeLinear: a slice there keeps IREE from compiling the quantized product at all.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from vermilion.ir.opset import static_shape
from vermilion.quantize.names import Names


def slice_strided(model: ir.Model) -> int:
    """Rewrite `model` in place; give how many convolutions were. They share slices."""
    graph = model.graph
    names = Names(graph)
    sliced: dict[tuple[ir.Value, tuple[int, ...]], ir.Value] = {}
    count = 0
    for node in list(graph):
        steps = _steps(node)
        value = node.inputs[0] if node.inputs else None
        shape = None if value is None else static_shape(value)
        if steps is None or value is None or shape is None or _is_quantized(value):
            continue
        key = (value, steps)
        if key not in sliced:
            sliced[key] = _sliced(graph, node, value, shape, steps, names)
        node.replace_input_with(0, sliced[key])
        node.attributes["strides"] = ir.AttrInt64s("strides", [1] * len(steps))
        count += 1
    return count


def _is_quantized(value: ir.Value) -> bool:
    """Say whether a slice would part the convolution from its DequantizeLinear."""
    producer = value.producer()
    return producer is not None and producer.op_type == "DequantizeLinear"


def _steps(node: ir.Node) -> tuple[int, ...] | None:
    """Return the strides of a 1×1 convolution without padding, None for every other node."""
    if node.op_type != "Conv" or node.domain not in ("", "ai.onnx") or node.inputs[1] is None:
        return None
    weight = static_shape(node.inputs[1])
    strides = node.attributes.get("strides")
    if weight is None or strides is None or any(size != 1 for size in weight[2:]):
        return None
    pads, automatic = node.attributes.get("pads"), node.attributes.get("auto_pad")
    if pads is not None and any(pads.as_ints()):
        return None
    if automatic is not None and automatic.as_string() not in ("NOTSET", "VALID"):
        return None
    steps = tuple(strides.as_ints())
    return steps if any(step > 1 for step in steps) else None


def _sliced(
    graph: ir.Graph,
    node: ir.Node,
    value: ir.Value,
    shape: tuple[int, ...],
    steps: tuple[int, ...],
    names: Names,
) -> ir.Value:
    spatial = shape[2:]
    rows = {
        "starts": [0] * len(steps),
        "ends": list(spatial),
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
    sizes = [-(-size // step) for size, step in zip(spatial, steps, strict=True)]
    result.shape = ir.Shape([*shape[:2], *sizes])
    graph.insert_before(node, cut)
    return result
