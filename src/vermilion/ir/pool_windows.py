"""Pools that round their sizes up, written so that onnx infers the sizes that they have.

The standard leaves out a window that would begin in the padding behind the data, and so do ONNX
Runtime and PyTorch; the inference of onnx 1.23 counts it, and exporters write down what it says.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx

_POOLS = ("MaxPool", "AveragePool", "LpPool")

Pools = Mapping[int, onnx.NodeProto]


def pools_to_change(graph: onnx.GraphProto) -> dict[int, onnx.NodeProto]:
    """Return the pools whose size onnx may infer wrongly, by position, each as one it infers right.

    Of a reach under a stride beyond the padding behind the data, ceil(size / stride) windows begin
    in the data: as many as of a window of at least a stride that just reaches the last of them.
    """
    found = {}
    for at, node in enumerate(graph.node):
        if node.op_type in _POOLS and node.domain in ("", "ai.onnx"):
            other = _inferable(node)
            if other is not None:
                found[at] = other
    return found


def with_pools(model: onnx.ModelProto, changed: Pools) -> onnx.ModelProto:
    """Return the model with other pools, a copy where there are any."""
    if not changed:
        return model
    other = onnx.ModelProto()
    other.CopyFrom(model)
    for at, node in changed.items():
        other.graph.node[at].CopyFrom(node)
    return other


def without_pools(inferred: onnx.ModelProto, model: onnx.ModelProto, changed: Pools) -> None:
    """Undo `with_pools` in what was inferred of the changed model."""
    for at in changed:
        inferred.graph.node[at].CopyFrom(model.graph.node[at])


def _inferable(node: onnx.NodeProto) -> onnx.NodeProto | None:
    """Return a pool of the same size of which onnx infers it, None where it does already."""
    named = {attribute.name: attribute for attribute in node.attribute}
    kernel = _numbers(named, "kernel_shape", [])
    rank = len(kernel)
    strides, dilations = (_numbers(named, name, [1] * rank) for name in ("strides", "dilations"))
    pads = _numbers(named, "pads", [0] * 2 * rank)
    mode = named["auto_pad"].s if "auto_pad" in named else b"NOTSET"
    rounds_up = "ceil_mode" in named and named["ceil_mode"].i != 0
    if not rounds_up or mode not in (b"NOTSET", b"VALID") or len(pads) != 2 * rank:
        return None
    if not len(strides) == len(dilations) == rank:
        return None
    pads = pads if mode == b"NOTSET" else [0] * 2 * rank
    changes = False
    for at, stride in enumerate(strides):
        reach = (kernel[at] - 1) * dilations[at] + 1
        if reach < pads[rank + at] + stride:
            changes = True
            if reach < stride:
                kernel[at], dilations[at], reach = stride, 1, stride
            pads[rank + at] = reach - stride
    if not changes:
        return None
    other = onnx.NodeProto()
    other.CopyFrom(node)
    del other.attribute[:]
    written = {"kernel_shape": kernel, "strides": strides, "pads": pads}
    if "dilations" in named:
        written["dilations"] = dilations
    kept = [a for a in node.attribute if a.name not in (*written, "auto_pad")]
    other.attribute.extend(kept)
    other.attribute.extend(
        onnx.helper.make_attribute(name, value) for name, value in written.items()
    )
    return other


def _numbers(named: Mapping[str, onnx.AttributeProto], name: str, default: list[int]) -> list[int]:
    return list(named[name].ints) if name in named else default
