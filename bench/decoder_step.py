"""A step of a Llama-like decoder with its cache, in ONNX's own operators, as PyTorch exports it.

Sizes follow SmolLM2-135M with fewer layers and words. Everything that a caller chooses is open: the
batch, the tokens of the step, what the cache holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from vermilion.bench.networks import Net

_LONGEST = 512


@dataclass(frozen=True)
class Decoder:
    """The sizes of a decoder: `groups` are heads of keys and values."""

    layers: int = 6
    width: int = 576
    heads: int = 9
    groups: int = 3
    inner: int = 1536
    vocabulary: int = 8192
    longest: int = _LONGEST

    @property
    def size(self) -> int:
        """The width of a head."""
        return self.width // self.heads


def decoder_step(
    sizes: Decoder = Decoder(), batch: int | str = "batch", step: int | str = "sequence",
    past: int | str = "past", total: int | str = "total",
) -> ir.Model:  # fmt: skip
    """Return the graph from tokens, a mask and a cache to logits and the longer cache.

    Shapes: `input_ids`, `position_ids` (batch, sequence); `attention_mask` (batch, total), 1 where
    a position counts, total being past + sequence; of each layer `past.L.key` and `past.L.value`
    (batch, groups, past, size) → `logits` (batch, sequence, vocabulary), `present.L.key` and
    `present.L.value` (batch, groups, total, size).
    Source: names and order of operators from PyTorch's export of Llama in `transformers`.
    """
    return _Step(sizes, (batch, step, past, total)).model()


class _Step:
    def __init__(self, sizes: Decoder, names: tuple[int | str, ...]) -> None:
        self.net, self.sizes = Net("decoder_step", seed=24), sizes
        self.batch, self.step, self.past, self.total = names
        self._shared: dict[str, ir.Value] = {}

    def model(self) -> ir.Model:
        net, s = self.net, self.sizes
        ids, positions = (
            net.input(name, (self.batch, self.step), ir.DataType.INT64)
            for name in ("input_ids", "position_ids")
        )
        mask = net.input("attention_mask", (self.batch, self.total), ir.DataType.INT64)
        table = net.constant("embed.weight", net.normal((s.vocabulary, s.width), 0.5))
        x = net.op("Gather", table, ids, name="embed", axis=0)
        turns = self._turns(positions)
        bias = self._bias(mask, positions)
        for layer in range(s.layers):
            x = self._layer(x, bias, turns, f"layers.{layer}", layer)
        x = self._norm(x, "norm")
        logits = self._linear(x, "lm_head", s.width, s.vocabulary)
        net.output(logits, "logits", (self.batch, self.step, s.vocabulary))
        # The logits first, as exporters have it.
        outputs = net.model().graph.outputs
        outputs.insert(0, outputs.pop())
        return net.model()

    def _array(self, name: str, array: Any) -> ir.Value:
        if name not in self._shared:
            self._shared[name] = self.net.constant(name, array)
        return self._shared[name]

    def _integers(self, *values: int) -> ir.Value:
        return self._array("int." + ".".join(map(str, values)), np.array(values, np.int64))

    def _number(self, value: float) -> ir.Value:
        return self._array(f"float.{value}", np.float32(value))

    def _turns(self, positions: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return cosines and sines of the rotary embedding, (batch, 1, sequence, size)."""
        net, size = self.net, self.sizes.size
        angles = np.outer(np.arange(self.sizes.longest), 1e4 ** (-np.arange(0, size, 2) / size))
        angles = np.concatenate([angles, angles], axis=1)
        found = []
        for name, function in (("cos", np.cos), ("sin", np.sin)):
            table = net.constant(f"rotary.{name}", function(angles).astype(np.float32))
            y = net.op("Gather", table, positions, name=f"rotary/{name}", axis=0)
            found.append(net.op("Unsqueeze", y, self._integers(1), name=f"rotary/{name}/heads"))
        return found[0], found[1]

    def _bias(self, mask: ir.Value, positions: ir.Value) -> ir.Value:
        """Return what is added to scores: a position sees those up to itself that count."""
        net = self.net
        shape = net.op("Shape", mask, name="mask/Shape")
        total = net.op("Gather", shape, self._array("one", np.int64(1)), name="mask/total", axis=0)
        zero, one = self._array("zero", np.int64(0)), self._array("one", np.int64(1))
        keys = net.op("Range", zero, total, one, name="mask/Range")
        own = net.op("Unsqueeze", positions, self._integers(1, 3), name="mask/positions")
        seen = net.op("LessOrEqual", keys, own, name="mask/LessOrEqual")
        counts = net.op("Cast", mask, name="mask/Cast", to=int(ir.DataType.BOOL))
        counts = net.op("Unsqueeze", counts, self._integers(1, 2), name="mask/Unsqueeze")
        both = net.op("And", seen, counts, name="mask/And")
        lowest = float(np.finfo(np.float32).min)
        return net.op("Where", both, self._number(0.0), self._number(lowest), name="mask/Where")

    def _layer(
        self, x: ir.Value, bias: ir.Value, turns: tuple[ir.Value, ir.Value], name: str, layer: int
    ) -> ir.Value:
        net, s = self.net, self.sizes
        y = self._attention(self._norm(x, f"{name}.input_norm"), bias, turns, name, layer)
        x = net.op("Add", x, y, name=f"{name}/attention/Add")
        y = self._norm(x, f"{name}.post_norm")
        gate = self._linear(y, f"{name}.gate", s.width, s.inner)
        sigmoid = net.op("Sigmoid", gate, name=f"{name}/Sigmoid")
        gate = net.op("Mul", gate, sigmoid, name=f"{name}/SiLU")
        y = net.op("Mul", gate, self._linear(y, f"{name}.up", s.width, s.inner), name=f"{name}/Mul")
        return net.op(
            "Add", x, self._linear(y, f"{name}.down", s.inner, s.width), name=f"{name}/Add"
        )

    def _attention(
        self, x: ir.Value, bias: ir.Value, turns: tuple[ir.Value, ir.Value], name: str, layer: int
    ) -> ir.Value:
        net, s = self.net, self.sizes
        kinds = {"query": s.heads, "key": s.groups, "value": s.groups}
        parts = {}
        for kind, heads in kinds.items():
            y = self._linear(x, f"{name}.{kind}", s.width, heads * s.size)
            split = self._integers(0, 0, heads, s.size)
            y = net.op("Reshape", y, split, name=f"{name}/{kind}/Reshape")
            y = net.op("Transpose", y, name=f"{name}/{kind}/Transpose", perm=[0, 2, 1, 3])
            parts[kind] = y if kind == "value" else self._turned(y, turns, f"{name}/{kind}")
        for kind in ("key", "value"):
            shape = (self.batch, s.groups, self.past, s.size)
            past = net.input(f"past.{layer}.{kind}", shape)
            parts[kind] = net.op("Concat", past, parts[kind], name=f"{name}/{kind}/Concat", axis=2)
            longer = (self.batch, s.groups, self.total, s.size)
            net.output(parts[kind], f"present.{layer}.{kind}", longer)
        keys, values = (self._repeated(parts[kind], f"{name}/{kind}") for kind in ("key", "value"))
        keys = net.op("Transpose", keys, name=f"{name}/keys/Transpose", perm=[0, 1, 3, 2])
        scores = net.op("MatMul", parts["query"], keys, name=f"{name}/scores")
        scores = net.op("Mul", scores, self._number(s.size**-0.5), name=f"{name}/scale")
        scores = net.op("Add", scores, bias, name=f"{name}/mask")
        weights = net.op("Softmax", scores, name=f"{name}/Softmax", axis=-1)
        y = net.op("MatMul", weights, values, name=f"{name}/context")
        y = net.op("Transpose", y, name=f"{name}/Transpose", perm=[0, 2, 1, 3])
        y = net.op("Reshape", y, self._integers(0, 0, s.width), name=f"{name}/Reshape")
        return self._linear(y, f"{name}.out", s.width, s.width)

    def _turned(self, x: ir.Value, turns: tuple[ir.Value, ir.Value], name: str) -> ir.Value:
        """Return `x · cos + (-right half, left half) · sin`."""
        net, half = self.net, self.sizes.size // 2
        last, big = self._integers(3), self._integers(np.iinfo(np.int64).max)
        first = (self._integers(0), self._integers(half), last)
        left = net.op("Slice", x, *first, name=f"{name}/left")
        right = net.op("Slice", x, self._integers(half), big, last, name=f"{name}/right")
        right = net.op("Neg", right, name=f"{name}/Neg")
        turned = net.op("Concat", right, left, name=f"{name}/halves", axis=-1)
        y = net.op("Mul", x, turns[0], name=f"{name}/cos")
        return net.op(
            "Add", y, net.op("Mul", turned, turns[1], name=f"{name}/sin"), name=f"{name}/Add"
        )

    def _repeated(self, x: ir.Value, name: str) -> ir.Value:
        """Return each group of keys or values once for every head that reads it."""
        net, s = self.net, self.sizes
        y = net.op("Unsqueeze", x, self._integers(2), name=f"{name}/Unsqueeze")
        y = net.op(
            "Expand", y, self._integers(1, 1, s.heads // s.groups, 1, 1), name=f"{name}/Expand"
        )
        shape = net.op("Shape", x, name=f"{name}/Shape")
        batch, length = (
            net.op("Slice", shape, self._integers(at), self._integers(at + 1), name=f"{name}/{at}")
            for at in (0, 2)
        )
        heads, size = self._integers(s.heads), self._integers(s.size)
        whole = net.op("Concat", batch, heads, length, size, name=f"{name}/shape", axis=0)
        return net.op("Reshape", y, whole, name=f"{name}/heads")

    def _linear(self, x: ir.Value, name: str, depth: int, width: int) -> ir.Value:
        weight = self.net.constant(f"{name}.weight", self.net.normal((depth, width), depth**-0.5))
        return self.net.op("MatMul", x, weight, name=f"{name}/MatMul")

    def _norm(self, x: ir.Value, name: str) -> ir.Value:
        """Return the root mean square norm, written out as exporters do."""
        net = self.net
        scale = 1 + net.normal((self.sizes.width,), 0.1)
        square = net.op("Pow", x, self._number(2.0), name=f"{name}/Pow")
        mean = net.op("ReduceMean", square, name=f"{name}/mean", axes=[-1])
        above = net.op("Add", mean, self._number(1e-5), name=f"{name}/epsilon")
        root = net.op("Sqrt", above, name=f"{name}/Sqrt")
        y = net.op(
            "Mul", x, net.op("Reciprocal", root, name=f"{name}/Reciprocal"), name=f"{name}/x"
        )
        return net.op("Mul", net.constant(f"{name}.weight", scale), y, name=f"{name}/Mul")
