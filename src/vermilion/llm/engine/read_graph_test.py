"""Graphs of a few nodes, made by hand → what is read of them, or why not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from small_decoders import HIDDEN, LAYERS, VOCABULARY, Options, decoder_model
from vermilion.errors import ModelError, UnsupportedError
from vermilion.llm.engine.description import Attention, Description, Product, RowOperation
from vermilion.llm.engine.matrices import BlockMatrix, PlainMatrix
from vermilion.llm.engine.read_graph import read_graph

Array = NDArray[Any]


class Changed:
    """A decoder's graph, to put nodes into and take them out of."""

    def __init__(self, options: Options | None = None) -> None:
        self.model = decoder_model(options or Options(bits=32))
        self.nodes = self.model.graph.node

    def at(self, name: str) -> onnx.NodeProto:
        return next(node for node in self.nodes if node.name == name)

    def weight(self, name: str, values: Array) -> str:
        self.model.graph.initializer.append(numpy_helper.from_array(values, name))
        return name

    def set(self, name: str, **attributes: Any) -> None:
        node = self.at(name)
        kept = [one for one in node.attribute if one.name not in attributes]
        del node.attribute[:]
        node.attribute.extend(kept)
        node.attribute.extend(helper.make_attribute(*pair) for pair in attributes.items())

    def before(self, name: str, kind: str, inputs: list[str], **attributes: Any) -> str:
        """Put a node before another, which reads it instead of its first input."""
        place = [node.name for node in self.nodes].index(name)
        made = helper.make_node(kind, inputs, ["put"], "put", **attributes)
        self.nodes.insert(place, made)
        self.nodes[place + 1].input[0] = "put"
        return "put"

    def read(self) -> Description:
        return read_graph(ir.from_proto(self.model))


def test_a_plain_decoder() -> None:
    found = Changed().read()
    kinds = [type(one) for one in found.operations]
    layer = [Product, Attention, Product, RowOperation, *[Product] * 2, RowOperation, Product]
    assert kinds == [RowOperation, *[*layer, RowOperation] * LAYERS, Product]
    assert (found.vocabulary, found.embedding.width) == (VOCABULARY, HIDDEN)
    assert found.hidden.buffer == found.body[-1].output
    assert found.logits_bound == 0.0


def test_weights_are_those_of_the_graph() -> None:
    changed = Changed(Options(bits=4, has_zeros=True, has_bias=True))
    weights = {one.name: numpy_helper.to_array(one) for one in changed.model.graph.initializer}
    found = {one.node: one for one in changed.read().operations if isinstance(one, Product)}
    qkv = found["layer0.qkv.y"]
    (part,) = qkv.matrix.parts
    assert isinstance(part, BlockMatrix)
    np.testing.assert_array_equal(part.codes.ravel(), weights["layer0.qkv.w"].ravel())
    np.testing.assert_array_equal(part.scales.ravel(), weights["layer0.qkv.s"].ravel())
    np.testing.assert_array_equal(qkv.bias, weights["layer0.qkv.bias"])
    assert part.zeros is not None
    packed = weights["layer0.qkv.z"].reshape(part.columns, -1)  # the first zero is the low half
    np.testing.assert_array_equal(part.zeros[:, 0], packed[:, 0] & 15)
    np.testing.assert_array_equal(part.zeros[:, 1], packed[:, 0] >> 4)


def test_plain_weights_are_those_of_the_graph() -> None:
    changed = Changed()
    weights = {one.name: numpy_helper.to_array(one) for one in changed.model.graph.initializer}
    (part,) = changed.read().head.matrix.parts
    assert isinstance(part, PlainMatrix)
    np.testing.assert_array_equal(part.values, weights["head.w"])


def test_heads_of_packed_rows_begin_behind_one_another() -> None:
    attended = Changed(Options(bits=32, head_size=32, turned=16, window=7)).read().attentions[1]
    places = [(rows.offset, rows.width) for rows in (attended.query, attended.key, attended.value)]
    assert places == [(0, 128), (128, 64), (192, 64)]  # four heads of 32, then two and two
    assert (attended.window, attended.head_size, attended.scale) == (7, 32, 0.25)
    assert attended.query.rotation is not None
    assert attended.query.rotation.cosines.shape[1] == 8
    assert attended.value.is_plain


def test_a_scale_that_is_missing_is_the_root_of_the_head_size() -> None:
    changed = Changed(Options(bits=32, head_size=32))
    for name in ("layer0.attended", "layer1.attended"):
        changed.set(name, scale=0.0)
    assert {one.scale for one in changed.read().attentions} == {1 / math.sqrt(32)}


def _places(description: Description) -> list[tuple[int, int]]:
    attended = description.attentions[0]
    assert attended.query.norm is not None
    return [(rows.offset, rows.width) for rows in (attended.query, attended.key, attended.value)]


def test_columns_that_are_split_or_picked() -> None:
    changed = Changed(Options(bits=32, has_head_norms=True))
    assert _places(changed.read()) == [(0, 64), (64, 32), (96, 32)]
    split = changed.at("layer0.part0")
    packed, place = split.input[0], list(changed.nodes).index(split)
    changed.nodes.remove(split)
    axis = changed.weight("axis", np.array([-1]))
    # Counted from either end; an end that is far beyond is the row's own.
    for number, edges in enumerate(((0, 64), (-64, 96), (96, 2**31 - 1))):
        first, last = (changed.weight(f"edge {at}", np.array([at])) for at in edges)
        inputs, name = [packed, first, last, axis], f"layer0.part{number}"
        changed.nodes.insert(place, helper.make_node("Slice", inputs, [name], name))
    assert _places(changed.read()) == [(0, 64), (64, 32), (96, 32)]


