"""ResNet-50 and BERT with weights of a fixed seed or given ones, built here, not downloaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

# The newest opset with LayerNormalization that every engine reads.
_OPSET = 17
_IR_VERSION = 8  # the one of ONNX 1.12, the first with opset 17


class Net:
    """Grows a graph node by node. Weights are drawn from one seed, in the order of the calls."""

    def __init__(self, name: str, seed: int) -> None:
        self._graph = ir.Graph([], [], nodes=[], opset_imports={"": _OPSET}, name=name)
        self._random = np.random.default_rng(seed)

    def input(
        self,
        name: str,
        shape: Sequence[int | str],
        dtype: ir.DataType = ir.DataType.FLOAT,
    ) -> ir.Value:
        """Append an input of the graph."""
        value = ir.val(name, dtype=dtype, shape=ir.Shape(shape))
        self._graph.inputs.append(value)
        return value

    def normal(self, shape: Sequence[int], scale: float) -> NDArray[np.float32]:
        """Draw float32 numbers of mean 0 and the standard deviation `scale`."""
        return self._random.standard_normal(tuple(shape), dtype=np.float32) * np.float32(scale)

    def constant(self, name: str, array: NDArray[Any] | np.float32) -> ir.Value:
        """Append a weight."""
        tensor = ir.Tensor(np.asarray(array, order="C"), name=name)
        value = ir.val(name, const_value=tensor, dtype=tensor.dtype, shape=tensor.shape)
        self._graph.register_initializer(value)
        return value

    def op(self, op_type: str, *inputs: ir.Value, name: str, **attributes: Any) -> ir.Value:
        """Append a node; give its output."""
        node = ir.node(op_type, list(inputs), attributes, name=name)
        output = node.outputs[0]
        output.name = f"{name}_output"
        self._graph.append(node)
        return output

    def output(self, value: ir.Value, name: str, shape: Sequence[int | str]) -> None:
        """Make a float32 value an output of the graph."""
        value.name = name
        value.type = ir.TensorType(ir.DataType.FLOAT)
        value.shape = ir.Shape(shape)
        self._graph.outputs.append(value)

    def model(self) -> ir.Model:
        """Return the finished model."""
        return ir.Model(self._graph, ir_version=_IR_VERSION, producer_name="vermilion")


Array = NDArray[Any]
# Gives the weight of a name and shape; the number is the standard deviation if it is to be drawn,
# and 0 for the factors of a layer norm, which are 1.
Weights = Callable[[str, tuple[int, ...], float], Array]


@dataclass(frozen=True)
class Encoder:
    """The sizes of a BERT, and how its layer norms are written."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    decomposed: bool
    epsilon: float = 1e-12
    inner: int = 4


BERT_BASE = Encoder(12, 768, 12, 30522, decomposed=False)
MINILM = Encoder(6, 384, 12, 30522, decomposed=True)


def bert(name: str, sizes: Encoder, weights: Weights) -> ir.Model:
    """Return the graph from token numbers and a mask to the last hidden state.

    Shapes: inputs (batch, sequence), both open → (batch, sequence, width); at most 512 tokens.
    Source: Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers for
    Language Understanding", and the names of weights of the `transformers` package.
    """
    return _BertGraph(name, sizes, weights).model()


