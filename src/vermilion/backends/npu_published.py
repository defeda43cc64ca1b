"""Published latencies of networks on an NPU, and what those networks consist of.

Source: github.com/amd/RyzenAI-SW at 0b65628, onnx-benchmark/performance_results.json, Strix, batch
1, in milliseconds; `_XINT8` rows are INT8, the others FP32 models that ran as BF16. MiniLM (128
tokens, 132.8 inferences a second on Strix) is a user's measurement in public code, the only
transformer; its release is not said, and it stands with the newest.

The table names networks, not files. Layers are those of the papers at the usual image size, which
is 224 but for EfficientNet-B1 (240), -B2 (260) and YOLOv8m (640). Energy is not here: no vendor
publishes it network by network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

Published = Mapping[str, float]

INT8_MS: Mapping[str, Published] = MappingProxyType(
    {
        "1.4.1": {
            "efficientnet-b0": 4.78,
            "efficientnet-b1": 6.7,
            "efficientnet-b2": 6.8,
            "mobilenet-v2": 2.37,
            "mobilenet-v3": 2.4,
            "resnet18": 2.5,
            "resnet34": 3.27,
            "resnet50": 5.11,
        },
        "1.5": {
            "efficientnet-b0": 10.57,
            "efficientnet-b1": 15.11,
            "efficientnet-b2": 24.57,
            "mobilenet-v2": 5.66,
            "mobilenet-v3": 5.57,
            "resnet18": 5.33,
            "resnet34": 7.66,
            "resnet50": 11.68,
            "yolov8m": 75.6,
        },
        "1.6": {
            "efficientnet-b0": 35.55,
            "efficientnet-b1": 48.93,
            "efficientnet-b2": 49.63,
            "mobilenet-v2": 14.01,
            "mobilenet-v3": 14.38,
            "resnet18": 2.02,
            "resnet34": 2.5,
            "resnet50": 3.58,
            "yolov8m": 134.0,
        },
        "1.7": {
            "efficientnet-b0": 8.23,
            "efficientnet-b1": 10.75,
            "efficientnet-b2": 11.93,
            "mobilenet-v2": 17.79,
            "mobilenet-v3": 3.63,
            "resnet18": 1.7,
            "resnet34": 2.68,
            "resnet50": 3.84,
            "yolov8m": 34.4,
        },
    }
)
BF16_MS: Mapping[str, Published] = MappingProxyType(
    {
        "1.7": {
            "efficientnet-b0": 13.93,
            "minilm-l6": 7.53,
            "resnet18": 30.8,
            "resnet50": 70.0,
            "yolov8m": 1188.0,
        }
    }
)


@dataclass(frozen=True)
class Layer:
    """A convolution or matrix product: operations, and elements of weights and activations."""

    operations: int
    weights: int
    activations: int
    is_depthwise: bool = False
    is_product: bool = False  # of matrices, not a convolution


@cache
def network(name: str) -> tuple[Layer, ...]:
    """Return the layers of a published network. Raises: KeyError for a name that has none."""
    return tuple(_NETWORKS[name]())


class _Net:
    """Layers as they are added; height and width follow the strides."""

    def __init__(self, side: int, channels: int) -> None:
        self.layers: list[Layer] = []
        self.side = side
        self.channels = channels

    def conv(self, out: int, kernel: int, stride: int = 1, *, depthwise: bool = False) -> None:
        self.layers.append(_conv(self.side, self.channels, out, kernel, stride, depthwise))
        self.side = math.ceil(self.side / stride)
        self.channels = out

    def beside(self, side: int, channels: int, out: int, kernel: int, stride: int = 1) -> None:
        """Add a layer that is not on the way: a shortcut, a gate, a head."""
        self.layers.append(_conv(side, channels, out, kernel, stride, False))

    def gate(self, squeezed: int) -> None:
        self.beside(1, self.channels, squeezed, 1)
        self.beside(1, squeezed, self.channels, 1)


def _conv(side: int, channels: int, out: int, kernel: int, stride: int, dw: bool) -> Layer:
    side_after = math.ceil(side / stride)
    weights = out * kernel * kernel * (1 if dw else channels)
    activations = side * side * channels + side_after * side_after * out
    return Layer(2 * side_after * side_after * weights, weights, activations, dw)


def _resnet(blocks: tuple[int, ...], *, bottleneck: bool) -> list[Layer]:
    net = _Net(224, 3)
    net.conv(64, 7, 2)
    net.side = 56
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            before, channels = net.side, net.channels
            if bottleneck:
                net.conv(width, 1)
                net.conv(width, 3, stride)
                net.conv(4 * width, 1)
            else:
                net.conv(width, 3, stride)
                net.conv(width, 3)
            if channels != net.channels:
                net.beside(before, channels, net.channels, 1, stride)
    net.beside(1, net.channels, 1000, 1)
    return net.layers


# (expansion, channels, repeats, stride): Sandler et al., MobileNetV2, table 2.
_MOBILENET_V2 = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip


def _mobilenet_v2() -> list[Layer]:
    net = _Net(224, 3)
    net.conv(32, 3, 2)
    for expansion, channels, repeats, stride in _MOBILENET_V2:
        for block in range(repeats):
            wide = net.channels * expansion
            if expansion > 1:
                net.conv(wide, 1)
            net.conv(wide, 3, 1 if block else stride, depthwise=True)
            net.conv(channels, 1)
    net.conv(1280, 1)
    net.beside(1, 1280, 1000, 1)
    return net.layers


# (kernel, expanded, channels, gate, stride): Howard et al., MobileNetV3, table 1 (Large).
_MOBILENET_V3 = (
    (3, 16, 16, 0, 1), (3, 64, 24, 0, 2), (3, 72, 24, 0, 1), (5, 72, 40, 24, 2),
    (5, 120, 40, 32, 1), (5, 120, 40, 32, 1), (3, 240, 80, 0, 2), (3, 200, 80, 0, 1),
    (3, 184, 80, 0, 1), (3, 184, 80, 0, 1), (3, 480, 112, 120, 1), (3, 672, 112, 168, 1),
    (5, 672, 160, 168, 2), (5, 960, 160, 240, 1), (5, 960, 160, 240, 1),
)  # fmt: skip


def _mobilenet_v3() -> list[Layer]:
    net = _Net(224, 3)
    net.conv(16, 3, 2)
    for kernel, wide, channels, gate, stride in _MOBILENET_V3:
        if wide != net.channels:
            net.conv(wide, 1)
        net.conv(wide, kernel, stride, depthwise=True)
        if gate:
            net.gate(gate)
        net.conv(channels, 1)
    net.conv(960, 1)
    net.beside(1, 960, 1280, 1)
    net.beside(1, 1280, 1000, 1)
    return net.layers


# (expansion, channels, repeats, stride, kernel): Tan and Le, EfficientNet, table 1.
_EFFICIENTNET = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip


def _efficientnet(width: float, depth: float, side: int) -> list[Layer]:
    net = _Net(side, 3)
    net.conv(_to_eight(32 * width), 3, 2)
    for expansion, channels, repeats, stride, kernel in _EFFICIENTNET:
        for block in range(math.ceil(repeats * depth)):
            before = net.channels
            if expansion > 1:
                net.conv(before * expansion, 1)
            net.conv(net.channels, kernel, 1 if block else stride, depthwise=True)
            net.gate(max(1, before // 4))
            net.conv(_to_eight(channels * width), 1)
    net.conv(_to_eight(1280 * width), 1)
    net.beside(1, net.channels, 1000, 1)
    return net.layers


def _to_eight(channels: float) -> int:
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _c2f(net: _Net, side: int, channels: int, out: int, repeats: int) -> None:
    half = out // 2
    net.beside(side, channels, out, 1)
    for _ in range(2 * repeats):
        net.beside(side, half, half, 3)
    net.beside(side, (2 + repeats) * half, out, 1)


def _yolov8m() -> list[Layer]:
    """Source: ultralytics, cfg/models/v8/yolov8.yaml, scale m (depth 0.67, width 0.75)."""
    net = _Net(640, 3)
    for channels, repeats in ((48, 0), (96, 2), (192, 4), (384, 4), (576, 2)):
        net.conv(channels, 3, 2)
        if repeats:
            _c2f(net, net.side, channels, channels, repeats)
    net.beside(20, 576, 288, 1)
    net.beside(20, 4 * 288, 576, 1)
    _c2f(net, 40, 576 + 384, 384, 2)
    _c2f(net, 80, 384 + 192, 192, 2)
    net.beside(80, 192, 192, 3, 2)
    _c2f(net, 40, 192 + 384, 384, 2)
    net.beside(40, 384, 384, 3, 2)
    _c2f(net, 20, 384 + 576, 576, 2)
    for side, channels in ((80, 192), (40, 384), (20, 576)):
        for first, last in ((64, 64), (192, 80)):
            net.beside(side, channels, first, 3)
            net.beside(side, first, first, 3)
            net.beside(side, first, last, 1)
    return net.layers


# Wang et al., MiniLM, and the configuration of sentence-transformers/all-MiniLM-L6-v2.
_MINILM = (6, 12, 384, 1536)


def _minilm(tokens: int = 128) -> list[Layer]:
    blocks, heads, hidden, inner = _MINILM
    width = hidden // heads
    block = [
        *(_product(tokens, hidden, hidden) for _ in "qkv"),
        _product(tokens, width, tokens, of_two=heads),
        _product(tokens, tokens, width, of_two=heads),
        _product(tokens, hidden, hidden),
        _product(tokens, hidden, inner),
        _product(tokens, inner, hidden),
    ]
    return block * blocks


def _product(rows: int, depth: int, columns: int, *, of_two: int = 0) -> Layer:
    """Return a product with weights, or `of_two` products of activations."""
    count = of_two or 1
    right = depth * columns
    moved = count * rows * (depth + columns) + of_two * right
    weights = 0 if of_two else right
    return Layer(2 * count * rows * right, weights, moved, is_product=True)


_NETWORKS: Mapping[str, Callable[[], list[Layer]]] = {
    "efficientnet-b0": lambda: _efficientnet(1.0, 1.0, 224),
    "efficientnet-b1": lambda: _efficientnet(1.0, 1.1, 240),
    "efficientnet-b2": lambda: _efficientnet(1.1, 1.2, 260),
    "minilm-l6": _minilm,
    "mobilenet-v2": _mobilenet_v2,
    "mobilenet-v3": _mobilenet_v3,
    "resnet18": lambda: _resnet((2, 2, 2, 2), bottleneck=False),
    "resnet34": lambda: _resnet((3, 4, 6, 3), bottleneck=False),
    "resnet50": lambda: _resnet((3, 4, 6, 3), bottleneck=True),
    "yolov8m": _yolov8m,
}
