"""Rules of operators that a graph must keep: those of onnx's inference, and sizes that must fit.

Amounts that are too few, axes out of range, channels that do not fit: onnx's inference knows most
of these rules, `check_lengths` those that it leaves to whoever computes. What still fails in ONNX
Runtime is given the node's own name.

Source of every rule: the operator's page at https://onnx.ai/onnx/operators/. Only what is known
is held against them: fixed sizes and constants.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import onnx_ir as ir

from vermilion.errors import ModelError, UnsupportedError
from vermilion.ir.attributes import EXPORT, integer, integers, text
from vermilion.ir.inference import INFERENCE_ERRORS
from vermilion.ir.onnx_shapes import infer_by_onnx
from vermilion.ir.opset import constant_of, static_shape, where
from vermilion.ir.passes.infer_shapes import without_weights

# How `onnx/shape_inference/implementation.cc` words a node that it refuses, and how a failed run
# names a node here (`execute`).
_REFUSED = re.compile(
    r"\(op_type:\w+, node name: (?P<number>\d+)\): \[\w+InferenceError\] (?P<words>[^\n]*)"
)
_FAILED = re.compile(r"^node `(?P<name>.*)`, (?P<operator>\w+)$")
# Of what a file says of a value beside what is inferred, and of an operator's definition as a
# function, whose attributes onnx 1.23 does not hand down: neither is a rule that the node breaks.
_OTHER = re.compile(r"existing|^Inference error")


def check_rules(model: ir.Model) -> None:
    """Let onnx's inference look at every node of a model that has no bodies, types inferred.

    A branch that is never taken may break every rule: exporters guard a Squeeze with an If. What
    it says of nodes whose inputs it does not know, behind operators of other domains, is no rule.

    Raises: ModelError for the first node that breaks a rule of its operator.
    """
    if any(graph is not model.graph for graph in model.graphs()):
        return
    nodes = list(model.graph)
    try:
        with without_weights(model) as proto:
            for number, node in enumerate(proto.graph.node):
                node.name = str(number)  # a file may leave names empty, or give one twice
            infer_by_onnx(proto, strict=True)
    except INFERENCE_ERRORS as error:
        for found in _REFUSED.finditer(str(error)):
            node = nodes[int(found["number"])]
            if not _OTHER.search(found["words"]) and _is_known(node):
                raise ModelError(found["words"].rstrip(), where=where(node), hint=EXPORT) from error


def _is_known(node: ir.Node) -> bool:
    values = [value for value in node.inputs if value is not None and value.name]
    return all(value.type is not None and value.shape is not None for value in values)


def with_node(error: UnsupportedError, model: ir.Model) -> UnsupportedError:
    """Return the error of a failed run with the node's name in `model`."""
    failed = _FAILED.match(error.where)
    if failed is None:
        return error
    operator = failed["operator"]
    place = _place(_nodes(model, failed["name"], operator), operator)
    return UnsupportedError(error.message, where=place, hint=error.hint)


def _nodes(model: ir.Model, name: str, operator: str) -> list[ir.Node]:
    """Return the nodes that may be meant: ONNX Runtime renames what it rewrites."""
    nodes = [node for node in model.graph if node.op_type == operator]
    named = [node for node in nodes if name and node.name == name]
    return named or [node for node in nodes if not node.name] or nodes


def _place(nodes: list[ir.Node], operator: str) -> str:
    """Name one node, by its first output where it has no name of its own."""
    if len(nodes) == 1:
        return where(nodes[0])
    if nodes:
        return f"one of {len(nodes)} nodes {operator}, the first of which is {where(nodes[0])}"
    return f"a node {operator}"


Broken = Iterator[str]
_AUTO_PADS = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")


def check_lengths(model: ir.Model) -> None:
    """Go through the nodes of the main graph, whose shapes are inferred.

    Raises: ModelError for the first that breaks a rule of its operator.
    """
    for node in model.graph:
        rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        reason = None if rule is None else next(rule(node), None)
        if reason is not None:
            raise ModelError(reason, where=where(node), hint=EXPORT)


