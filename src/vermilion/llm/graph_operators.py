"""The operators of a decoder that is built already: read off its graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx_ir as ir

from vermilion.errors import ModelError, OptionError
from vermilion.ir.attributes import integer
from vermilion.llm.architecture import Quantization
from vermilion.llm.operators import Operator, attention, merged

_ROLES = (
    "qkv_proj",
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "gate_up_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "lm_head",
    "q_norm",
    "k_norm",
    "final_norm",
    "q_rotary",
    "k_rotary",
)
_NORMS = {
    "RMSNormalization",
    "SimplifiedLayerNormalization",
    "SkipSimplifiedLayerNormalization",
}
_ACTIVATIONS = {"Sigmoid": "SiLU", "Swish": "SiLU", "Gelu": "GELU", "FastGelu": "GELU"}
# How many `Mul` nodes belong to an activation and its product.
_MULTIPLIED = {"Sigmoid": 2, "Swish": 1, "Gelu": 1, "FastGelu": 1}


@dataclass(frozen=True)
class GraphOperators:
    """What a graph needs, and how many of its nodes are none of these (masks, casts, adds)."""

    operators: tuple[Operator, ...]
    other_nodes: Counter[str]
    layers: int
    activation_bytes: int


def operators_of_graph(model: ir.Model, head_size: int) -> GraphOperators:
    """Return the operators of a decoder's graph.

    Raises: ModelError for a graph without attention: it is no decoder.
    """
    found: list[Operator] = []
    other: Counter[str] = Counter()
    heads = _heads(model)
    multiplied = 0
    for node in model.graph:
        mine = list(_from_node(node, head_size, heads))
        found += mine
        multiplied += _MULTIPLIED.get(node.op_type, 0) * len(mine)
        if not mine:
            other[node.op_type] += 1
    other["Mul"] -= min(multiplied, other["Mul"])
    layers = sum(one.count for one in found if one.op_type == "GroupQueryAttention")
    if layers == 0:
        raise ModelError(
            "the graph has no GroupQueryAttention: it is no decoder of the model builder",
            where=str(model.graph.name),
            hint="build it with `vermilion llm build`",
        )
    return GraphOperators(merged(found), +other, layers, _activation_bytes(model))


def _heads(model: ir.Model) -> dict[str, int]:
    """Return the heads of Q and K by the roles of what works on them and need not repeat them."""
    for node in model.graph:
        if node.op_type == "GroupQueryAttention":
            queries, keys = _attribute(node, "num_heads"), _attribute(node, "kv_num_heads")
            return {"q_norm": queries, "q_rotary": queries, "k_norm": keys, "k_rotary": keys}
    return {}


def _from_node(node: ir.Node, head_size: int, heads: Mapping[str, int]) -> Iterator[Operator]:
    name = node.name or ""
    role = next((role for role in _ROLES if role in name), node.op_type)
    if node.op_type == "MatMulNBits":
        shape = {"K": _attribute(node, "K"), "N": _attribute(node, "N")}
        # A builder that prunes the head leaves this to the last token; the others do not.
        yield Operator("MatMulNBits", (role,), shape, 1, _stored(node))
    elif node.op_type == "MatMul" and (weight := _constant_shape(node, 1)) and len(weight) == 2:
        yield Operator("MatMul", (role,), {"K": weight[0], "N": weight[1]}, 1)
    elif node.op_type == "GroupQueryAttention":
        yield attention(
            _attribute(node, "num_heads"),
            _attribute(node, "kv_num_heads"),
            head_size,
            1,
            rotates=_attribute(node, "do_rotary", 0) == 1,
        )
    elif node.op_type in _NORMS:
        index = 2 if node.op_type == "SkipSimplifiedLayerNormalization" else 1
        width = _constant_shape(node, index)
        if width:
            role = role if role in _ROLES else "layer norms"
            over = {"heads": heads[role]} if role in heads else {}
            yield Operator("RMSNorm", (role,), {"hidden": width[0], **over}, 1)
    elif node.op_type == "RotaryEmbedding":
        count = heads.get(role, 0) or _attribute(node, "num_heads", 0)
        yield Operator("RotaryEmbedding", (role,), {"heads": count, "head_size": head_size}, 1)
    elif node.op_type in _ACTIVATIONS and (depth := _reader_depth(node)):
        yield Operator(f"{_ACTIVATIONS[node.op_type]}Mul", ("mlp",), {"width": depth}, 1)
    elif node.op_type in ("GatherBlockQuantized", "Gather") and "embed" in name:
        yield from _embedding(node)


def _embedding(node: ir.Node) -> Iterator[Operator]:
    table = _constant_shape(node, 0)
    if node.op_type == "Gather" and len(table) == 2:
        yield Operator("Embedding", ("embed_tokens",), dict(zip(_TABLE, table, strict=True)), 1)
    elif node.op_type == "GatherBlockQuantized":
        scales = _constant_shape(node, 2)
        block = _attribute(node, "block_size", 128)
        if len(scales) == 2:
            shape = {"vocabulary": scales[0], "hidden": scales[1] * block}
            bits, is_symmetric = _attribute(node, "bits", 4), len(node.inputs) < 4
            weights = _quantization(node, bits, block, is_symmetric)
            yield Operator("Embedding", ("embed_tokens",), shape, 1, weights)


_TABLE = ("vocabulary", "hidden")


def _stored(node: ir.Node) -> Quantization:
    """Both forms are read: scales with a row a column of the product, and all in one row."""
    zero_points = node.inputs[3] if len(node.inputs) > 3 else None
    return _quantization(
        node, _attribute(node, "bits", 4), _attribute(node, "block_size"), zero_points is None
    )


def _quantization(node: ir.Node, bits: int, block: int, is_symmetric: bool) -> Quantization:
    try:
        return Quantization(bits, block, is_symmetric, _scale_bytes(node))
    except OptionError as error:
        raise ModelError(error.message, where=f"node `{node.name}`", hint=error.hint) from error


def _scale_bytes(node: ir.Node) -> int:
    scales = node.inputs[2] if len(node.inputs) > 2 else None
    is_half = scales is not None and scales.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
    return 2 if is_half else 4


def _attribute(node: ir.Node, name: str, default: int | None = None) -> int:
    value = integer(node, name, default)
    if not 0 <= value < 1 << 31:
        raise ModelError(f"`{name}` of `{node.op_type}` is {value}", where=f"node `{node.name}`")
    return value


def _constant_shape(node: ir.Node, index: int) -> tuple[int, ...]:
    """Return the shape of an input that is a stored weight, empty for any other."""
    if index >= len(node.inputs):
        return ()
    value = node.inputs[index]
    if value is None or value.const_value is None:
        return ()
    return tuple(value.const_value.shape.numpy())


def _reader_depth(node: ir.Node) -> int:
    """Return K of the product that reads an activation through its multiplications, 0 for none."""
    value = node.outputs[0]
    for _ in range(4):
        readers = [use.node for use in value.uses()]
        for reader in readers:
            if reader.op_type == "MatMulNBits":
                return _attribute(reader, "K")
            if reader.op_type == "MatMul":
                weight = _constant_shape(reader, 1)
                return weight[0] if weight else 0
        following = [reader for reader in readers if reader.op_type in ("Mul", "Cast")]
        if not following:
            return 0
        value = following[0].outputs[0]
    return 0


def _activation_bytes(model: ir.Model) -> int:
    for value in model.graph.inputs:
        if "past" in (value.name or "") and value.dtype is not None:
            return max(1, int(value.dtype.itemsize))
    return 4
