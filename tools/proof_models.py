"""Small models for `mutate_proof.py`, one for each group of kernels and passes.

A row is a graph in ONNX's text form and the shapes of its weights. Channels are no multiple of a
vector, images are no square, strides and pads differ by side: what is wrong somewhere shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from proof_index_faults import MODELS
from proof_text import Array, Shape, Text, byte, floats, scalar, whole

_NORM = {"g": (20,), "b": (20,), "m": (20,)}
_VARIANCE = (np.arange(20) / 10 + 0.3).astype(np.float32)

TEXTS: Mapping[str, Text] = {
    **MODELS,
    "conv": Text(
        "float[2,5,9,11] x", "float[2,20,9,11] y, float[2,20,5,4] z",
        "c = Conv <pads = [1,1,1,1]> (x, w, b) y = Relu (c)"
        "z = Conv <pads = [0,1,2,0], strides = [2,2], dilations = [1,2]> (y, v)",
        {"w": (20, 5, 3, 3), "b": (20,), "v": (20, 20, 3, 3)},
    ),
    "conv_sum": Text(
        "float[1,5,9,11] x, float[1,20,9,11] r", "float[1,20,9,11] y",
        "c = Conv <pads = [1,1,1,1]> (x, w) s = Sigmoid (r) y = Add (c, s)",
        {"w": (20, 5, 3, 3)},
    ),
    "grouped": Text(
        "float[1,8,7,9] x", "float[1,20,4,9] y",
        "y = Conv <pads = [1,0,1,0], strides = [2,1], group = 4> (x, w, b)",
        {"w": (20, 2, 3, 1), "b": (20,)},
    ),
    "depthwise": Text(
        "float[1,20,9,11] x", "float[1,20,9,11] y",
        "c = Conv <pads = [1,1,1,1], group = 20> (x, w, b) y = Clip (c, low, high)",
        {"w": (20, 1, 3, 3), "b": (20,)}, {"low": scalar(-0.5), "high": scalar(1.5)},
    ),
    "transposed": Text(
        "float[1,6,5,7] x", "float[1,20,10,14] y",
        "y = ConvTranspose <pads = [1,1,1,1], strides = [2,2], output_padding = [1,1]> (x, w, b)",
        {"w": (6, 20, 3, 3), "b": (20,)},
    ),
    "winograd": Text(
        "float[1,32,27,30] x", "float[1,40,27,30] y",
        "c = Conv <pads = [1,1,1,1]> (x, w, b) y = Add (c, r)",
        {"w": (40, 32, 3, 3), "b": (40,), "r": (1, 40, 1, 1)},
    ),
    "pool": Text(
        "float[2,20,9,11] x", "float[2,20,5,6] y, float[2,20,5,6] z, float[2,20,5,6] t",
        "y = MaxPool <kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]> (x)"
        "z = AveragePool <kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1]> (x)"
        "t = AveragePool <kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1],"
        " count_include_pad = 1> (x)",
    ),
    "gemm": Text(
        "float[9,14] x, float[11,12] v", "float[9,20] y, float[9,11] z",
        "y = Gemm <alpha = 0.5, beta = 2.0, transB = 1> (x, w, b)"
        "h = MatMul (y, u) z = Gemm <alpha = 1.5, transB = 1> (h, v)",
        {"w": (20, 14), "b": (20,), "u": (20, 12)},
    ),
    "matmul": Text(
        "float[2,3,7,20] x, float[2,3,20,9] v, float[7,36] r",
        "float[2,3,7,36] y, float[2,3,7,9] z",
        "a = MatMul (x, w) c = Add (a, b) y = Add (c, r) z = MatMul (x, v)",
        {"w": (20, 36), "b": (36,)},
    ),
    "packed": Text(
        "float[2,3,7,21] x, float[2,3,19,21] v", "float[2,3,7,19] y",
        "s = Sigmoid (v) u = Transpose <perm = [0,1,3,2]> (s) y = MatMul (x, u)",
    ),
    "attention": Text(
        "float[2,9,16] q, float[2,16,70] k, float[2,70,20] v, float[1,70] mask", "float[2,9,20] y",
        "s = MatMul (q, k) c = Mul (s, quarter) m = Add (c, mask) w = Softmax <axis = -1> (m)"
        "y = MatMul (w, v)",
        {}, {"quarter": scalar(0.25)},
    ),
    "deep": Text(
        "float[128,9000] x", "float[128,16] y", "y = MatMul (x, w)", {"w": (9000, 16)},
    ),
    "wide": Text(
        "float[9,24] x", "float[9,200] y", "y = MatMul (x, w)", {"w": (24, 200)}
    ),
    "strassen": Text(
        "float[512,768] x", "float[512,768] y", "a = MatMul (x, w) y = Add (a, b)",
        {"w": (768, 768), "b": (768,)},
    ),
    "norms": Text(
        "float[3,5,37] x", "float[3,5,37] y, float[3,5,37] z, float[3,5,37] t, float[3,5,37] u",
        "y = LayerNormalization <axis = -1, epsilon = 0.01> (x, g, b)"
        "z = Softmax <axis = -1> (x) t = Softmax <axis = 1> (x) u = LogSoftmax <axis = -1> (x)",
        {"g": (37,), "b": (37,)},
    ),
    "reductions": Text(
        "float[3,5,37] x", "float[3,1,37] a, float[3] b, float[3,5] c, float[5,37] d, float[3,5] e",
        "a = ReduceMean <axes = [1]> (x) p = Abs (x) n = Neg (p)"
        "b = ReduceMax <axes = [1,2], keepdims = 0> (n)"
        "c = ReduceL2 <axes = [2], keepdims = 0> (x) d = ReduceMin <axes = [0], keepdims = 0> (x)"
        "e = ReduceSumSquare <axes = [2], keepdims = 0> (x)",
    ),
    "resize": Text(
        "float[1,20,5,7] x", "float[1,20,10,14] y, float[1,20,9,11] z, float[1,20,10,14] t",
        'y = Resize <mode = "linear"> (x, , s)'
        'z = Resize <mode = "nearest", nearest_mode = "ceil"> (x, , , sizes)'
        'r = Relu (x) t = Resize <mode = "cubic"> (r, , s)',
        {}, {"s": floats(1, 1, 2, 2), "sizes": whole(1, 20, 9, 11)},
    ),
    "lstm": Text(
        "float[5,2,7] x, float[2,2,20] h, float[2,2,20] c",
        "float[5,2,2,20] y, float[2,2,20] yh, float[2,2,20] yc",
        'y, yh, yc = LSTM <hidden_size = 20, direction = "bidirectional"> (x, w, r, b, , h, c, p)',
        {"w": (2, 80, 7), "r": (2, 80, 20), "b": (2, 160), "p": (2, 60)},
    ),
    "gru": Text(
        "float[5,2,7] x, float[1,2,20] h", "float[5,1,2,20] y",
        "y = GRU <hidden_size = 20> (x, w, r, b, , h)",
        {"w": (1, 60, 7), "r": (1, 60, 20), "b": (1, 120)},
    ),
    "gru_after": Text(
        "float[5,2,7] x, float[1,2,20] h", "float[5,1,2,20] y",
        "y = GRU <hidden_size = 20, linear_before_reset = 1> (x, w, r, b, , h)",
        {"w": (1, 60, 7), "r": (1, 60, 20), "b": (1, 120)},
    ),
    "functions": Text(
        "float[3,37] x, float[3,37] v",
        "float[3,37] a, float[3,37] b, float[3,37] c, float[3,37] d, float[3,37] e, float[3,37] f,"
        " float[3,37] g, float[3,37] h, float[3,37] i, float[3,37] j, float[3,37] k, float[3,37] l",
        "a = HardSigmoid <alpha = 0.3> (x) b = HardSwish (x) c = LeakyRelu <alpha = 0.2> (x)"
        "d = Elu <alpha = 1.5> (x) e = PRelu (x, s) f = Erf (x) g = Tanh (x) h = Softplus (x)"
        "i = Selu (x) j = Pow (x, three) m = Abs (v) n = Add (m, one) k = Log (n)"
        "o = Sub (x, v) l = Exp (o)",
        {"s": (37,)}, {"three": scalar(3.0), "one": scalar(1.0)},
    ),
    "turned": Text(
        "float[2,9,20] x", "float[2,9,20] y, float[2,4,20] z",
        "r = Slice (x, last, end, axis, back) a = Mul (r, x) y = MatMul (a, w)"
        "s = Slice (x, last, first, axis, twice) z = Tanh (s)",
        {"w": (20, 20)},
        {"last": whole(-1), "end": whole(-(2**63) + 1), "axis": whole(1), "back": whole(-1),
         "first": whole(0), "twice": whole(-2)},
    ),
    "gelu": Text(
        "float[3,37] x", "float[3,37] y, float[3,37] z, float[3,37] t",
        'y = Gelu (x) z = Gelu <approximate = "tanh"> (x) t = Mean (x, y, z)', opset=20,
    ),
    "moving": Text(
        "float[1,20,4,6] x",
        "float[1,5,8,12] a, float[1,5,8,12] b, float[1,80,2,3] c, float[2,20,4,18] d,"
        " float[1,20,4,6] e, float[1,20,7,9] f, float[1,20,7,9] g, float[1,20,7,9] h,"
        " float[1,20,7,9] i",
        'r = Neg (x) a = DepthToSpace <blocksize = 2, mode = "DCR"> (r)'
        'b = DepthToSpace <blocksize = 2, mode = "CRD"> (r) c = SpaceToDepth <blocksize = 2> (r)'
        "d = Tile (r, times) e = Trilu (r, one)"
        'f = Pad <mode = "reflect"> (r, pads) g = Pad <mode = "edge"> (r, pads)'
        'h = Pad <mode = "wrap"> (r, pads) i = Pad (r, pads, v)',
        {}, {"times": whole(2, 1, 1, 3), "one": np.array(1, np.int64), "v": scalar(0.75),
             "pads": whole(0, 0, 2, 1, 0, 0, 1, 2)},
    ),
    "slicing": Text(
        "float[3,8,21] x, int64[4] k",
        "float[3,4,21] a, float[3,4,21] b, float[3,3,21] c, float[3,5,21] d, float[3,8,42] e,"
        " float[21,3,8] f, float[3,8,21] g, float[3,8,21] h",
        "r = Neg (x) a = Slice (r, s, e1, ax, st) b = Gather <axis = 1> (r, k)"
        "c, d = Split <axis = 1> (r, parts) e = Concat <axis = 2> (r, x)"
        "f = Transpose <perm = [2,0,1]> (r) g = CumSum <exclusive = 1, reverse = 1> (r, ax0)"
        "h = CumSum (r, ax2)",
        {}, {"s": whole(7), "e1": whole(-9), "ax": whole(1), "st": whole(-2), "parts": whole(3, 5),
             "ax0": np.array(1, np.int64), "ax2": np.array(2, np.int64)},
    ),
    "batch_norm": Text(
        "float[1,5,9,11] x, float[4,14] u", "float[1,20,9,11] y, float[4,20] z",
        "c = Conv <pads = [1,1,1,1]> (x, w, b0) y = BatchNormalization <epsilon = 0.01>"
        " (c, g, b, m, var)"
        "h = Gemm <transB = 1, beta = 2.0> (u, v, b) z = Mul (h, g)",
        {"w": (20, 5, 3, 3), "b0": (20,), "v": (20, 14), **_NORM}, {"var": _VARIANCE},
    ),
    "transposed_norm": Text(
        "float[1,6,5,7] x", "float[1,20,9,13] y",
        "c = ConvTranspose <pads = [1,1,1,1], strides = [2,2], group = 2> (x, w)"
        "y = BatchNormalization (c, g, b, m, var)",
        {"w": (6, 10, 3, 3), **_NORM}, {"var": _VARIANCE},
    ),
    "long_life": Text(
        "float[1,20,9,11] x", "float[1,20,9,11] y",
        "a = Sigmoid (x) p = MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]> (a)"
        "q = MaxPool <kernel_shape = [3,3], pads = [1,1,1,1]> (p)"
        "s = Softmax <axis = 1> (q) t = Softmax <axis = 2> (s) y = Mul (t, a)",
    ),
    "whole": Text(
        "int64[3,17] x, int64[3,17] v, int32[3,17] k",
        "int64[3,17] a, int64[3,17] b, int64[3,17] c, bool[3,17] d, int32[3,17] e, int64[3,17] f,"
        " int64[3] g, int64[17] h, int32[3,17] i, int64[2,17] j",
        "a = Add (x, v) n = Abs (v) m = Add (n, one) b = Div (x, m) c = Mod (x, m)"
        "d = LessOrEqual (x, v) e = Where (d, k, i0) f = CumSum (x, ax)"
        "o = Cast <to = 1> (k) g = ArgMax <axis = 1, keepdims = 0> (o)"
        "h = ArgMin <axis = 0, keepdims = 0> (o) i = Mul (k, k) j = Gather (x, rows)",
        {}, {"one": np.array(1, np.int64), "i0": np.array(5, np.int32),
             "ax": np.array(1, np.int64), "rows": whole(2, -3)},
    ),
    "casts": Text(
        "float[3,17] x, int32[3,17] k", "uint8[3,17] a, float[3,17] b, int64[3,17] c, int8[3,17] d",
        "t = Mul (x, x) a = Cast <to = 2> (t) b = Cast <to = 1> (k) r = Round (x)"
        "c = Cast <to = 7> (r) s = Cast <to = 3> (k) d = Abs (s)",
    ),
}  # fmt: skip


def _quantized_weights(shape: Shape, kind: Any = np.int8) -> Array:
    info = np.iinfo(kind)
    return np.random.default_rng(3).integers(info.min + 1, info.max, shape).astype(kind)


_LAYERS = {
    "xs": scalar(0.02), "xz": byte(120), "ys": scalar(0.05), "yz": byte(131),
    "zs": scalar(0.04), "zz": byte(17),
}  # fmt: skip
_CHANNEL_SCALES = (0.002 + np.arange(20) / 20000).astype(np.float32)

TEXTS |= {  # type: ignore[operator]
    "q_conv": Text(
        "float[1,6,9,11] x", "float[1,20,5,11] y",
        "q = QuantizeLinear (x, xs, xz) d = DequantizeLinear (q, xs, xz)"
        "e = DequantizeLinear <axis = 0> (w, ws) c = DequantizeLinear <axis = 0> (b, bs)"
        "a = Conv <pads = [1,1,1,1], strides = [2,1]> (d, e, c) r = Relu (a)"
        "t = QuantizeLinear (r, ys, yz) y = DequantizeLinear (t, ys, yz)",
        {}, {**_LAYERS, "w": _quantized_weights((20, 6, 3, 3)), "ws": _CHANNEL_SCALES,
             "b": np.arange(-900, 900, 90).astype(np.int32),
             "bs": (np.float32(0.02) * _CHANNEL_SCALES).astype(np.float32)},
    ),
    "q_linear_conv": Text(
        "uint8[1,6,9,11] x", "uint8[1,20,9,11] y",
        "y = QLinearConv <pads = [1,1,1,1]> (x, xs, xz, w, ws, wz, ys, yz, b)",
        {}, {**_LAYERS, "w": _quantized_weights((20, 6, 3, 3)), "ws": _CHANNEL_SCALES,
             "wz": np.zeros(20, np.int8), "b": np.arange(-900, 900, 90).astype(np.int32)},
    ),
    "q_depthwise": Text(
        "uint8[1,20,9,11] x", "uint8[1,20,9,11] y",
        "d = DequantizeLinear (x, xs, xz) e = DequantizeLinear <axis = 0> (w, ws)"
        "a = Conv <pads = [1,1,1,1], group = 20> (d, e) y = QuantizeLinear (a, ys, yz)",
        {}, {**_LAYERS, "w": _quantized_weights((20, 1, 3, 3)), "ws": _CHANNEL_SCALES},
    ),
    "q_matmul": Text(
        "float[3,5,22] x", "uint8[3,5,20] y, float[3,5,20] z",
        "q = QuantizeLinear (x, xs, xz) d = DequantizeLinear (q, xs, xz)"
        "e = DequantizeLinear <axis = 1> (w, ws) a = MatMul (d, e) k = Clip (a, low, high)"
        "y = QuantizeLinear (k, ys, yz) f = DequantizeLinear (y, ys, yz) z = Tanh (f)",
        {}, {**_LAYERS, "w": _quantized_weights((22, 20)), "ws": _CHANNEL_SCALES,
             "low": scalar(-2.2), "high": scalar(3.3)},
    ),
    "q_sum": Text(
        "uint8[1,20,5,7] x, uint8[1,20,5,7] v", "uint8[1,20,5,7] y, uint8[1,20,5,7] z",
        "d = DequantizeLinear (x, xs, xz) e = DequantizeLinear (v, ys, yz) a = Add (d, e)"
        "y = QuantizeLinear (a, zs, zz) m = Mul (d, e) f = Sub (m, e)"
        "z = QuantizeLinear (f, ys, yz)",
        {}, _LAYERS,
    ),
    "q_signed": Text(
        "float[1,20,8,6] x", "int8[1,20,4,3] y, int8[1,20,4,3] z",
        "q = QuantizeLinear (x, xs, iz) d = DequantizeLinear (q, xs, iz)"
        "p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (d) y = QuantizeLinear (p, xs, iz)"
        "e = DequantizeLinear (w, us) a = Conv (p, e) z = QuantizeLinear (a, ys, jz)",
        {}, {**_LAYERS, "iz": byte(-7, np.int8), "jz": byte(11, np.int8),
             "w": _quantized_weights((20, 20, 1, 1)), "us": scalar(0.004)},
    ),
    "q_wide": Text(
        "float[3,37] x", "uint16[3,37] y, float[3,37] z",
        "y = QuantizeLinear (x, s, zero) d = DequantizeLinear (y, s, zero) z = Sigmoid (d)",
        {}, {"s": scalar(0.0007), "zero": np.array(30000, np.uint16)}, opset=21,
    ),
    "q_regrid": Text(
        "uint8[3,37] x", "uint8[3,37] y, float[3,37] z",
        "d = DequantizeLinear (x, xs, xz) y = QuantizeLinear (d, xs, yz)"
        "e = DequantizeLinear (y, xs, yz) t = QuantizeLinear (e, xs, xz)"
        "f = DequantizeLinear (t, xs, xz) z = Tanh (f)",
        {}, _LAYERS,
    ),
    "q_sixteen": Text(
        "float[5,22] x", "uint16[5,20] y",
        "q = QuantizeLinear (x, s, zero) d = DequantizeLinear (q, s, zero)"
        "e = DequantizeLinear <axis = 1> (w, ws) a = MatMul (d, e)"
        "y = QuantizeLinear (a, t, zero)",
        {}, {"s": scalar(0.0003), "t": scalar(0.0007), "zero": np.array(30000, np.uint16),
             "w": _quantized_weights((22, 20)), "ws": _CHANNEL_SCALES}, opset=21,
    ),
    "q_dynamic": Text(
        "float[3,5,22] x, uint8[2,7,22] k, uint8 kz", "float[3,5,20] y, int32[2,7,7] z",
        "q, s, p = DynamicQuantizeLinear (x) i = MatMulInteger (q, w, p, wz)"
        "f = Cast <to = 1> (i) c = Mul (s, ws) m = Mul (f, c) n = Add (m, b) a = Relu (n)"
        "r = Add (a, xs) t, u, v = DynamicQuantizeLinear (r) j = MatMulInteger (t, k20, v)"
        "g = Cast <to = 1> (j) h = Mul (u, xs) e = Mul (g, h) y = Add (e, r)"
        "kt = Transpose <perm = [0,2,1]> (k) z = MatMulInteger (k, kt, kz, kz)",
        {"b": (20,)},
        {"xs": scalar(0.02), "w": _quantized_weights((22, 20), np.uint8), "wz": byte(117),
         "ws": _CHANNEL_SCALES, "k20": _quantized_weights((20, 20))},
    ),
    "q_dynamic_conv": Text(
        "float[1,6,9,11] x", "float[1,20,9,11] y, float[1,20,9,11] z",
        "q, s, p = DynamicQuantizeLinear (x) i = ConvInteger <pads = [1,1,1,1]> (q, w, p, wz)"
        "f = Cast <to = 1> (i) c = Mul (s, xs) y = Mul (f, c)"
        "t, u, v = DynamicQuantizeLinear (y)"
        "j = ConvInteger <pads = [1,1,1,1], group = 20> (t, d, v, wz)"
        "g = Cast <to = 1> (j) h = Mul (u, xs) z = Mul (g, h)",
        {}, {"xs": scalar(0.02), "w": _quantized_weights((20, 6, 3, 3), np.uint8),
             "wz": byte(117), "d": _quantized_weights((20, 1, 3, 3), np.uint8)},
    ),
    "q_weights": Text(
        "uint8[5,22] x", "uint8[5,20] y",
        "d = DequantizeLinear (x, xs, xz) e = DequantizeLinear <axis = 1> (w, ws, wz)"
        "a = MatMul (d, e) y = QuantizeLinear (a, ys, yz)",
        {}, {**_LAYERS, "w": _quantized_weights((22, 20)) // 2, "ws": _CHANNEL_SCALES,
             "wz": np.arange(-10, 10).astype(np.int8)},
    ),
    "ties": Text(
        "int8[9,17] x", "int64[9,1] y, int64[1,17] z",
        "f = Cast <to = 1> (x) h = Mul (f, k) g = Round (h) y = ArgMax <axis = 1> (g)"
        "z = ArgMin <axis = 0> (g)",
        {}, {"k": scalar(0.03)},
    ),
    "provider": Text(
        "float[4,3,6,6] x", "float[4,8,6,6] y",
        "a = Conv <pads = [1,1,1,1]> (x, w) b = Relu (a) y = Conv (b, v)",
        {"w": (16, 3, 3, 3), "v": (8, 16, 1, 1)},
    ),
    "provider_integers": Text(
        "float[4,30] x", "int64[4,6] y",
        "a = MatMul (x, w) r = Reshape (a, s) y = ArgMax <axis = 2, keepdims = 0> (r)",
        {"w": (30, 60)}, {"s": whole(4, 6, 10)},
    ),
    "gpu_provider": Text(
        "float[4,64] x", "float[4,128] y", "a = MatMul (x, w) y = Relu (a)", {"w": (64, 128)}
    ),
    "gpu_strided": Text(
        "float[1,8,9,11] x", "float[1,12,5,6] y",
        "r = Tanh (x) c = Conv <strides = [2,2]> (x, w) d = Conv <strides = [2,2]> (r, w)"
        "y = Add (c, d)",
        {"w": (12, 8, 1, 1)},
    ),
    "gpu_softmax": Text("float[2,700] x", "float[2,700] y", "y = Softmax <axis = -1> (x)"),
    "gpu_half": Text(
        "float[2,24] x", "float[2,10] y",
        "h = MatMul (x, w) r = Sigmoid (h) k = MatMul (r, v) y = Add (k, b)",
        {"w": (24, 32), "v": (32, 10), "b": (10,)},
    ),
}  # fmt: skip


def with_dynamic_sizes(model: ir.Model) -> ir.Model:
    """Return a copy whose inputs have dynamic sizes: those that no weight has. A batch may be 1.

    Equal sizes are one dimension.
    """
    proto = ir.to_proto(model)
    weights = {size for tensor in proto.graph.initializer for size in tensor.dims if size > 1}
    names = {tensor.name for tensor in proto.graph.initializer}
    del proto.graph.value_info[:]
    for value in proto.graph.input:
        sizes = value.type.tensor_type.shape.dim if value.name not in names else ()
        for axis, size in enumerate(sizes):
            if size.dim_value not in weights and (axis == 0 or size.dim_value > 1):
                size.dim_param = f"size_{size.dim_value}"
    for value in proto.graph.output:
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            size.dim_param = f"{value.name}_{axis}"
    return ir.from_proto(proto)


def model_of(name: str) -> ir.Model:
    """Return the model of a name: one of the table, or one of the tests' networks."""
    if name in TEXTS:
        return TEXTS[name].model()
    from models import SMALL_MODELS

    return SMALL_MODELS[name]()
