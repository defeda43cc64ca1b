"""A graph's values while it is read: constants, attributes, what is known, attention.

What is not understood is an error. GroupQueryAttention and RotaryEmbedding become attention over
our cache.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.row import Source
from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.errors import UnsupportedError
from vermilion.ir.attributes import integer, number
from vermilion.llm.engine.description import Attention, Operation, Rotation, Rows
from vermilion.llm.engine.embedding import Embedding


def refuse(node: ir.Node, reason: str) -> UnsupportedError:
    """Return the error for a node that the native decoder cannot take."""
    return UnsupportedError(
        f"the native decoder cannot take this graph: {reason}",
        where=f"node `{node.name}` ({node.op_type})",
        hint="it runs on ONNX Runtime",
    )


def constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor of a value that is stored, or that a Constant gives."""
    if value is None:
        return None
    if value.const_value is not None:
        return value.const_value
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant":
        attribute = producer.attributes.get("value")
        return attribute.as_tensor() if attribute is not None else None
    return None


def scalar_of(value: ir.Value | None) -> float | None:
    """Return the number of a constant that is one number, None of anything else."""
    tensor = constant_of(value)
    if tensor is None or tensor.size != 1:
        return None
    return float(np.asarray(tensor.numpy()).reshape(-1)[0])


def array_of(node: ir.Node, index: int) -> NDArray[np.generic]:
    """Return a stored input.

    Raises: UnsupportedError where it is computed.
    """
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = constant_of(value)
    if tensor is None:
        raise refuse(node, f"input {index} is not stored in the model")
    return np.asarray(tensor.numpy())


def floats_of(node: ir.Node, index: int) -> NDArray[np.float32]:
    """Return a stored input as float32."""
    return np.ascontiguousarray(array_of(node, index), np.float32)


def is_there(node: ir.Node, index: int) -> bool:
    """Say whether an optional input is given."""
    return index < len(node.inputs) and node.inputs[index] is not None


# Inputs that only say which tokens are there: everything computed from them alone is known here.
_BOOKKEEPING = {"attention_mask", "position_ids"}


@dataclass(frozen=True)
class Activation:
    """An activation that waits for what it gates."""

    kind: Source
    source: Rows


@dataclass(frozen=True, eq=False)
class ByLength:
    """A table for sequences of at most `short` tokens, and one for longer ones."""

    short: int
    for_short: NDArray[np.float32]
    for_long: NDArray[np.float32]


@dataclass
class Reader:
    """What is known of the values of the graph so far, by name."""

    rows: dict[str, Rows] = field(default_factory=dict)
    sigmoids: dict[str, Rows] = field(default_factory=dict)
    activations: dict[str, Activation] = field(default_factory=dict)
    bookkeeping: set[str] = field(default_factory=lambda: set(_BOOKKEEPING))
    # `logits ÷ bound`, and the tanh of it: no rows until they are scaled back.
    divided: dict[str, tuple[Rows, float]] = field(default_factory=dict)
    bounded: dict[str, tuple[Rows, float]] = field(default_factory=dict)
    # Cosines and sines that are chosen by the length of the sequence.
    chosen: dict[str, ByLength] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    embedding: Embedding | None = None
    first: str = ""
    logits_bound: float = 0.0
    # Buffers that only the head may have bounded, and read the last row of.
    bounded_buffer: str = ""
    pruned_buffer: str = ""

    def of(self, node: ir.Node, index: int) -> Rows:
        """Return the rows that an input is."""
        value = node.inputs[index] if index < len(node.inputs) else None
        rows = self.rows.get(value.name or "") if value is not None else None
        if rows is None:
            raise refuse(node, f"input {index} is no row of activations")
        return rows

    def plain(self, node: ir.Node, index: int) -> Rows:
        """Return the rows that an input is, with nothing left to do to them."""
        rows = self.of(node, index)
        if not rows.is_plain:
            raise refuse(node, "it reads heads that were normed or turned for attention")
        return rows

    def is_rows(self, value: ir.Value | None) -> bool:
        """Say whether a value is rows of activations."""
        return value is not None and (value.name or "") in self.rows

    def new(self, node: ir.Node, width: int, output: int = 0) -> str:
        """Make an output of a node a buffer of its own; give its name."""
        name = name_of(node.outputs[output])
        self.rows[name] = Rows(name, 0, width)
        return name


