"""Rounded weights → the graph that the model builder wrote, in the place of its own.

Those in 8 bits take the place of 4: the node, and an embedding of the same weights, say so.

What a node's weights are is known by its name, and believed only where the numbers that the builder
stored are near those of the source: a graph that is cut otherwise keeps what it has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vermilion.llm.engine.description import Description, Product
from vermilion.llm.rounding.forward import Floats, matrix_numbers
from vermilion.llm.rounding.round_products import Rounded

_NODE = re.compile(r"layers\.(\d+)/.*?/(\w+?)_proj/|/(lm_head)/")
# The builder's words for products → those of a description.
_PARTS: Mapping[str, tuple[str, ...]] = {
    "qkv": ("attn_q", "attn_k", "attn_v"), "q": ("attn_q",), "k": ("attn_k",), "v": ("attn_v",),
    "o": ("attn_output",), "gate": ("ffn_gate",), "up": ("ffn_up",), "down": ("ffn_down",),
    "gate_up": ("ffn_gate", "ffn_up"),
}  # fmt: skip
# The error that 4 bits make is a tenth of the weights' size, about; of other weights it is more
# than all of it.
_NEAR = 0.5
_MIDDLE = 8  # the zero point of blocks that have none of their own
_ALIGNMENT = 4096  # of tensors that are added to a file of weights


@dataclass(frozen=True, eq=False)
class Stored:
    """A node of the graph with weights in 4 bits, and the products of the source that it is."""

    name: str
    products: tuple[str, ...]
    depth: int
    columns: int
    block: int
    codes: Any  # tensors of the model
    scales: Any
    zeros: Any | None


class BuiltGraph:
    """A graph that the builder wrote, and the file of its weights."""

    def __init__(self, file: Path) -> None:
        import onnx

        self.file = file
        self.model = onnx.load(file, load_external_data=False)
        self._known = {one.name: one for one in self.model.graph.initializer}
        self._left_room: set[str] = set()  # files of weights with bytes that nobody reads

    def nodes(self) -> Iterator[Stored]:
        """Yield the nodes of products in 4 bits whose names are known."""
        for node in self.model.graph.node:
            found = _NODE.search(node.name) if node.op_type == "MatMulNBits" else None
            if found is None:
                continue
            own = {one.name: one.i for one in node.attribute}
            parts: tuple[str, ...] = ("output",)
            if found[1] is not None:
                parts = tuple(f"{found[1]}.{one}" for one in _PARTS.get(found[2], ()))
            inputs = [*node.input[:4], "", ""][:4]
            tensors = [self._known.get(name) for name in inputs[1:]]
            if own.get("bits", 4) == 4 and parts and tensors[0] is not None:
                yield Stored(
                    node.name, parts, own["K"], own["N"], own["block_size"], tensors[0],
                    tensors[1], tensors[2],
                )  # fmt: skip

    def is_embedding(self, node: Stored) -> bool:
        """Say whether a node's weights are the rows that tokens begin with, too."""
        names = {node.codes.name}
        for one in self.model.graph.node:
            if one.op_type == "Reshape" and one.input[0] in names:
                names.add(one.output[0])
        return any(
            one.op_type == "GatherBlockQuantized" and one.input[0] in names
            for one in self.model.graph.node
        )

    def read(self, tensor: Any) -> NDArray[Any]:
        """Return the numbers of a tensor."""
        from onnx import numpy_helper

        return numpy_helper.to_array(tensor, str(self.file.parent))

    def numbers(self, node: Stored) -> Floats:
        """Return what a node's weights stand for: (depth, columns)."""
        packed = self.read(node.codes).reshape(node.columns, -1)
        codes = _unpacked(packed)
        scales = self.read(node.scales).astype(np.float32).reshape(node.columns, -1)
        zeros = np.full(scales.shape, _MIDDLE, np.uint8)
        if node.zeros is not None:
            zeros = _unpacked(self.read(node.zeros).reshape(node.columns, -1))
            zeros = zeros[:, : scales.shape[1]]
        wide = codes.reshape(node.columns, scales.shape[1], -1).astype(np.float32)
        made = (wide - zeros[:, :, None]) * scales[:, :, None]
        return made.reshape(node.columns, -1)[:, : node.depth].T

    def write(self, node: Stored, rounded: Rounded) -> None:
        """Put rounded weights in the place of a node's."""
        short = -node.depth % node.block
        codes = np.pad(rounded.codes, ((0, 0), (0, short)))
        if short:
            codes[:, node.depth :] = rounded.zeros[:, -1:]
        if rounded.bits == 8:
            self._widen(node)
        put = _packed if rounded.bits == 4 else np.ascontiguousarray
        self._put(node.codes, put(codes))
        scales = self.read(node.scales)
        self._put(node.scales, rounded.scales.astype(scales.dtype))
        if node.zeros is not None:
            self._put(node.zeros, put(rounded.zeros))
        elif (rounded.zeros != 1 << (rounded.bits - 1)).any():
            self._add_zeros(node, put(rounded.zeros))

    def _widen(self, node: Stored) -> None:
        """Say of a node, and of the embedding that has its weights, that a code is a byte."""
        from onnx import helper, numpy_helper

        names = {node.codes.name}
        for one in self.model.graph.node:
            if one.op_type == "Reshape" and one.input[0] in names:
                names.add(one.output[0])
                wide = np.array([node.columns, self._blocks(node) * node.block], np.int64)
                shape = numpy_helper.from_array(wide, f"{one.output[0]}_shape")
                self.model.graph.initializer.append(shape)
                one.input[1] = shape.name
            reads = one.op_type in ("MatMulNBits", "GatherBlockQuantized")
            if reads and names & set(one.input):
                kept = [own for own in one.attribute if own.name != "bits"]
                del one.attribute[:]
                one.attribute.extend([*kept, helper.make_attribute("bits", 8)])
        node.codes.dims[-1] = node.block
        if node.zeros is not None:
            del node.zeros.dims[:]
            node.zeros.dims.extend([node.columns, self._blocks(node)])
            names.add(node.zeros.name)
        # What was declared of them has the old shapes.
        kept = [one for one in self.model.graph.value_info if one.name not in names]
        del self.model.graph.value_info[:]
        self.model.graph.value_info.extend(kept)

    @staticmethod
    def _blocks(node: Stored) -> int:
        return -(-node.depth // node.block)

    def _add_zeros(self, node: Stored, packed: NDArray[np.uint8]) -> None:
        """Give a node zero points, beside its codes."""
        from onnx import TensorProto

        made = self.model.graph.initializer.add()
        made.name, made.data_type = f"{node.codes.name}_zeros", TensorProto.UINT8
        made.dims.append(packed.size)
        places = {one.key: one.value for one in node.codes.external_data}
        if places:
            made.data_location = TensorProto.EXTERNAL
            self._append(made, places["location"], packed.nbytes)
        self._put(made, packed)
        own = next(one for one in self.model.graph.node if one.name == node.name)
        inputs = [*own.input[:3], made.name, *own.input[4:]]
        del own.input[:]
        own.input.extend(inputs)

    def _put(self, tensor: Any, values: NDArray[Any]) -> None:
        data = np.ascontiguousarray(values).tobytes()
        places = {one.key: one.value for one in tensor.external_data}
        if not places:
            tensor.raw_data = data
            return
        if int(places.get("length", len(data))) != len(data):
            self._append(tensor, places["location"], len(data))
            self._left_room.add(places["location"])
            places = {one.key: one.value for one in tensor.external_data}
        with (self.file.parent / places["location"]).open("r+b") as stream:
            stream.seek(int(places.get("offset", 0)))
            stream.write(data)

    def _append(self, tensor: Any, location: str, size: int) -> None:
        """Give a tensor its place at the end of a file."""
        file = self.file.parent / location
        offset = _aligned(file.stat().st_size)
        del tensor.external_data[:]
        for key, value in (("location", location), ("offset", offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        with file.open("r+b") as stream:
            stream.truncate(offset + size)

    def save(self) -> None:
        """Write the graph; files of weights lose what nobody reads any more."""
        import onnx

        for location in sorted(self._left_room):
            self._compact(location)
        self._left_room.clear()
        onnx.save(self.model, self.file)

    def _compact(self, location: str) -> None:
        file = self.file.parent / location
        aside = file.with_name(f"{file.name}.new")
        with file.open("rb") as old, aside.open("wb") as new:
            for tensor in _tensors(self.model.graph):
                places = {one.key: one for one in tensor.external_data}
                if not places or places["location"].value != location:
                    continue
                old.seek(int(places["offset"].value) if "offset" in places else 0)
                data = old.read(int(places["length"].value) if "length" in places else -1)
                new.seek(_aligned(new.tell()))
                del tensor.external_data[:]
                for key, value in (
                    ("location", location), ("offset", new.tell()), ("length", len(data)),
                ):  # fmt: skip
                    tensor.external_data.add(key=key, value=str(value))
                new.write(data)
        aside.replace(file)


def wanted_products(graph: BuiltGraph, description: Description) -> Mapping[str, Stored]:
    """Return the nodes whose weights are those of products of the source, by node of the graph."""
    products = {one.node: one for one in description.operations if isinstance(one, Product)}
    found = {}
    for node in graph.nodes():
        own = [products.get(name) for name in node.products]
        if all(own) and _is_near(graph, node, [one for one in own if one is not None]):
            found[node.name] = node
    return found


def _is_near(graph: BuiltGraph, node: Stored, products: Sequence[Product]) -> bool:
    """Say whether a node has the weights of products, rounded; some columns tell."""
    if sum(one.matrix.columns for one in products) != node.columns:
        return False
    wanted = np.concatenate([matrix_numbers(one.matrix) for one in products], axis=1)
    if wanted.shape[0] != node.depth:
        return False
    step = max(1, node.columns // 64)
    found, wanted = graph.numbers(node)[:, ::step], wanted[:, ::step]
    return bool(np.linalg.norm(found - wanted) < _NEAR * np.linalg.norm(wanted))


def _tensors(graph: Any) -> Iterator[Any]:
    """Yield all tensors of a graph and of those in its nodes."""
    yield from graph.initializer
    for node in graph.node:
        for one in node.attribute:
            yield from (one.t, *one.tensors)
            for inner in (one.g, *one.graphs):
                yield from _tensors(inner)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _unpacked(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    out = np.empty((*packed.shape[:-1], packed.shape[-1] * 2), np.uint8)
    out[..., ::2], out[..., 1::2] = packed & 15, packed >> 4
    return out


def _packed(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Put two codes into a byte, the first into its lower half."""
    if codes.shape[-1] % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)))
    return np.asarray(codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4)), np.uint8)