def _shape(node: ir.Node, index: int) -> tuple[int, ...] | None:
    value = node.inputs[index] if index < len(node.inputs) else None
    return static_shape(value) if value is not None and value.name else None


def _array(node: ir.Node, index: int) -> np.ndarray | None:
    constant = constant_of(node.inputs[index]) if index < len(node.inputs) else None
    return None if constant is None else constant.numpy()


def _window(node: ir.Node, data: tuple[int, ...], kernel: tuple[int, ...]) -> Broken:
    """Hold a window against the image that it moves over."""
    rank = len(data) - 2
    automatic = text(node, "auto_pad", "NOTSET")
    pads = integers(node, "pads", [0] * 2 * rank)
    dilations = integers(node, "dilations", [1] * rank)
    steps = integers(node, "strides", [1] * rank)
    if automatic not in _AUTO_PADS:
        yield f"its `auto_pad` is `{automatic}`, and has to be one of {', '.join(_AUTO_PADS)}"
    if automatic != "NOTSET" and any(pads):
        yield f"it has `pads` and `auto_pad` {automatic}, which exclude each other"
    if automatic.startswith("SAME") or len(pads) != 2 * rank:
        return
    if len(dilations) != rank or len(steps) != rank:
        return
    for axis in range(rank):
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        size = data[2 + axis] + pads[axis] + pads[rank + axis]
        # A window that is rounded up to may begin where it does not end.
        missing = reach - size
        rounded_up = steps[axis] - 1 if integer(node, "ceil_mode", 0) else 0
        if missing > rounded_up:
            yield f"its window reaches over {reach} of {size} along axis {2 + axis}"


def _conv(node: ir.Node) -> Broken:
    data, weights, bias = (_shape(node, at) for at in range(3))
    if data is None or weights is None or len(data) != len(weights) or len(data) < 3:
        return
    group = integer(node, "group", 1)
    kernel = integers(node, "kernel_shape", weights[2:])
    if kernel != weights[2:]:
        yield f"its `kernel_shape` is {list(kernel)}, that of its weights {list(weights[2:])}"
    if data[1] != weights[1] * group:
        yield f"its data have {data[1]} channels, its weights are for {weights[1]} × {group} groups"
    if weights[0] % group:
        yield f"its {weights[0]} channels do not divide into {group} groups"
    if bias is not None and bias != weights[:1]:
        yield f"its bias is {list(bias)}, and has to be {list(weights[:1])}"
    yield from _window(node, data, kernel)


def _conv_transpose(node: ir.Node) -> Broken:
    data, weights, bias = (_shape(node, at) for at in range(3))
    if data is None or weights is None or len(data) != len(weights) or len(data) < 3:
        return
    group, rank = integer(node, "group", 1), len(data) - 2
    if data[1] != weights[0]:
        yield f"its data have {data[1]} channels, its weights are for {weights[0]}"
    if data[1] % group:
        yield f"its {data[1]} channels do not divide into {group} groups"
    if bias is not None and bias != (weights[1] * group,):
        yield f"its bias is {list(bias)}, and has to be {[weights[1] * group]}"
    more = integers(node, "output_padding", [0] * rank)
    strides, dilations = (integers(node, name, [1] * rank) for name in ("strides", "dilations"))
    if len(more) == len(strides) == len(dilations):
        for extra, stride, dilation in zip(more, strides, dilations, strict=True):
            if extra >= max(stride, dilation) and extra:
                yield f"its `output_padding` of {extra} is not under its stride or dilation"


def _pool(node: ir.Node) -> Broken:
    data, kernel = _shape(node, 0), integers(node, "kernel_shape", [])
    if data is not None and len(kernel) == len(data) - 2 > 0:
        yield from _window(node, data, kernel)


def _channels(count: int) -> Callable[[ir.Node], Broken]:
    """Make the rule of `count` inputs behind the first: one number for each channel."""

    def rule(node: ir.Node) -> Broken:
        data = _shape(node, 0)
        for at in range(1, 1 + count):
            has = _shape(node, at)
            if data is not None and len(data) > 1 and has is not None and has != (data[1],):
                yield f"its input {at + 1} is {list(has)}, and has to be {[data[1]]}"

    return rule


