"""More single nodes drawn at random: elementwise, casts, whole numbers, ONNX Runtime's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.random import Generator
from numpy.typing import NDArray

from drawn_nodes import Drawn, _floats, _pick

Array = NDArray[Any]

UNARY = [
    "Abs", "Neg", "Sign", "Sqrt", "Reciprocal", "Exp", "Log", "Erf", "Floor", "Ceil", "Round",
    "Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh",
    "Relu", "LeakyRelu", "ThresholdedRelu", "Elu", "Celu", "Selu", "Sigmoid", "HardSigmoid",
    "HardSwish", "Softplus", "Softsign", "Shrink", "Mish", "Gelu", "IsNaN", "IsInf",
]  # fmt: skip

# Numbers at which functions are often wrong.
EDGES = np.array(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, -1e-40, 0.5, -0.5, 1.5, 2.5, -2.5, 88, -104, 1e38],
    np.float32,
)


def elementwise(rng: Generator) -> Drawn:
    name = _pick(rng, *UNARY)
    x = _floats(rng, 3, 5) * _pick(rng, 1, 1, 10)
    if name not in ("Softsign", "Mish", "Gelu", "HardSwish", "Celu", "Acos", "Asin", "Shrink"):
        x = np.where(rng.random(x.shape) < 0.3, rng.choice(EDGES, x.shape), x)
    if name in ("Asin", "Acos", "Atanh"):
        x = np.clip(x, -1, 1)
    attributes: dict[str, Any] = {}
    if name in ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu") and rng.random() < 0.5:
        attributes["alpha"] = 0.7
    if name == "Gelu":
        attributes["approximate"] = _pick(rng, "none", "tanh")
    if name == "IsInf":
        attributes = {"detect_negative": int(rng.integers(0, 2))}
    return Drawn(name, [x.astype(np.float32)], attributes, opset=22)


def whole_numbers(rng: Generator) -> Drawn:
    """Draw integers with negatives and broadcasting; no result is out of range."""
    kind = _pick(rng, np.int32, np.int64, np.int8, np.uint8)
    low = 0 if kind == np.uint8 else -9
    a = rng.integers(low, 10, (2, 3, 4)).astype(kind)
    b = rng.integers(low, 10, _pick(rng, (2, 3, 4), (4,), (3, 1), ())).astype(kind)
    b = np.where(b == 0, 3, b).astype(kind)
    names = ["Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Equal", "Less", "GreaterOrEqual"]
    name = _pick(rng, *names, "BitwiseAnd", "BitwiseXor", "ReduceSum", "ReduceMax", "ReduceMean")
    if name.startswith("Reduce"):
        return Drawn(name, [a, np.array([1], np.int64)], {"keepdims": 0}, opset=18)
    attributes = {"fmod": int(rng.integers(0, 2))} if name == "Mod" else {}
    return Drawn(name, [a, b], attributes, opset=18)


def power(rng: Generator) -> Drawn:
    exponent = _pick(rng, 0.0, 1.0, 2.0, 3.0, -1.0, -2.0, 0.5, 1.7)
    x = np.where(rng.random((3, 4)) < 0.2, rng.choice(EDGES[:5], (3, 4)), _floats(rng, 3, 4))
    kind = _pick(rng, np.float32, np.int32, np.int64)
    if kind is not np.float32:
        exponent = np.trunc(exponent)
    return Drawn("Pow", [x.astype(np.float32), np.array(exponent, kind)], opset=15)


CASTS = ("float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64", "bool")


def cast(rng: Generator) -> Drawn:
    """Draw numbers that the wanted type can hold, ties and subnormals of float16 among them."""
    given, wanted = np.dtype(_pick(rng, *CASTS)), np.dtype(_pick(rng, *CASTS))
    x: Array = rng.integers(-4 if given.kind != "u" else 0, 120, 12).astype(np.float64)
    if given.kind == "f":
        x = x + rng.choice([0, 0.5, 0.3, 2.0**-11, 2.0**-12], 12)
        if wanted.kind == "f":
            x = x * rng.choice([1, 2.0**-20, 1e9], 12)
    if wanted.kind in "u":
        x = np.abs(x)
    to = onnx.helper.np_dtype_to_tensor_dtype(wanted)
    with np.errstate(over="ignore"):
        x = x.astype(given)
    return Drawn("Cast", [x], {"to": to}, opset=19)


def old(rng: Generator) -> Drawn:
    """Draw operators in the form of older versions."""
    x = _floats(rng, 2, 3, 4, 5)
    name = _pick(rng, "Clip", "Upsample", "Resize", "Slice", "Pad", "Squeeze", "Dropout", "Split")
    if name == "Clip":
        return Drawn(name, [x], {"min": -0.3, "max": 0.5}, opset=7)
    if name in ("Upsample", "Resize"):
        scales = np.array([1, 1, *rng.integers(1, 4, 2)], np.float32)
        if name == "Resize":
            scales[2:] = rng.choice([0.5, 0.75, 1, 2, 2.5], 2)
        attributes = {"mode": _pick(rng, "nearest", "linear")}
        return Drawn(name, [x, scales], attributes, opset=9 if name == "Upsample" else 10)
    if name == "Slice":
        return Drawn(name, [x], {"starts": [1, -3], "ends": [9, -1], "axes": [1, 3]}, opset=9)
    if name == "Pad":
        mode = _pick(rng, "constant", "reflect", "edge")
        return Drawn(name, [x], {"pads": [0, 0, 1, 2, 0, 1, 0, 3], "mode": mode}, opset=7)
    if name == "Squeeze":
        return Drawn(name, [x[:, :1]], {"axes": [1]}, opset=11)
    if name == "Dropout":
        # Before version 12 the mask of one that is not in training is not filled.
        opset = _pick(rng, 7, 10, 12)
        return Drawn(name, [x], {}, opset=opset, outputs=_pick(rng, 1, 2) if opset == 12 else 1)
    return Drawn(name, [x], {"axis": -1, "split": [2, 3]}, opset=11, outputs=2)


def resize_more(rng: Generator) -> Drawn:
    h, w = (int(size) for size in rng.integers(2, 9, 2))
    x = _floats(rng, 1, 2, h, w)
    way = _pick(rng, "crop", "symmetric", "axes", "antialias", "policy", "tf")
    mode = _pick(rng, "nearest", "linear")
    sizes = np.array([1, 2, *rng.integers(1, 14, 2)], np.int64)
    attributes: dict[str, Any] = {"mode": mode}
    if way == "crop":
        # ONNX Runtime does not crop along an axis that keeps its size.
        sizes[2:] += sizes[2:] == (h, w)
        region = np.array([0, 0, 0.1, 0.2, 1, 1, 0.8, 1.3], np.float32)
        attributes |= {"coordinate_transformation_mode": "tf_crop_and_resize"}
        attributes |= {"mode": "linear", "extrapolation_value": 5.0}
        return Drawn("Resize", [x, region, None, sizes], attributes, opset=13)
    if way == "tf":
        attributes |= {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "mode": "nearest"}
        return Drawn("Resize", [x, None, None, sizes], attributes, opset=11)
    if way == "symmetric":
        attributes["coordinate_transformation_mode"] = "half_pixel_symmetric"
        scales = np.array([1, 1, *rng.choice([0.6, 1.3, 2.0], 2)], np.float32)
        attributes["mode"] = "linear"
        return Drawn("Resize", [x, None, scales], attributes, opset=19)
    if way == "antialias":
        attributes |= {"mode": _pick(rng, "linear", "cubic"), "antialias": 1}
        sizes[2:] = np.maximum(1, sizes[2:] % np.array([h, w]))
        return Drawn("Resize", [x, None, None, sizes], attributes, opset=18)
    if way == "axes":
        order = [[2, 3], [3, 2]][int(rng.integers(2))]
        return Drawn("Resize", [x, None, None, sizes[2:]], {**attributes, "axes": order}, opset=18)
    attributes |= {
        "keep_aspect_ratio_policy": _pick(rng, "not_larger", "not_smaller"),
        "axes": [2, 3],
        "mode": "linear",
    }
    return Drawn("Resize", [x, None, None, sizes[2:] + 2], attributes, opset=18)


def max_pool_places(rng: Generator) -> Drawn:
    """Draw MaxPool that also gives places; among equal values the first one wins."""
    x = rng.integers(0, 4, (2, 2, 6, 7)).astype(np.float32)
    attributes = {
        "kernel_shape": [int(k) for k in rng.integers(2, 4, 2)],
        "strides": [int(s) for s in rng.integers(1, 3, 2)],
        "pads": [int(p) for p in rng.integers(0, 2, 4)],
        "storage_order": int(rng.integers(0, 2)),
        "ceil_mode": int(rng.integers(0, 2)),
    }
    return Drawn("MaxPool", [x], attributes, opset=12, outputs=2)


def recurrent_more(rng: Generator) -> Drawn:
    """Draw recurrent nodes with a clip, and activations that have parameters."""
    name = _pick(rng, "LSTM", "GRU", "RNN")
    gates, count = {"LSTM": (4, 3), "GRU": (3, 2), "RNN": (1, 1)}[name]
    inputs = [
        _floats(rng, 4, 2, 3),
        _floats(rng, 1, gates * 3, 3),
        _floats(rng, 1, gates * 3, 3),
    ]
    attributes: dict[str, Any] = {"hidden_size": 3, "clip": 0.8}
    if rng.random() < 0.5:
        attributes["activations"] = [
            _pick(rng, "HardSigmoid", "LeakyRelu", "Affine", "ScaledTanh", "Elu")
            for _ in range(count)
        ]
        attributes["activation_alpha"] = [0.3] * count
        takes = ("HardSigmoid", "Affine", "ScaledTanh")
        betas = [0.4 for chosen in attributes["activations"] if chosen in takes]
        attributes["activation_beta"] = betas or [0.4]
    return Drawn(name, inputs, attributes, outputs=2, opset=14)


def fused(rng: Generator) -> Drawn:
    name = _pick(
        rng, "FusedMatMul", "Gelu", "BiasGelu", "FastGelu", "QuickGelu", "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization", "FusedConv", "FusedGemm", "EmbedLayerNormalization",
    )  # fmt: skip
    x = _floats(rng, 2, 3, 8)
    if name == "FusedMatMul":
        across, down = int(rng.integers(0, 2)), int(rng.integers(0, 2))
        a = _floats(rng, 2, *((4, 3) if across else (3, 4)))
        b = _floats(rng, 2, *((5, 4) if down else (4, 5)))
        attributes = {"transA": across, "transB": down, "alpha": 0.3}
        return Drawn(name, [a, b], attributes, domain="com.microsoft")
    if name == "FusedGemm":
        parts = [_floats(rng, 3, 4), _floats(rng, 4, 5), _floats(rng, 5)]
        attributes = {"activation": _pick(rng, "Relu", "Tanh", "Sigmoid"), "alpha": 0.5}
        return Drawn(name, parts, attributes, domain="com.microsoft")
    if name == "FusedConv":
        parts = [_floats(rng, 1, 4, 5, 5), _floats(rng, 3, 4, 3, 3), _floats(rng, 3)]
        if rng.random() < 0.5:
            parts.append(_floats(rng, 1, 3, 3, 3))
        return Drawn(name, parts, {"activation": "Relu"}, domain="com.microsoft")
    if name == "EmbedLayerNormalization":
        ids = rng.integers(0, 7, (2, 3)).astype(np.int32)
        tables = [_floats(rng, 7, 8), _floats(rng, 4, 8), _floats(rng, 2, 8)]
        parts = [ids, (ids % 2).astype(np.int32), *tables, _floats(rng, 8), _floats(rng, 8)]
        return Drawn(name, [*parts, (ids > 2).astype(np.int32)], {}, 21, 2, "com.microsoft")
    if name.startswith("Skip"):
        parts = [x, _floats(rng, 2, 3, 8), _floats(rng, 8)]
        if name == "SkipLayerNormalization":
            parts.append(_floats(rng, 8))
        if rng.random() < 0.5:
            parts.append(_floats(rng, 8))
        return Drawn(name, parts, {"epsilon": 1e-3}, domain="com.microsoft")
    parts = [x, _floats(rng, 8)] if name == "BiasGelu" or name == "FastGelu" else [x]
    return Drawn(name, parts, domain="com.microsoft")


def fused_attention(rng: Generator) -> Drawn:
    name = _pick(rng, "MultiHeadAttention", "GroupQueryAttention", "RotaryEmbedding")
    batch, steps = int(rng.integers(1, 3)), int(rng.integers(1, 5))
    angles = rng.uniform(-3, 3, (16, 8)).astype(np.float32)
    tables = [np.cos(angles), np.sin(angles)]
    if name == "RotaryEmbedding":
        places = rng.integers(0, 16, (batch, steps))
        if rng.random() < 0.3:
            places = np.array([3])
        attributes = {"interleaved": int(rng.integers(0, 2))}
        parts = [_floats(rng, batch, steps, 32), places, *tables]
        return Drawn(name, parts, attributes, domain="com.microsoft")
    if name == "MultiHeadAttention":
        keys = int(rng.integers(1, 6))
        parts = [_floats(rng, batch, size, 8) for size in (steps, keys, keys)]
        parts.append(_floats(rng, 24) if rng.random() < 0.5 else None)
        if rng.random() < 0.5:
            mask = (rng.random((batch, keys)) < 0.7).astype(np.int32)
            mask[:, 0] = 1
            parts.append(mask)
        attributes = {"num_heads": 2}
        if steps == keys and rng.random() < 0.5:
            attributes["unidirectional"] = 1
        return Drawn(name, parts, attributes, domain="com.microsoft")
    past = int(rng.integers(0, 4))
    attributes = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": int(rng.integers(0, 2))}
    if past:
        steps = 1
    if rng.random() < 0.3:
        attributes["local_window_size"] = 2
    parts = [_floats(rng, batch, steps, size) for size in (64, 32, 32)]
    parts += [_floats(rng, batch, 2, past, 16) for _ in range(2)]
    parts += [np.full(batch, past + steps - 1, np.int32), np.array(past + steps, np.int32)]
    parts += tables if attributes["do_rotary"] else []
    return Drawn(name, parts, attributes, 21, 3, "com.microsoft")


def fused_quantized(rng: Generator) -> Drawn:
    kind = _pick(rng, np.uint8, np.int8)
    info = np.iinfo(kind)

    def codes(*shape: int) -> Array:
        return rng.integers(info.min, info.max, shape, endpoint=True).astype(kind)

    def real(*shape: int) -> list[Array]:
        return [codes(*shape), _scale(rng), np.asarray(codes())]

    to = [_scale(rng) * 3, np.asarray(codes())]
    name = _pick(
        rng, "QLinearAdd", "QLinearMul", "QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax",
        "QLinearAveragePool", "QLinearGlobalAveragePool", "QLinearConcat", "QGemm",
        "DynamicQuantizeMatMul", "MatMulIntegerToFloat",
    )  # fmt: skip
    parts: list[Array | None] = [*real(1, 3, 5, 6), *to]
    attributes: dict[str, Any] = {}
    if name in ("QLinearAdd", "QLinearMul"):
        parts = [
            *real(3, 4),
            *real(*_pick(rng, (3, 4), (4,))),
            _scale(rng) * 9,
            np.asarray(codes()),
        ]
    elif name == "QLinearConcat":
        parts, attributes = [*to, *real(2, 3), *real(2, 4)], {"axis": 1}
    elif name == "QLinearSoftmax":
        parts[3] = np.array(1 / 256, np.float32)
        parts[4] = np.array(info.min, kind)
        attributes = {"axis": 1, "opset": 13}
    elif name == "QLinearAveragePool":
        attributes = {"kernel_shape": [2, 3], "strides": [1, 2], "pads": [0, 1, 1, 0]}
    elif name == "QLinearLeakyRelu":
        attributes = {"alpha": 0.3}
    elif name == "QGemm":
        bias = rng.integers(-99, 99, 5).astype(np.int32)
        parts = [*real(3, 4), *real(4, 5), bias, _scale(rng) * 30, np.asarray(codes())]
    elif name == "DynamicQuantizeMatMul":
        parts = [_floats(rng, 3, 8), codes(8, 5), _scale(rng), np.asarray(codes())]
    elif name == "MatMulIntegerToFloat":
        parts = [codes(3, 8), codes(8, 5), _scale(rng), _scale(rng), np.asarray(codes())]
        parts.append(np.asarray(codes()))
    return Drawn(name, parts, attributes, domain="com.microsoft")


def _scale(rng: Generator) -> Array:
    return np.array(rng.uniform(0.01, 0.1), np.float32)


def few_bits(rng: Generator) -> Drawn:
    depth, rows, block = _pick(rng, 16, 32, 40, 64), int(rng.integers(1, 6)), _pick(rng, 16, 32)
    blocks = -(-depth // block)
    packed = rng.integers(0, 256, (rows, blocks, block // 2)).astype(np.uint8)
    parts = [_floats(rng, 2, depth), packed, np.abs(_floats(rng, rows * blocks))]
    if rng.random() < 0.5:
        parts.append(rng.integers(0, 256, rows * ((blocks + 1) // 2)).astype(np.uint8))
    attributes = {"K": depth, "N": rows, "bits": 4, "block_size": block}
    return Drawn("MatMulNBits", parts, attributes, domain="com.microsoft")


MORE_DRAWS: Mapping[str, Callable[[Generator], Drawn]] = {
    draw.__name__: draw
    for draw in (
        cast, elementwise, few_bits, fused, fused_attention, fused_quantized, max_pool_places, old,
        power, recurrent_more, resize_more, whole_numbers,
    )
}  # fmt: skip
