"""BERT with any weights, as exporters write it: GELU through Erf, the mask through Cast and Mul."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.bench.net import Net

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