class _BertGraph:
    def __init__(self, name: str, sizes: Encoder, weights: Weights) -> None:
        self.net = Net(name, seed=0)
        self.sizes = sizes
        self._weights = weights
        self._shared: dict[str, ir.Value] = {}

    def model(self) -> ir.Model:
        net, width = self.net, self.sizes.width
        names = ("input_ids", "attention_mask", "token_type_ids")
        ids, mask, types = (
            net.input(name, ("batch", "sequence"), ir.DataType.INT64) for name in names
        )
        x = self._embed(ids, types)
        bias = self._mask_bias(mask)
        for layer in range(self.sizes.layers):
            x = self._layer(x, bias, f"encoder.layer.{layer}")
        net.output(x, "last_hidden_state", ("batch", "sequence", width))
        return net.model()

    def _scalar(self, name: str, value: float) -> ir.Value:
        if name not in self._shared:
            self._shared[name] = self.net.constant(name, np.float32(value))
        return self._shared[name]

    def _integers(self, name: str, *values: int) -> ir.Value:
        if name not in self._shared:
            self._shared[name] = self.net.constant(name, np.array(values, np.int64))
        return self._shared[name]

    def _weight(self, name: str, shape: tuple[int, ...], scale: float) -> ir.Value:
        return self.net.constant(name, self._weights(name, shape, scale))

    def _embed(self, ids: ir.Value, types: ir.Value) -> ir.Value:
        net, width = self.net, self.sizes.width
        tables = {
            "word": (self.sizes.vocabulary, ids),
            "token_type": (2, types),
        }
        parts = []
        for name, (rows, indices) in tables.items():
            table = self._weight(f"embeddings.{name}_embeddings.weight", (rows, width), 0.5)
            parts.append(net.op("Gather", table, indices, name=f"embeddings/{name}", axis=0))
        table = self._weight("embeddings.position_embeddings.weight", (512, width), 0.5)
        shape = net.op("Shape", ids, name="embeddings/Shape")
        one = self._integers("one", 1)
        length = net.op("Gather", shape, one, name="embeddings/length", axis=0)
        zero = self._integers("zero", 0)
        position = net.op("Slice", table, zero, length, zero, name="embeddings/position")
        x = net.op("Add", parts[0], parts[1], name="embeddings/Add")
        x = net.op("Add", x, position, name="embeddings/Add_1")
        return self._layer_norm(x, "embeddings.LayerNorm")

    def _mask_bias(self, mask: ir.Value) -> ir.Value:
        net = self.net
        x = net.op("Unsqueeze", mask, self._integers("one_two", 1, 2), name="mask/Unsqueeze")
        x = net.op("Cast", x, name="mask/Cast", to=int(ir.DataType.FLOAT))
        x = net.op("Sub", self._scalar("one.f", 1.0), x, name="mask/Sub")
        lowest = self._scalar("lowest", float(np.finfo(np.float32).min))
        return net.op("Mul", x, lowest, name="mask/Mul")

    def _layer(self, x: ir.Value, bias: ir.Value, name: str) -> ir.Value:
        net, width = self.net, self.sizes.width
        y = self._attention(x, bias, f"{name}.attention")
        y = self._linear(y, f"{name}.attention.output.dense", (width, width))
        x = net.op("Add", y, x, name=f"{name}/attention/Add")
        x = self._layer_norm(x, f"{name}.attention.output.LayerNorm")
        inner = self.sizes.inner * width
        y = self._gelu(self._linear(x, f"{name}.intermediate.dense", (width, inner)), name)
        y = self._linear(y, f"{name}.output.dense", (inner, width))
        x = net.op("Add", y, x, name=f"{name}/output/Add")
        return self._layer_norm(x, f"{name}.output.LayerNorm")

    def _attention(self, x: ir.Value, bias: ir.Value, name: str) -> ir.Value:
        net, width, heads = self.net, self.sizes.width, self.sizes.heads
        size = width // heads
        split = self._integers("split", 0, 0, heads, size)
        orders = {"query": [0, 2, 1, 3], "key": [0, 2, 3, 1], "value": [0, 2, 1, 3]}
        parts = {}
        for part, order in orders.items():
            y = self._linear(x, f"{name}.self.{part}", (width, width))
            y = net.op("Reshape", y, split, name=f"{name}/{part}/Reshape")
            parts[part] = net.op("Transpose", y, name=f"{name}/{part}/Transpose", perm=order)
        scores = net.op("MatMul", parts["query"], parts["key"], name=f"{name}/scores")
        root = self._scalar("root", float(np.sqrt(size)))
        scores = net.op("Div", scores, root, name=f"{name}/Div")
        scores = net.op("Add", scores, bias, name=f"{name}/Add")
        weights = net.op("Softmax", scores, name=f"{name}/Softmax", axis=-1)
        y = net.op("MatMul", weights, parts["value"], name=f"{name}/context")
        y = net.op("Transpose", y, name=f"{name}/Transpose", perm=[0, 2, 1, 3])
        merge = self._integers("merge", 0, 0, width)
        return net.op("Reshape", y, merge, name=f"{name}/Reshape")

    def _linear(self, x: ir.Value, name: str, features: tuple[int, int]) -> ir.Value:
        # PyTorch keeps the transpose of what MatMul reads.
        stored = self._weights(f"{name}.weight", features[::-1], features[0] ** -0.5)
        weight = self.net.constant(f"{name}.weight", stored.T)
        bias = self._weight(f"{name}.bias", (features[1],), 0.02)
        y = self.net.op("MatMul", x, weight, name=f"{name}/MatMul")
        return self.net.op("Add", bias, y, name=f"{name}/Add")

    def _gelu(self, x: ir.Value, name: str) -> ir.Value:
        net = self.net
        y = net.op("Div", x, self._scalar("root_two", float(np.sqrt(2.0))), name=f"{name}/gelu/Div")
        y = net.op("Erf", y, name=f"{name}/gelu/Erf")
        y = net.op("Add", y, self._scalar("one.f", 1.0), name=f"{name}/gelu/Add")
        y = net.op("Mul", x, y, name=f"{name}/gelu/Mul")
        return net.op("Mul", y, self._scalar("half", 0.5), name=f"{name}/gelu/Mul_1")

    def _layer_norm(self, x: ir.Value, name: str) -> ir.Value:
        net, epsilon = self.net, self.sizes.epsilon
        scale = self._weight(f"{name}.weight", (self.sizes.width,), 0.0)
        shift = self._weight(f"{name}.bias", (self.sizes.width,), 0.02)
        if not self.sizes.decomposed:
            how = {"axis": -1, "epsilon": epsilon}
            return net.op("LayerNormalization", x, scale, shift, name=name, **how)
        # What exporters wrote before opset 17 had the operator.
        mean = net.op("ReduceMean", x, name=f"{name}/mean", axes=[-1])
        centred = net.op("Sub", x, mean, name=f"{name}/Sub")
        square = net.op("Pow", centred, self._scalar("two", 2.0), name=f"{name}/Pow")
        variance = net.op("ReduceMean", square, name=f"{name}/variance", axes=[-1])
        above = net.op("Add", variance, self._scalar("epsilon", epsilon), name=f"{name}/Add")
        root = net.op("Sqrt", above, name=f"{name}/Sqrt")
        y = net.op("Div", centred, root, name=f"{name}/Div")
        y = net.op("Mul", y, scale, name=f"{name}/Mul")
        return net.op("Add", y, shift, name=f"{name}/Add_1")


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