def _blocks(node: ir.Node) -> Broken:
    data, block = _shape(node, 0), integer(node, "blocksize", 1)
    if data is None or len(data) != 4 or block < 1:
        return
    if node.op_type == "DepthToSpace" and data[1] % (block * block):
        yield f"its {data[1]} channels do not divide into blocks of {block} × {block}"
    if node.op_type == "SpaceToDepth" and (data[2] % block or data[3] % block):
        yield f"its {data[2]} × {data[3]} pixels do not divide into blocks of {block} × {block}"


def _one_axis(index: int) -> Callable[[ir.Node], Broken]:
    """Make the rule of an input that is a list."""

    def rule(node: ir.Node) -> Broken:
        shape = _shape(node, index)
        if shape is not None and len(shape) != 1:
            yield f"its input {index + 1} has {len(shape)} axes, and has to have one"

    return rule


def _reshape(node: ir.Node) -> Broken:
    """Hold the sizes that are asked for against how many elements there are."""
    yield from _one_axis(1)(node)
    data, wanted = _shape(node, 0), _array(node, 1)
    if data is None or wanted is None:
        return
    sizes = [int(size) for size in wanted.reshape(-1)]
    if not integer(node, "allowzero", 0):
        sizes = [data[at] if n == 0 and at < len(data) else n for at, n in enumerate(sizes)]
    known, count = math.prod(n for n in sizes if n != -1), math.prod(data)
    fits = count % known == 0 if known and -1 in sizes else count == known
    if not fits:
        yield f"it makes {sizes} of {list(data)}, which has {count} elements"


def _transpose(node: ir.Node) -> Broken:
    data, order = _shape(node, 0), integers(node, "perm", None)
    if data is not None and order is not None and sorted(order) != list(range(len(data))):
        yield f"its `perm` is {list(order)}, and its data have {len(data)} axes"


def _scales(node: ir.Node) -> Broken:
    scales = _array(node, 1 if node.op_type == "Upsample" else 2)
    if scales is not None and scales.dtype.kind == "f":
        for scale in scales.reshape(-1):
            if not (np.isfinite(scale) and scale > 0):
                yield f"its scale is {scale:g}, and has to be above 0"


def _quantization(node: ir.Node) -> Broken:
    data, scale, zero = (_shape(node, at) for at in range(3))
    # A list of one entry is read as a number, as ONNX Runtime does.
    if scale is None:
        return
    if zero is not None and zero != scale and max(np.prod(zero), np.prod(scale)) > 1:
        yield f"its scale is {list(scale)}, its zero point {list(zero)}"
    if data is not None and len(scale) == 1 and scale[0] > 1 and data:
        size = data[integer(node, "axis", 1) % len(data)]
        if size != scale[0]:
            yield f"it has {scale[0]} scales for {size} entries"


def _pad(node: ir.Node) -> Broken:
    data, given = static_shape(node.inputs[0]), _array(node, 1)
    pads = integers(node, "pads", []) if given is None else [int(n) for n in given.reshape(-1)]
    if data is None or len(pads) != 2 * len(data) or len(node.inputs) > 3:
        return  # of some axes, the amounts are those of inference
    for axis, size in enumerate(data):
        left = size + pads[axis] + pads[len(data) + axis]
        if left < 0:
            yield f"its pads leave {left} of {size} along axis {axis}"


_RULES: Mapping[str, Callable[[ir.Node], Broken]] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _pool, "AveragePool": _pool, "LpPool": _pool,
    "BatchNormalization": _channels(4), "InstanceNormalization": _channels(2),
    "DepthToSpace": _blocks, "SpaceToDepth": _blocks,
    "Reshape": _reshape, "Expand": _one_axis(1), "Tile": _one_axis(1),
    "Transpose": _transpose, "Pad": _pad,
    "Resize": _scales, "Upsample": _scales,
    "QuantizeLinear": _quantization, "DequantizeLinear": _quantization,
}  # fmt: skip
