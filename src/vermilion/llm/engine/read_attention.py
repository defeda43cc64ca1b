"""GroupQueryAttention and RotaryEmbedding → attention over our cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.ir.attributes import integer, number
from vermilion.llm.engine.description import Attention, Rotation, Rows
from vermilion.llm.engine.graph_values import (
    floats_of,
    is_there,
    refuse,
)

# Attributes of GroupQueryAttention (ONNX Runtime's ContribOperators.md) that are read here, or that
# change nothing about one sequence after the other.
_KNOWN = {
    "do_rotary",
    "kv_num_heads",
    "local_window_size",
    "num_heads",
    "rotary_interleaved",
    "scale",
    "softcap",
}
# … and those whose default is understood, with it.
_DEFAULTS: dict[str, tuple[int | str, ...]] = {
    "smooth_softmax": (0, -1),
    "qk_output": (0,),
    "k_quant_type": ("NONE",),
    "v_quant_type": ("NONE",),
    "kv_cache_bit_width": (0,),
    # How ONNX Runtime's own cache lies in memory; ours holds every token.
    "sliding_window_cache": (0, 1),
}


def read_attention(node: ir.Node, sources: Sequence[Rows]) -> Attention:
    """Read the node; `sources` are the packed rows, or queries, keys and values."""
    _check(node)
    heads, key_heads = integer(node, "num_heads"), integer(node, "kv_num_heads")
    packed = len(sources) == 1
    parts = heads + 2 * key_heads if packed else heads
    size, rest = divmod(sources[0].width, parts)
    if rest or heads % key_heads or size % LANES:
        raise refuse(
            node,
            f"{heads} heads over {key_heads} of keys, in rows of {sources[0].width}: heads are "
            f"whole multiples of {LANES} numbers",
        )
    if packed:
        sources = _parts(node, sources[0], (heads, key_heads, key_heads), size)
    query, key, value = sources
    if key.width != key_heads * size or value.width != key_heads * size or not value.is_plain:
        raise refuse(node, "keys or values have another width")
    if integer(node, "do_rotary", 0):
        rotation = read_rotation(node, 7)
        if query.rotation is not None or key.rotation is not None:
            raise refuse(node, "queries are turned twice")
        query, key = replace(query, rotation=rotation), replace(key, rotation=rotation)
    if (query.rotation is None) != (key.rotation is None):
        raise refuse(node, "queries are turned and keys are not, or the other way round")
    for rows in (query, key):
        if rows.norm is not None and rows.norm.weight.size != size:
            raise refuse(node, f"a norm of {rows.norm.weight.size} for heads of {size}")
        if rows.rotation is not None and 2 * rows.rotation.cosines.shape[1] > size:
            raise refuse(node, "more numbers are turned than a head has")
    if query.rotation is not None and key.rotation is not None:
        _check_alike(node, query.rotation, key.rotation)
    output = node.outputs[0].name or ""
    window = integer(node, "local_window_size", -1)
    scale = number(node, "scale", 0.0) or 1.0 / math.sqrt(size)
    return Attention(
        node.name or "", query, key, value, output, heads, key_heads, size, scale,
        max(0, window), number(node, "softcap", 0.0),
    )  # fmt: skip


def _check_alike(node: ir.Node, query: Rotation, key: Rotation) -> None:
    same = query is key or (
        np.array_equal(query.cosines, key.cosines) and np.array_equal(query.sines, key.sines)
    )
    if not same:
        raise refuse(node, "queries and keys are turned differently")


def _parts(node: ir.Node, rows: Rows, heads: Sequence[int], size: int) -> list[Rows]:
    if not rows.is_plain:
        raise refuse(node, "packed heads were normed or turned together")
    found, offset = [], rows.offset
    for count in heads:
        found.append(Rows(rows.buffer, offset, count * size))
        offset += count * size
    return found


def _check(node: ir.Node) -> None:
    for name, attribute in node.attributes.items():
        if name not in _KNOWN and attribute.value not in _DEFAULTS.get(name, ()):
            raise refuse(node, f"the attribute `{name}` is not understood")
    for index in range(9, len(node.inputs)):
        if is_there(node, index):
            raise refuse(node, f"input {index} is given (a bias, a sink or scales of the cache)")


def read_rotation(node: ir.Node, index: int) -> Rotation:
    """Read cosines and sines from input `index` on."""
    for name in ("rotary_interleaved", "interleaved"):
        if integer(node, name, 0):
            raise refuse(node, "neighbouring numbers are turned, not halves of a head")
    if number(node, "scale", 1.0) != 1.0 and node.op_type == "RotaryEmbedding":
        raise refuse(node, "it scales what it turns")
    cosines, sines = floats_of(node, index), floats_of(node, index + 1)
    if cosines.ndim != 2 or cosines.shape != sines.shape:
        raise refuse(node, "cosines and sines have different shapes")
    return Rotation(cosines, sines)