def name_of(value: ir.Value | None) -> str:
    """Return a value's name, empty for none."""
    return (value.name or "") if value is not None else ""


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


def read_attention(reader: Reader, node: ir.Node, sources: Sequence[Rows]) -> Attention:
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
        rotation = read_rotation(reader, node, 7)
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
        query.short == key.short
        and np.array_equal(query.cosines, key.cosines)
        and np.array_equal(query.sines, key.sines)
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


def read_rotation(reader: Reader, node: ir.Node, index: int) -> Rotation:
    """Read cosines and sines from input `index` on."""
    for name in ("rotary_interleaved", "interleaved"):
        if integer(node, name, 0):
            raise refuse(node, "neighbouring numbers are turned, not halves of a head")
    if number(node, "scale", 1.0) != 1.0 and node.op_type == "RotaryEmbedding":
        raise refuse(node, "it scales what it turns")
    names = [name_of(value) for value in node.inputs[index : index + 2]]
    chosen = [reader.chosen[name] for name in names if name in reader.chosen]
    if len(chosen) == 2:
        if chosen[0].short != chosen[1].short:
            raise refuse(node, "cosines and sines are chosen by different lengths")
        cosines, sines = (np.concatenate([one.for_short, one.for_long]) for one in chosen)
        _check_tables(node, cosines, sines)
        return Rotation(cosines, sines, chosen[0].short)
    cosines, sines = floats_of(node, index), floats_of(node, index + 1)
    _check_tables(node, cosines, sines)
    return Rotation(cosines, sines)


def _check_tables(node: ir.Node, cosines: NDArray[np.float32], sines: NDArray[np.float32]) -> None:
    if cosines.ndim != 2 or cosines.shape != sines.shape:
        raise refuse(node, "cosines and sines have different shapes")


# Nodes that change nothing about the positions that pass through them.
_PASSES = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")


def is_position(value: ir.Value | None) -> bool:
    """Say whether a value is `position_ids` as they were given, in whatever shape."""
    while value is not None and value.name != "position_ids":
        maker = value.producer()
        if maker is None or maker.op_type not in _PASSES:
            return False
        value = maker.inputs[0]
    return value is not None


def read_choice(reader: Reader, node: ir.Node) -> None:
    """Read tables of cosines and sines that an `If` chooses by the length of the sequence."""
    condition = node.inputs[0]
    maker = condition.producer() if condition is not None else None
    limit = scalar_of(maker.inputs[1]) if maker is not None and maker.op_type == "Greater" else None
    if limit is None or limit < 1 or maker is None or not _is_length(maker.inputs[0]):
        raise refuse(node, "it is chosen by something else than the length of the sequence")
    longer, shorter = (
        [constant_of(value) for value in node.attributes[name].as_graph().outputs]
        for name in ("then_branch", "else_branch")
    )
    for value, for_long, for_short in zip(node.outputs, longer, shorter, strict=True):
        if for_long is None or for_short is None or len(for_short.shape) != 2:
            raise refuse(node, "what it chooses from is not stored in the model")
        tables = [np.asarray(one.numpy(), np.float32) for one in (for_short, for_long)]
        if len(tables[0]) != limit or tables[0].shape[1:] != tables[1].shape[1:]:
            raise refuse(node, "the shorter table does not end where the longer one begins")
        reader.chosen[name_of(value)] = ByLength(int(limit), tables[0], tables[1])


def _is_length(value: ir.Value | None) -> bool:
    """Say whether a value is the number of columns of `attention_mask`."""
    maker = value.producer() if value is not None else None
    if maker is None or maker.op_type not in ("Gather", "Cast", "Squeeze", "Shape"):
        return False
    if maker.op_type != "Shape":
        if maker.op_type == "Gather" and scalar_of(maker.inputs[1]) not in (1.0, -1.0):
            return False
        return _is_length(maker.inputs[0])
    return name_of(maker.inputs[0]) == "attention_mask"
