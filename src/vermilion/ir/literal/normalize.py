"""Normalizations, each in two passes: the mean first, then what lies around it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.ir.literal.call import Call, Table, Typed, computes, over_axis, versions
from vermilion.ir.literal.reduce import mean

Array = NDArray[Any]

# Source: ONNX's definitions; the nearest float32 is what a file holds.
_EPSILON = float(np.float32(1e-5))
# Source: ONNX MeanVarianceNormalization-13, its function body.
_MVN_EPSILON = float(np.float32(1e-9))


def centred(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Return the mean over `axes`, and the elements less it."""
    middle = mean(x, axes)
    return middle, x - middle


def _normal(x: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    _, rest = centred(x, axes)
    return np.asarray(rest / np.sqrt(mean(np.square(rest), axes) + epsilon))


def _batch(call: Call) -> Any:
    x = call[0]
    trains = call.integer("training_mode", 0) if call.version >= 14 else 0
    if call.version < 7 and not call.integer("is_test", 0):
        raise call.unsupported("BatchNormalization that may be in training mode")
    if call.version < 9 and not call.integer("spatial", 1):
        return _batch_of_elements(call)
    scale, shift, middle, variance = (over_axis(call[at], 1, max(2, x.ndim)) for at in range(1, 5))
    if x.ndim == 1:
        scale, shift, middle, variance = (
            part.reshape(-1) for part in (scale, shift, middle, variance)
        )
    epsilon = call.number("epsilon", _EPSILON)
    if not trains:
        return (x - middle) / np.sqrt(variance + epsilon) * scale + shift
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    own_mean, rest = centred(x, axes)
    own_variance = mean(np.square(rest), axes)
    momentum = call.number("momentum", float(np.float32(0.9)))
    y = rest / np.sqrt(own_variance + epsilon) * scale + shift
    running = (
        (momentum * old + (1.0 - momentum) * new).reshape(-1)
        for old, new in ((middle, own_mean), (variance, own_variance))
    )
    return (y, *(Typed(value, call.type(3)) for value in running))


def _batch_of_elements(call: Call) -> Array:
    """Return each element of an image normalized by its own numbers."""
    x = call[0]
    scale, shift, middle, variance = (call[at].reshape(x.shape[1:]) for at in range(1, 5))
    return (x - middle) / np.sqrt(variance + call.number("epsilon", _EPSILON)) * scale + shift


def _instance(call: Call) -> Array:
    x = call[0]
    scale, shift = over_axis(call[1], 1, x.ndim), over_axis(call[2], 1, x.ndim)
    axes = tuple(range(2, x.ndim))
    return _normal(x, axes, call.number("epsilon", _EPSILON)) * scale + shift


def _grouped(call: Call) -> tuple[Array, int]:
    x, groups = call[0], call.integer("num_groups")
    if groups < 1 or x.shape[1] % groups:
        raise call.error(f"{x.shape[1]} channels are not {groups} groups")
    rows = x.reshape(x.shape[0], groups, -1)
    return _normal(rows, (2,), call.number("epsilon", _EPSILON)), groups


def _group_by_groups(call: Call) -> Array:
    rows, groups = _grouped(call)
    scale, shift = call[1].reshape(1, groups, 1), call[2].reshape(1, groups, 1)
    return (rows * scale + shift).reshape(call[0].shape)


def _group(call: Call) -> Array:
    x = call[0]
    rows, _ = _grouped(call)
    return rows.reshape(x.shape) * over_axis(call[1], 1, x.ndim) + over_axis(call[2], 1, x.ndim)


def _behind(call: Call) -> tuple[int, ...]:
    rank = call[0].ndim
    return tuple(range(call.axis(call.integer("axis", -1), rank), rank))


def _layer(call: Call) -> tuple[Any, ...]:
    axes = _behind(call)
    middle, rest = centred(call[0], axes)
    variance = mean(np.square(rest), axes)
    inverse = 1.0 / np.sqrt(variance + call.number("epsilon", _EPSILON))
    y = rest * inverse * call[1]
    if call.has(2):
        y = y + call[2]
    stash = ir.DataType(call.integer("stash_type", 1))
    return y, Typed(middle, stash), Typed(inverse, stash)


def root_mean_square(call: Call, x: Array, scale: Array, epsilon: float) -> tuple[Any, ...]:
    """Return RMS normalization from the node's axis on, and one over the root of the squares."""
    axes = _behind(call)
    inverse = 1.0 / np.sqrt(mean(np.square(x), axes) + epsilon)
    return x * inverse * scale, Typed(inverse, ir.DataType(call.integer("stash_type", 1)))


def _rms(call: Call) -> Any:
    return root_mean_square(call, call[0], call[1], call.number("epsilon", _EPSILON))[0]


def _simplified_layer(call: Call) -> Any:
    return root_mean_square(call, call[0], call[1], call.number("epsilon", _EPSILON))


def _lp(call: Call) -> Array:
    x, p = call[0], call.integer("p", 2)
    axis = call.axis(call.integer("axis", -1), x.ndim)
    if p not in (1, 2):
        raise call.error(f"its order {p} is neither 1 nor 2")
    size = np.abs(x) if p == 1 else np.square(x)
    norm = np.sum(size, axis=axis, keepdims=True)
    norm = norm if p == 1 else np.sqrt(norm)
    # A vector of zeros stays one.
    return np.where(norm == 0, 0.0, x / norm)


def _mean_variance(call: Call) -> Array:
    x = call[0]
    axes = tuple(call.axis(axis, x.ndim) for axis in call.integers("axes") or [0, 2, 3])
    _, rest = centred(x, axes)
    deviation = np.sqrt(mean(np.square(rest), axes))
    return np.asarray(rest / (deviation + _MVN_EPSILON))


def _local_response(call: Call) -> Array:
    x, size = call[0], call.integer("size")
    alpha, beta = call.number("alpha", float(np.float32(1e-4))), call.number("beta", 0.75)
    channels = x.shape[1]
    squares = np.square(x)
    total = np.zeros_like(x)
    before = (size - 1) // 2
    for step in range(max(-before, 1 - channels), min(size - before, channels)):
        start, stop = max(0, -step), min(channels, channels - step)
        total[:, start:stop] += squares[:, start + step : stop + step]
    return x / np.power(call.number("bias", 1.0) + alpha / size * total, beta)


OPERATORS: Table = {
    "BatchNormalization": computes(_batch),
    "InstanceNormalization": computes(_instance),
    "GroupNormalization": versions((18, _group_by_groups), (21, _group)),
    "LayerNormalization": computes(_layer),
    "RMSNormalization": computes(_rms),
    "SimplifiedLayerNormalization": computes(_simplified_layer),
    "LpNormalization": computes(_lp),
    "MeanVarianceNormalization": computes(_mean_variance),
    "LRN": computes(_local_response),
}
