"""ResNet-50 and BERT-base with weights of a fixed seed, built here: nothing is downloaded.

The architectures are the published ones; the weights are random, scaled so that activations
neither vanish nor explode. How long a network takes does not depend on what it has learned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.bench.bert import BERT_BASE, bert
from vermilion.bench.net import Net

# Blocks of a stage, and the channels of its 3×3 convolutions; a block gives out four times those.
# Source: He et al. 2015, "Deep Residual Learning for Image Recognition", table 1.
_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
_EXPANSION = 4
_CLASSES = 1000


def resnet50() -> ir.Model:
    """ResNet-50, batch norms folded, for `batch` images of 3×224×224.

    A stage is halved in its first 3×3 convolution, as torchvision does it ("v1.5").
    """
    net = Net("resnet50", seed=50)
    image = net.input("input", ("batch", 3, 224, 224))
    x = net.op("Relu", _convolution(net, image, "conv1", 3, 64, 7, 2), name="conv1/Relu")
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    x = net.op("MaxPool", x, name="maxpool", **window)
    channels = 64
    for stage, (blocks, middle) in enumerate(_STAGES, start=1):
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            x = _bottleneck(net, x, f"layer{stage}.{block}", channels, middle, stride)
            channels = _EXPANSION * middle
    x = net.op("GlobalAveragePool", x, name="avgpool")
    x = net.op("Flatten", x, name="flatten", axis=1)
    weight = net.constant("fc.weight", net.normal((_CLASSES, channels), channels**-0.5))
    bias = net.constant("fc.bias", net.normal((_CLASSES,), 0.1))
    x = net.op("Gemm", x, weight, bias, name="fc/Gemm", alpha=1.0, beta=1.0, transB=1)
    net.output(x, "output", ("batch", _CLASSES))
    return net.model()


def _bottleneck(
    net: Net, x: ir.Value, name: str, channels: int, middle: int, stride: int
) -> ir.Value:
    """Append 1×1, 3×3, 1×1, and the shortcut, which is a convolution where the shape changes."""
    wide = _EXPANSION * middle
    y = _convolution(net, x, f"{name}.conv1", channels, middle, 1)
    y = net.op("Relu", y, name=f"{name}.conv1/Relu")
    y = _convolution(net, y, f"{name}.conv2", middle, middle, 3, stride)
    y = net.op("Relu", y, name=f"{name}.conv2/Relu")
    # Smaller than usual, so that sixteen additions in a row do not run away.
    y = _convolution(net, y, f"{name}.conv3", middle, wide, 1, gain=0.3)
    if channels != wide:
        x = _convolution(net, x, f"{name}.downsample", channels, wide, 1, stride)
    return net.op("Relu", net.op("Add", y, x, name=f"{name}/Add"), name=f"{name}/Relu")


def _convolution(
    net: Net,
    x: ir.Value,
    name: str,
    channels: int,
    wide: int,
    kernel: int,
    stride: int = 1,
    gain: float = 1.0,
) -> ir.Value:
    """Append a convolution; its weights keep the scale of what comes out of a ReLU.

    Source: He et al. 2015, "Delving Deep into Rectifiers", equation 10.
    """
    scale = gain * (2.0 / (channels * kernel * kernel)) ** 0.5
    weight = net.constant(f"{name}.weight", net.normal((wide, channels, kernel, kernel), scale))
    bias = net.constant(f"{name}.bias", net.normal((wide,), 0.1))
    how = {
        "kernel_shape": [kernel, kernel],
        "strides": [stride, stride],
        "pads": [kernel // 2] * 4,
        "dilations": [1, 1],
        "group": 1,
    }
    return net.op("Conv", x, weight, bias, name=f"{name}/Conv", **how)


def bert_base() -> ir.Model:
    """BERT-base, 12 layers of width 768, for `batch` sequences of `sequence` tokens."""
    random = np.random.default_rng(7)

    def weights(name: str, shape: Sequence[int], scale: float) -> NDArray[Any]:
        if scale == 0.0:
            return np.ones(shape, np.float32)
        return random.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    return bert("bert_base", BERT_BASE, weights)


NETWORKS: Mapping[str, Callable[[], ir.Model]] = {"resnet50": resnet50, "bert_base": bert_base}
