"""Constants of a plan as integers: weights rounded, biases corrected and rounded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.quantize.algorithms.compensate import round_into
from vermilion.quantize.algorithms.fill import Factors
from vermilion.quantize.algorithms.moments import Moments
from vermilion.quantize.formats import Parameters
from vermilion.quantize.one_thread import one_thread
from vermilion.quantize.operators import bias_input
from vermilion.quantize.plan import Plan
from vermilion.quantize.scales import bias_scales, channel_axis, room_for_bias, weight_parameters

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Constants:
    """Integers of every constant, and the parameters that they were made with."""

    integers: Mapping[str, NDArray[np.generic]]
    parameters: Mapping[str, Parameters]


@one_thread()
def round_constants(
    plan: Plan,
    chosen: Mapping[str, Parameters],
    moments: Mapping[str, Moments],
    *,
    per_channel: bool = False,
    correct_bias: bool = True,
    factors: Factors | None = None,
) -> Constants:
    """Round every constant of the plan.

    `chosen` holds the parameters of activations, and with power-of-two scales those of constants
    too; the others are chosen here. A layer with `moments` is rounded with compensation, all else
    to nearest. `factors` are what tensors have grown by since their moments were seen.
    """
    factors = factors or Factors()
    parameters = dict(chosen)
    integers: dict[str, NDArray[np.generic]] = {}
    shifts: dict[str, Float32] = {}
    for value in plan.weights:
        name = str(value.name)
        node, bias = _reader(plan, value)
        if name not in parameters:
            parameters[name] = _covering(plan, value, per_channel)
        if bias is not None and bias.const_value is not None and not plan.scheme.power_of_two:
            read = parameters[str(node.inputs[0].name)] if node.inputs[0] is not None else None
            if read is not None:
                flat = bias.const_value.numpy().reshape(-1)
                parameters[name] = room_for_bias(flat, read, parameters[name])
        seen = moments.get(name)
        if seen is None or not seen.count:
            integers[name] = parameters[name].to_integers(_array(value))
            continue
        integers[name], shift = _compensated(
            value, bias if correct_bias else None, seen, parameters, factors.of(seen.layer.source)
        )
        if shift is not None and bias is not None:
            shifts[str(bias.name)] = shift
    for value in plan.biases:
        name = str(value.name)
        array = _array(value)
        if name in shifts:
            array = (array + shifts[name].reshape(array.shape)).astype(np.float32)
        if name not in parameters:
            array, parameters[name] = _int32(plan, value, array, parameters)
        integers[name] = parameters[name].to_integers(array)
    return Constants(integers, parameters)


def _array(value: ir.Value) -> Float32:
    assert value.const_value is not None, "the plan lists a constant without a value"
    array: Float32 = value.const_value.numpy()
    return array


def _reader(plan: Plan, value: ir.Value) -> tuple[ir.Node, ir.Value | None]:
    """Return the first quantized node that reads a weight, and that node's own bias."""
    node = next(u.node for u in value.uses() if plan.rounds(u.node, u.idx))
    bias = bias_input(node, plan.operators[node.op_type])
    return node, bias if bias in plan.biases else None


def _covering(plan: Plan, value: ir.Value, per_channel: bool) -> Parameters:
    axes = {channel_axis(use.node) if use.idx == 1 else None for use in value.uses()}
    axis = axes.pop() if per_channel and len(axes) == 1 else None
    return weight_parameters(value, plan.scheme.weight, axis)


def _compensated(
    value: ir.Value,
    bias: ir.Value | None,
    seen: Moments,
    parameters: Mapping[str, Parameters],
    factor: float,
) -> tuple[NDArray[np.generic], Float32 | None]:
    """Return the integers of a layer's weight, and what its `bias` takes over."""
    layer, given = seen.layer, parameters[str(value.name)]
    centred = bias is not None and bias.const_value is not None and len(bias.uses()) == 1
    array = _array(value)
    weights = np.asarray(layer.matrices(array), np.float32)
    scale = layer.by_output(given.scale, array.shape)
    gram = seen.shown_gram(centred=centred)
    gram *= np.float32(factor * factor)
    read = parameters.get(layer.source)
    if read is not None:
        # What is read is rounded as well: errors of one step, spread evenly.
        diagonal = np.arange(layer.width)
        gram[:, diagonal, diagonal] += np.float32(float(read.scale) ** 2 / 12.0)
    limits = (given.number.low, given.number.high)
    mean = (factor * seen.mean()).astype(np.float32)
    whole = np.dtype(given.number.numpy_type)
    direct = whole in (np.int8, np.uint8)
    integers = np.empty(array.shape, whole if direct else np.float32)
    shift = round_into(layer.matrices(integers), weights, gram, scale, limits, mean=mean)
    integers = integers.astype(whole, copy=False)
    if not centred:
        return integers, None
    if layer.blocks > 1:
        shift = shift.sum(axis=0)
    return integers, shift.reshape(-1)


def _int32(
    plan: Plan, value: ir.Value, array: Float32, parameters: Mapping[str, Parameters]
) -> tuple[Float32, Parameters]:
    """Return a bias and its parameters at the product of the scales of read and weight."""
    node = next(u.node for u in value.uses() if plan.rounds(u.node, u.idx))
    read, weight = (parameters[str(v.name)] for v in node.inputs[:2] if v is not None)
    scale = bias_scales(read, weight)
    axis = None if scale.ndim == 0 else max(0, array.ndim - 1)
    if axis is not None and (array.ndim == 0 or array.shape[-1] != len(scale)):
        array = np.broadcast_to(array, (*array.shape[:-1], len(scale))).copy()
    return array, Parameters(plan.scheme.bias, scale, 0, axis)