def test_logits_are_bounded_and_embeddings_scaled() -> None:
    found = Changed(Options(bits=32, logits_bound=2.0, embedding_factor=3.0)).read()
    assert (found.logits_bound, found.embedding.factor) == (2.0, 3.0)


def _set(name: str, **attributes: Any) -> Callable[[Changed], object]:
    return lambda changed: changed.set(name, **attributes)


def _kind(name: str, kind: str) -> Callable[[Changed], object]:
    return lambda changed: setattr(changed.at(name), "op_type", kind)


def _input(name: str, index: int, values: Array) -> Callable[[Changed], object]:
    def change(changed: Changed) -> None:
        changed.at(name).input[index] = changed.weight("another", values)

    return change


def _rewired(name: str, index: int, source: str) -> Callable[[Changed], object]:
    def change(changed: Changed) -> None:
        changed.at(name).input[index] = source

    return change


def _doubled_embedding(changed: Changed) -> None:
    changed.before("first.y", "Gather", ["table", "input_ids"])


def _picked(index: int, axis: int) -> Callable[[Changed], object]:
    def change(changed: Changed) -> None:
        source = changed.at("head.y").input[0]
        place = changed.weight("place", np.array(index))
        changed.before("head.y", "Gather", [source, place], axis=axis)

    return change


def _turned_again(changed: Changed) -> None:
    changed.set("layer0.attended", do_rotary=1)
    changed.at("layer0.attended").input[7:9] = ["cos", "sin"]


def _scaled(changed: Changed) -> None:
    source = changed.at("head.y").input[0]
    changed.before("head.y", "Mul", [source, changed.weight("two", np.array(2.0, np.float32))])


def _shifted(width: int) -> Callable[[Changed], object]:
    def change(changed: Changed) -> None:
        source = changed.at("layer0.down.y").input[0]
        bias = changed.weight("shift", np.ones(width, np.float32))
        changed.before("layer0.down.y", "Add", [source, bias])

    return change


BOUNDED = Options(bits=32, logits_bound=2.0)
NORMED = Options(bits=32, has_head_norms=True)
SPLIT = Options(bits=32, is_split=True)
BIASED = Options(bits=32, has_bias=True)
GELU = Options(bits=32, activation="gelu")
PLAIN = Options(bits=32)
REFUSED: dict[str, tuple[Options, Callable[[Changed], object], str]] = {
    "an operator": (PLAIN, _kind("layer1.gated", "Sub"), r"`Sub`.*layer1\.gated"),
    "two embeddings": (PLAIN, _doubled_embedding, r"a second embedding.*`put`"),
    "another row": (PLAIN, _picked(0, 1), r"other rows than the last.*`put`"),
    "another axis": (PLAIN, _picked(-1, 0), r"other rows than the last"),
    "an empty norm": (PLAIN, _input("first.y", 1, np.ones(0, np.float32)), "weight is empty"),
    "a norm of a part": (
        PLAIN, _input("first.y", 1, np.ones(7, np.float32)), "norm of 7 over rows",
    ),
    "a wide norm": (
        PLAIN, _input("layer0.middle.y", 2, np.ones(32, np.float32)), "another width",
    ),
    "alpha": (GELU, _set("layer0.active", alpha=2.0), r"alpha is not 1.*layer0\.active"),
    "another gate": (
        PLAIN, _rewired("layer0.active", 0, "layer0.up.y"), "gates another value than its own",
    ),
    "heads of another size": (
        NORMED, _input("layer0.q_norm.y", 1, np.ones(32, np.float32)), "norm of 32 for heads of 16",
    ),
    "parts that do not fill a row": (
        NORMED, _input("layer0.part0", 1, np.array([64, 32, 16])), "does not split the columns",
    ),
    "another split": (NORMED, _set("layer0.part0", axis=1), "does not split the columns"),
    "keys that stay": (
        SPLIT, _rewired("layer0.attended", 1, "layer0.k.y"), "turned and keys are not",
    ),
    "turned twice": (SPLIT, _turned_again, "turned twice"),
    "a number that scales rows": (PLAIN, _scaled, "something else than the embedded tokens"),
    "a sum with a weight": (PLAIN, _shifted(96), "something else than the bias of a product"),
    "a short bias": (
        BIASED, _input("layer0.qkv.biased", 1, np.ones(3, np.float32)), "another width",
    ),
    "a type": (PLAIN, _set("layer0.attended", num_heads="4"), "`num_heads` is STRING.*to be INT"),
    "no positive bound": (
        BOUNDED, _input("divided", 1, np.array(-2.0, np.float32)), "no positive number",
    ),
    "another bound": (
        BOUNDED, _input("bounded", 1, np.array(4.0, np.float32)), "by another number",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "change", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_refused(
    options: Options, change: Callable[[Changed], object], reason: str
) -> None:
    changed = Changed(options)
    changed.read()  # it is the change that is refused
    change(changed)
    with pytest.raises((UnsupportedError, ModelError), match=reason):
        changed.read()


def test_a_graph_of_no_decoder() -> None:
    node = helper.make_node("Identity", ["input_ids"], ["same"], "same")
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, "n"])
    graph = helper.make_graph([node], "nothing", [ids], [])
    with pytest.raises(UnsupportedError, match=r"no embedding of `input_ids` \(nothing\)"):
        read_graph(ir.from_proto(helper.make_model(graph)))
