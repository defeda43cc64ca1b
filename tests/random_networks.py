"""Random networks as exporters write them: what a quantizer is given, in every form it comes in.

Grown from a seed out of blocks (convolutions of all kinds, products, Einsum, attention with masks,
recurrent layers, branches and loops), with weights that are shared, computed, in Constant nodes or
listed as inputs; of opset 8 and later, in float32, float16 or bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

Array = NDArray[Any]

OPSETS = (8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 17, 18, 19, 20, 21, 22, 23)
# Source: onnx, docs/Versioning.md: the IR version that came with an opset.
_IR_OF = {8: 3, 9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 14: 7, 15: 8, 16: 8, 17: 8, 18: 8, 19: 9, 20: 9}
KINDS = {
    "float32": (TensorProto.FLOAT, np.dtype(np.float32)),
    "float16": (TensorProto.FLOAT16, np.dtype(np.float16)),
    "bfloat16": (TensorProto.BFLOAT16, np.dtype(ml_dtypes.bfloat16)),
}


@dataclass(frozen=True)
class Tensor:
    """A tensor of the network: an image (1, C, H, W), or rows (B, T, D)."""

    name: str
    shape: tuple[int, ...]


@dataclass
class Network:
    """A network, and how it is stored."""

    seed: int
    opset: int
    kind: str
    model: onnx.ModelProto
    inputs: Mapping[str, tuple[int, ...]]
    is_external: bool
    blocks: list[str] = field(default_factory=list)

    def samples(self, count: int) -> list[dict[str, Array]]:
        """Return inputs, the same each time."""
        random = np.random.default_rng([self.seed, 1])
        dtype = KINDS[self.kind][1]
        return [
            {n: random.standard_normal(shape).astype(dtype) for n, shape in self.inputs.items()}
            for _ in range(count)
        ]


class Graph:
    """Nodes and constants of one graph; branches and bodies have one of their own."""

    def __init__(self, random: np.random.Generator, opset: int, kind: str, prefix: str) -> None:
        self.random, self.opset, self.kind, self.prefix = random, opset, kind, prefix
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.weights: list[tuple[str, tuple[int, ...]]] = []
        self.count = 0

    def maybe(self, chance: float) -> bool:
        return bool(self.random.random() < chance)

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.random.integers(len(choices)))]

    def name(self, word: str) -> str:
        self.count += 1
        return f"{self.prefix}{word}{self.count}"

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        """Add a node; give its first output."""
        names = [self.name(op_type.lower()) for _ in range(outputs)]
        node_name = "" if self.maybe(0.1) else self.name(f"node_{op_type}")
        domain = attributes.pop("domain", "")
        self.nodes.append(
            helper.make_node(
                op_type, list(inputs), names, name=node_name, domain=domain, **attributes
            )
        )
        return names[0]

    def constant(self, array: Array) -> str:
        """Add a constant of any type, as an initializer or a node."""
        name = self.name("c")
        tensor = helper.make_tensor(
            name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape, array.tobytes(), True
        )
        if self.maybe(0.15):
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.constants.append(tensor)
        return name

    def real(self, array: Array) -> str:
        """Add a constant of the network's own kind of numbers."""
        return self.constant(np.asarray(array).astype(KINDS[self.kind][1]))

    def whole(self, *numbers: int) -> str:
        return self.constant(np.asarray(numbers, np.int64))

    def weight(self, shape: tuple[int, ...], fan: int) -> str:
        """Add a weight, or take one of that shape that is there; at times it is computed."""
        same = [name for name, other in self.weights if other == shape]
        if same and self.maybe(0.25):
            return str(self.pick(*same))
        array = self.random.standard_normal(shape) / np.sqrt(fan)
        if self.maybe(0.1):  # one channel far larger than the others
            array[(0,) * (len(shape) - 1)] *= 6.0
        name = self.real(array)
        if self.maybe(0.05):
            name = self.op("Identity", name)
        self.weights.append((name, shape))
        return name

    def vector(self, size: int, low: float = -0.5, high: float = 0.5) -> str:
        return self.real(self.random.uniform(low, high, size))

    def inner(self, word: str) -> Graph:
        return Graph(self.random, self.opset, self.kind, f"{self.prefix}{word}_")

    def body(
        self, name: str, inputs: Sequence[tuple[str, int, Sequence[int] | None]], *outputs: Tensor
    ) -> onnx.GraphProto:
        """Return this graph as a body; inputs are (name, element type, shape)."""
        kind = KINDS[self.kind][0]
        return helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info(*row) for row in inputs],
            [
                helper.make_tensor_value_info(
                    t.name, TensorProto.BOOL if not t.shape else kind, t.shape
                )
                for t in outputs
            ],
            self.constants,
        )


Block = Callable[[Graph, Tensor], Tensor | None]


def grow(seed: int) -> Network:
    """Return the network of a seed."""
    from random_network_blocks import IMAGE_BLOCKS, ROW_BLOCKS, as_rows

    random = np.random.default_rng(seed)
    opset = int(random.choice(OPSETS))
    kind = str(random.choice(["float32"] * 7 + ["float16", "float16", "bfloat16"]))
    if opset < 13:
        kind = "float32" if kind == "bfloat16" else kind
    graph = Graph(random, opset, kind, "")
    is_image = graph.maybe(0.6)
    shape: tuple[int, ...] = (
        (1, graph.pick(3, 4, 8), 12, 12) if is_image else (graph.pick(1, 2), 6, graph.pick(8, 16))
    )
    tensors = [Tensor("x", shape)]
    used = []
    for _ in range(int(random.integers(2, 9))):
        now = tensors[-1] if graph.maybe(0.8) else graph.pick(*tensors)
        blocks = IMAGE_BLOCKS if len(now.shape) == 4 else ROW_BLOCKS
        name = str(random.choice(list(blocks)))
        made = blocks[name](graph, now)
        if made is not None:
            used.append(name)
            tensors.append(made)
            if len(made.shape) == 4 and graph.maybe(0.08):
                tensors.append(as_rows(graph, made))
    return _finished(seed, graph, tensors, used, shape)


def _finished(
    seed: int, graph: Graph, tensors: Sequence[Tensor], used: list[str], shape: tuple[int, ...]
) -> Network:
    code = KINDS[graph.kind][0]
    last = tensors[-1]
    outputs = [last] if last.name != "x" else [Tensor(graph.op("Identity", "x"), shape)]
    middle = tensors[len(tensors) // 2]
    if graph.maybe(0.3) and middle.name not in ("x", last.name):
        outputs.append(middle)
    inputs = [helper.make_tensor_value_info("x", code, shape)]
    if graph.opset < 9 or graph.maybe(0.1):
        inputs += [
            helper.make_tensor_value_info(c.name, c.data_type, c.dims) for c in graph.constants
        ]
    body = helper.make_graph(
        graph.nodes,
        "network",
        inputs,
        [helper.make_tensor_value_info(t.name, code, t.shape) for t in outputs],
        graph.constants,
    )
    imports = [helper.make_opsetid("", graph.opset)]
    if any(node.domain == "com.microsoft" for node in graph.nodes):
        imports.append(helper.make_opsetid("com.microsoft", 1))
    model = helper.make_model(body, opset_imports=imports, ir_version=_IR_OF.get(graph.opset, 10))
    is_external = graph.maybe(0.2)
    return Network(seed, graph.opset, graph.kind, model, {"x": shape}, is_external, used)
