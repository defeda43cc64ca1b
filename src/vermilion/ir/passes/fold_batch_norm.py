"""Folding what scales and shifts each channel into the weights before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.attributes import flag, integer, number
from vermilion.ir.opset import constant_of, is_operator, tensor_sizes, where
from vermilion.ir.passes.rewrite import (
    Notes,
    bypass,
    cannot_bypass,
    drop_if_unread,
    new_weight,
)

Float64 = NDArray[np.float64]

_LINEAR = ("Conv", "ConvTranspose", "Gemm")
_EPSILON = 1e-5  # ONNX BatchNormalization-15, default of `epsilon`


@dataclass(frozen=True)
class _Affine:
    """`result = scale · x + shift`. Shapes: both (channels,), or () for one value for all."""

    scale: Float64
    shift: Float64


def fold_batch_norm(model: ir.Model, notes: Notes) -> None:
    """Before → after: `Conv, ConvTranspose or Gemm → BatchNormalization` → the first, reweighted.

    The same for Mul, Div, Add and Sub with one constant a channel, the form that exporters give
    a batch norm whose statistics they have already reduced. Computed in float64, kept in the
    type of the weights.
    """
    for node in model.graph:
        affine = _affine_of(node)
        if affine is None:
            continue
        linear, reason = _foldable_into(node)
        if not reason and linear is not None:
            reason = _fold(model.graph, linear, node, affine)
        if not reason:
            notes.fired += 1
        elif linear is not None or node.op_type == "BatchNormalization":
            notes.refuse(where(node), reason)


def _affine_of(node: ir.Node) -> _Affine | str | None:
    """Read the node as an affine map; text says why it is not one, None that it never is."""
    if is_operator(node, "BatchNormalization"):
        return _batch_norm(node)
    if is_operator(node, "Mul", "Div", "Add", "Sub") and len(node.inputs) == 2:
        return _arithmetic(node)
    return None


def _batch_norm(node: ir.Node) -> _Affine | str:
    if flag(node, "training_mode"):
        return "it is in training mode"
    if any(value.uses() or value.is_graph_output() for value in node.outputs[1:]):
        return "its statistics are used as results"
    if integer(node, "spatial", 1) == 0:
        return "it has statistics for each position (`spatial` is 0)"
    arrays = [_float64(value) for value in node.inputs[1:5]]
    if len(arrays) != 4 or any(array is None for array in arrays):
        return "its statistics are not constants"
    gamma, beta, mean, variance = (array for array in arrays if array is not None)
    if len({array.shape for array in (gamma, beta, mean, variance)}) != 1:
        return "its statistics differ in shape"
    epsilon = number(node, "epsilon", _EPSILON)
    with np.errstate(invalid="ignore", divide="ignore"):
        scale = gamma / np.sqrt(variance + epsilon)
    return _Affine(scale, beta - mean * scale)


def _arithmetic(node: ir.Node) -> _Affine | str | None:
    left, right = node.inputs
    swapped = constant_of(left) is not None
    constant = _float64(left if swapped else right)
    other = right if swapped else left
    if constant is None or other is None:
        return None
    producer = other.producer()
    if not is_operator(producer, *_LINEAR):
        return None
    if swapped and node.op_type == "Div":
        return "it divides by the result of the convolution"
    channel_axis = _channel_axis(other)
    flat = None if channel_axis is None else _per_channel(constant, *channel_axis)
    if flat is None:
        return "its constant is not one value a channel"
    one, zero = np.ones_like(flat), np.zeros_like(flat)
    if node.op_type == "Mul":
        return _Affine(flat, zero)
    if node.op_type == "Add":
        return _Affine(one, flat)
    if node.op_type == "Div":
        with np.errstate(divide="ignore"):
            return _Affine(one / flat, zero)
    return _Affine(-one, flat) if swapped else _Affine(one, -flat)


def _channel_axis(value: ir.Value) -> tuple[int, int] | None:
    """Return the rank of a Conv's or Gemm's result and its channels; None where not known."""
    producer = value.producer()
    weight = constant_of(producer.inputs[1]) if producer is not None else None
    if producer is None or weight is None:
        return None
    channels = _output_channels(producer, weight)
    return (len(weight.shape), channels)


def _per_channel(constant: Float64, rank: int, channels: int) -> Float64 | None:
    """Flatten a constant that is broadcast over all axes but 1; None where it is not that."""
    if constant.size == 1 and constant.ndim <= rank:
        return constant.reshape(())
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if len(shape) != rank or any(size != 1 for axis, size in enumerate(shape) if axis != 1):
        return None
    return constant.reshape(-1) if shape[1] == channels else None


def _foldable_into(node: ir.Node) -> tuple[ir.Node | None, str]:
    """Find the node that can take the map in; else the reason."""
    affine = _affine_of(node)
    source = next((v for v in node.inputs if v is not None and constant_of(v) is None), None)
    linear = source.producer() if source is not None else None
    if isinstance(affine, str):
        return (linear if is_operator(linear, *_LINEAR) else None), affine
    if source is None or linear is None:
        return None, "nothing before it can take it in"
    if not is_operator(linear, *_LINEAR):
        return None, f"it follows {linear.op_type}, not one of {', '.join(_LINEAR)}"
    if source.is_graph_output() or len(source.uses()) > 1:
        return linear, f"the result of {linear.op_type} is used elsewhere, too"
    return linear, cannot_bypass(node, source)


def _fold(graph: ir.Graph, linear: ir.Node, node: ir.Node, affine: _Affine | str | None) -> str:
    """Reweight `linear` and take `node` out; give the reason where that cannot be."""
    assert isinstance(affine, _Affine), "_foldable_into has refused all else"
    weight = constant_of(linear.inputs[1])
    bias_value = linear.inputs[2] if len(linear.inputs) > 2 else None
    bias = _float64(bias_value)
    if weight is None or (bias_value is not None and bias is None):
        return f"the weights of {linear.op_type} are not constants"
    if weight.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE):
        return f"the weights of {linear.op_type} are {weight.dtype.name}"
    channels = _output_channels(linear, weight)
    if affine.scale.shape not in ((), (channels,)):
        return f"it has {affine.scale.size} channels, {linear.op_type} gives {channels}"
    scale = np.broadcast_to(affine.scale, (channels,))
    shift = np.broadcast_to(affine.shift, (channels,))
    new_bias = _new_bias(linear, bias, scale, shift)
    if new_bias is None:
        return "the bias of Gemm is not one value a column"
    dtype = weight.dtype.numpy()
    with np.errstate(over="ignore", invalid="ignore"):
        weights = _scaled_weight(linear, weight, scale).astype(dtype)
        biases = new_bias.astype(dtype)
    if not (np.isfinite(weights).all() and np.isfinite(biases).all()):
        return f"folded, the weights would leave the range of {weight.dtype.name}"
    _set_weights(graph, linear, weights, biases, changed=bool(np.any(scale != 1.0)))
    source, name = linear.outputs[0], node.outputs[0].name
    bypass(node, source)
    # The result is now the batch norm's: a name keeps meaning the same numbers in every stage,
    # which is what lets two graphs be compared layer by layer.
    source.name = name
    return ""


def _set_weights(
    graph: ir.Graph, linear: ir.Node, weights: NDArray[Any], biases: NDArray[Any], *, changed: bool
) -> None:
    old_weight = linear.inputs[1]
    old_bias = linear.inputs[2] if len(linear.inputs) > 2 else None
    name = old_weight.name if old_weight is not None else ""
    if changed:
        linear.replace_input_with(1, new_weight(graph, f"{name}_folded", ir.tensor(weights)))
    bias = new_weight(graph, f"{name}_bias", ir.tensor(biases))
    if len(linear.inputs) < 3:
        linear.resize_inputs(3)
    linear.replace_input_with(2, bias)
    drop_if_unread(graph, old_weight)
    drop_if_unread(graph, old_bias)
    if linear.op_type == "Gemm" and "beta" in linear.attributes:
        linear.attributes["beta"] = ir.AttrFloat32("beta", 1.0)


def _new_bias(
    linear: ir.Node, bias: Float64 | None, scale: Float64, shift: Float64
) -> Float64 | None:
    if bias is None:
        return shift.astype(np.float64)
    if linear.op_type == "Gemm":
        if bias.size not in (1, scale.size) or (bias.size > 1 and bias.shape[-1] != bias.size):
            return None
        beta = number(linear, "beta", 1.0)
        bias = bias.reshape(-1) * beta
    return bias * scale + shift


def _scaled_weight(linear: ir.Node, weight: ir.TensorProtocol, scale: Float64) -> Float64:
    """Multiply each output channel. Layouts: ONNX Conv-11, ConvTranspose-11, Gemm-13."""
    array = weight.numpy().astype(np.float64)
    if linear.op_type == "Conv":
        return array * scale.reshape(-1, *([1] * (array.ndim - 1)))
    if linear.op_type == "Gemm":
        return array * (scale[:, None] if _is_transposed(linear) else scale)
    groups = _groups(linear)
    split = array.reshape(groups, -1, *array.shape[1:])  # (group, in, out in group, kernel…)
    factors = scale.reshape(groups, 1, -1, *([1] * (array.ndim - 2)))
    return (split * factors).reshape(array.shape)


def _output_channels(linear: ir.Node, weight: ir.TensorProtocol) -> int:
    shape = tensor_sizes(weight)
    if linear.op_type == "Conv":
        return shape[0]
    if linear.op_type == "Gemm":
        return shape[0] if _is_transposed(linear) else shape[-1]
    return shape[1] * _groups(linear)


def _is_transposed(gemm: ir.Node) -> bool:
    return flag(gemm, "transB")


def _groups(linear: ir.Node) -> int:
    return integer(linear, "group", 1)


def _float64(value: ir.Value | None) -> Float64 | None:
    tensor = constant_of(value)
    if tensor is None or not tensor.dtype.is_floating_point():
        return None
    return tensor.numpy().astype(np.float64)
