"""The graph of a decoder, as `onnxruntime_genai`'s model builder writes it → its description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from vermilion.codegen.emit.decoder.row import Source
from vermilion.errors import UnsupportedError
from vermilion.ir.attributes import integer, number, text
from vermilion.llm.engine.description import (
    Attention,
    Description,
    Norm,
    Product,
    RowOperation,
    Rows,
)
from vermilion.llm.engine.read_weights import read_embedding, read_matrix, read_plain_embedding
from vermilion.llm.engine.reader import (
    Activation,
    Reader,
    constant_of,
    floats_of,
    is_position,
    name_of,
    read_attention,
    read_choice,
    read_rotation,
    refuse,
    scalar_of,
)


def read_graph(model: ir.Model) -> Description:
    """Return what the decoder computes.

    Raises: UnsupportedError with the node that is not understood, and why.
    """
    reader = Reader()
    for node in model.graph:
        _read(reader, node)
    if reader.embedding is None or not reader.operations:
        raise UnsupportedError(
            "the graph has no embedding of `input_ids`",
            where=str(model.graph.name),
            hint="the native decoder takes graphs of `onnxruntime_genai`'s model builder",
        )
    head = reader.operations[-1]
    if not isinstance(head, Product):
        raise UnsupportedError(
            "the graph does not end with the product that gives the logits",
            where=f"node `{head.node}`",
        )
    _check_hidden(reader, head)
    if not any(isinstance(one, Attention) for one in reader.operations):
        raise UnsupportedError("the graph has no GroupQueryAttention", where=str(model.graph.name))
    return Description(
        reader.embedding, reader.first, tuple(reader.operations), head.source,
        reader.logits_bound, head.matrix.columns,
    )  # fmt: skip


def _check_hidden(reader: Reader, head: Product) -> None:
    """See that the head reads whole rows of a norm: the caller keeps them."""
    makers = [one for one in reader.operations if isinstance(one, RowOperation)]
    if not any(one.output == head.source.buffer for one in makers) or head.source.offset:
        raise UnsupportedError(
            "the head reads something else than normed rows", where=f"node `{head.node}`"
        )
    if reader.pruned_buffer not in ("", head.source.buffer):
        raise UnsupportedError("rows are picked before the head", where=f"node `{head.node}`")
    if reader.bounded_buffer not in ("", head.output):
        raise UnsupportedError(
            "something else than the logits is bounded", where=f"node `{head.node}`"
        )


def _read(reader: Reader, node: ir.Node) -> None:
    names = [value.name or "" for value in node.inputs if value is not None]
    open_names = [
        name for value, name in zip([v for v in node.inputs if v is not None], names, strict=True)
        if constant_of(value) is None
    ]  # fmt: skip
    if not open_names and node.op_type in ("Constant", "Reshape", "Transpose"):
        return
    if node.op_type == "If":
        read_choice(reader, node)
        return
    if open_names and all(name in reader.bookkeeping for name in open_names):
        reader.bookkeeping |= {name_of(value) for value in node.outputs}
        return
    rule = _RULES.get(node.op_type)
    if rule is None:
        raise refuse(
            node, f"`{node.op_type}` is not among the operators of a decoder that it knows"
        )
    rule(reader, node)


# Embedding, products, norms -----------------------------------------------------------------------


def _embed(reader: Reader, node: ir.Node) -> None:
    if reader.embedding is not None:
        raise refuse(node, "there is a second embedding")
    reads = read_embedding if node.op_type == "GatherBlockQuantized" else read_plain_embedding
    reader.embedding = reads(node)
    reader.first = reader.new(node, reader.embedding.width)


def _gather(reader: Reader, node: ir.Node) -> None:
    if not reader.is_rows(node.inputs[0]):
        _embed(reader, node)
        return
    if integer(node, "axis", 0) != 1 or scalar_of(node.inputs[1]) != -1:
        raise refuse(node, "it picks other rows than the last")
    # A pruned head: only the last position has logits. Which rows have them is the caller's choice
    # here, and what follows is computed row by row.
    rows = reader.plain(node, 0)
    reader.rows[name_of(node.outputs[0])] = rows
    reader.pruned_buffer = rows.buffer


def _product(reader: Reader, node: ir.Node) -> None:
    source = reader.plain(node, 0)
    matrix, bias = read_matrix(node, source.width)
    output = reader.new(node, matrix.columns)
    reader.operations.append(Product(node.name or "", source, output, matrix, bias))


def _norm(reader: Reader, node: ir.Node) -> None:
    source = reader.of(node, 0)
    weight = floats_of(node, 1)
    norm = Norm(weight.reshape(-1), number(node, "epsilon", 1e-5))
    if not norm.weight.size:
        raise refuse(node, "its weight is empty")
    if norm.weight.size == source.width:
        rows = reader.plain(node, 0)
        output = reader.new(node, rows.width)
        reader.operations.append(RowOperation(node.name or "", "plain", (rows,), "", norm, output))
    elif source.width % norm.weight.size == 0 and source.is_plain:
        reader.rows[name_of(node.outputs[0])] = replace(source, norm=norm)
    else:
        raise refuse(node, f"a norm of {norm.weight.size} over rows of {source.width}")


def _skip_norm(reader: Reader, node: ir.Node) -> None:
    if len(node.inputs) > 3 and node.inputs[3] is not None:
        raise refuse(node, "it adds a bias")
    inputs = (reader.plain(node, 0), reader.plain(node, 1))
    norm = Norm(floats_of(node, 2).reshape(-1), number(node, "epsilon", 1e-5))
    if inputs[1].width != inputs[0].width or norm.weight.size != inputs[0].width:
        raise refuse(node, "what it adds or norms has another width")
    kept = ""
    if len(node.outputs) > 3 and name_of(node.outputs[3]):
        kept = reader.new(node, inputs[0].width, 3)
    output = reader.new(node, inputs[0].width)
    reader.operations.append(RowOperation(node.name or "", "sum", inputs, kept, norm, output))


# Elementwise --------------------------------------------------------------------------------------


def _sigmoid(reader: Reader, node: ir.Node) -> None:
    reader.sigmoids[name_of(node.outputs[0])] = reader.plain(node, 0)


def _activation(kind: Source) -> Callable[[Reader, ir.Node], None]:
    def read(reader: Reader, node: ir.Node) -> None:
        if number(node, "alpha", 1.0) != 1.0:
            raise refuse(node, "alpha is not 1")
        reader.activations[name_of(node.outputs[0])] = Activation(kind, reader.plain(node, 0))

    return read


def _gelu(reader: Reader, node: ir.Node) -> None:
    is_tanh = node.op_type == "FastGelu" or text(node, "approximate", "none") == "tanh"
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        raise refuse(node, "it adds a bias")
    _activation("gelu_tanh" if is_tanh else "gelu")(reader, node)


def _multiply(reader: Reader, node: ir.Node) -> None:
    a, b = (name_of(value) for value in node.inputs)
    output = name_of(node.outputs[0])
    for one, other in ((a, b), (b, a)):
        if one in reader.sigmoids and other in reader.rows:
            if reader.sigmoids[one] is not reader.rows[other]:
                raise refuse(node, "a sigmoid gates another value than its own")
            reader.activations[output] = Activation("silu", reader.rows[other])
            return
        if one in reader.activations and other in reader.rows:
            _gate(reader, node, reader.activations[one], reader.rows[other])
            return
    for index in (0, 1):
        factor = scalar_of(node.inputs[index])
        if factor is not None:
            _scale(reader, node, (b, a)[index], factor)
            return
    raise refuse(node, "it multiplies what is neither an activation nor a number")


def _gate(reader: Reader, node: ir.Node, activation: Activation, other: Rows) -> None:
    if not other.is_plain or other.width != activation.source.width:
        raise refuse(node, "what is gated has another shape")
    output = reader.new(node, other.width)
    inputs = (activation.source, other)
    operation = RowOperation(node.name or "", activation.kind, inputs, "", None, output)
    reader.operations.append(operation)


def _scale(reader: Reader, node: ir.Node, name: str, factor: float) -> None:
    """Read `embedding · factor`, or the end of `tanh(logits ÷ bound) · bound`."""
    embedding = reader.embedding
    if name in reader.bounded:
        bounded, bound = reader.bounded[name]
        if bound != factor:
            raise refuse(node, "logits are bounded and then scaled by another number")
        reader.logits_bound, reader.bounded_buffer = factor, bounded.buffer
        reader.rows[name_of(node.outputs[0])] = bounded
        return
    rows = reader.rows.get(name)
    if embedding is None or rows is None or rows.buffer != reader.first or reader.operations:
        raise refuse(node, "it scales something else than the embedded tokens")
    reader.embedding = replace(embedding, factor=embedding.factor * factor)
    reader.rows[name_of(node.outputs[0])] = rows


def _divide(reader: Reader, node: ir.Node) -> None:
    bound = scalar_of(node.inputs[1])
    rows = reader.plain(node, 0)
    if bound is None or bound <= 0:
        raise refuse(node, "it divides by what is no positive number")
    reader.divided[name_of(node.outputs[0])] = (rows, bound)


def _tanh(reader: Reader, node: ir.Node) -> None:
    divided = reader.divided.get(name_of(node.inputs[0]))
    if divided is None:
        raise refuse(node, "it is not part of bounding the logits")
    reader.bounded[name_of(node.outputs[0])] = divided


def _add(reader: Reader, node: ir.Node) -> None:
    """Read the bias of a product."""
    for index in (0, 1):
        bias = node.inputs[index]
        if bias is None or constant_of(bias) is None:
            continue
        rows = reader.plain(node, 1 - index)
        last = reader.operations[-1] if reader.operations else None
        for at in range(len(reader.operations) - 1, -1, -1):
            last = reader.operations[at]
            if isinstance(last, Product) and last.output == rows.buffer and last.bias is None:
                shift = floats_of(node, index).reshape(-1)
                if shift.size != rows.width or rows.width != last.matrix.columns:
                    raise refuse(node, "a bias of another width than its product")
                reader.operations[at] = replace(last, bias=shift)
                reader.rows[name_of(node.outputs[0])] = rows
                return
    raise refuse(node, "it adds something else than the bias of a product")


# Names for the same numbers -----------------------------------------------------------------------


def _same(reader: Reader, node: ir.Node) -> None:
    """Read a cast, or a change of shape that only says where heads or positions begin."""
    value = node.inputs[0]
    name, output = name_of(value), name_of(node.outputs[0])
    if name in reader.rows:
        reader.rows[output] = reader.rows[name]
    elif name in reader.divided:
        reader.divided[output] = reader.divided[name]
    elif name in reader.bounded:
        reader.bounded[output] = reader.bounded[name]
    elif name in reader.activations:
        reader.activations[output] = reader.activations[name]
    elif name in reader.sigmoids:
        reader.sigmoids[output] = reader.sigmoids[name]
    elif name == "input_ids":
        reader.bookkeeping.add(output)
    else:
        raise refuse(node, "its input is no row of activations")


def _split(reader: Reader, node: ir.Node) -> None:
    rows = reader.plain(node, 0)
    sizes = constant_of(node.inputs[1]) if len(node.inputs) > 1 else None
    if sizes is not None:
        widths = [int(size) for size in np.asarray(sizes.numpy()).reshape(-1)]
    else:
        widths = [rows.width // len(node.outputs)] * len(node.outputs)
    if integer(node, "axis", 0) not in (-1, 2) or sum(widths) != rows.width:
        raise refuse(node, "it does not split the columns of its rows")
    offset = rows.offset
    for value, width in zip(node.outputs, widths, strict=True):
        reader.rows[name_of(value)] = Rows(rows.buffer, offset, width)
        offset += width


def _slice(reader: Reader, node: ir.Node) -> None:
    rows = reader.plain(node, 0)
    numbers = []
    for index in (1, 2, 3):
        value = constant_of(node.inputs[index]) if index < len(node.inputs) else None
        numbers.append(None if value is None else np.asarray(value.numpy()).reshape(-1))
    starts, ends, axes = numbers
    if starts is None or ends is None or axes is None or list(axes) not in ([-1], [2]):
        raise refuse(node, "it does not pick columns of its rows")
    if len(node.inputs) > 4 and scalar_of(node.inputs[4]) not in (None, 1.0):
        raise refuse(node, "it skips columns")
    begin, end, _ = slice(int(starts[0]), int(ends[0])).indices(rows.width)
    reader.rows[name_of(node.outputs[0])] = Rows(rows.buffer, rows.offset + begin, end - begin)


def _rotary(reader: Reader, node: ir.Node) -> None:
    rows = reader.of(node, 0)
    position = node.inputs[1]
    if rows.rotation is not None or not is_position(position):
        raise refuse(node, "it turns by something else than the position")
    rotation = read_rotation(reader, node, 2)
    reader.rows[name_of(node.outputs[0])] = replace(rows, rotation=rotation)


def _attend(reader: Reader, node: ir.Node) -> None:
    packed = len(node.inputs) < 2 or node.inputs[1] is None
    sources = [reader.of(node, 0)] if packed else [reader.of(node, index) for index in range(3)]
    operation = read_attention(reader, node, sources)
    reader.new(node, operation.query_heads * operation.head_size)
    reader.operations.append(operation)


_RULES: dict[str, Callable[[Reader, ir.Node], None]] = {
    "Add": _add,
    "Cast": _same,
    "Div": _divide,
    "FastGelu": _gelu,
    "Gather": _gather,
    "GatherBlockQuantized": _embed,
    "Gelu": _gelu,
    "GroupQueryAttention": _attend,
    "Identity": _same,
    "MatMul": _product,
    "MatMulNBits": _product,
    "Mul": _multiply,
    "QuickGelu": _activation("silu"),
    "RMSNormalization": _norm,
    "Reshape": _same,
    "RotaryEmbedding": _rotary,
    "Sigmoid": _sigmoid,
    "SimplifiedLayerNormalization": _norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "Slice": _slice,
    "Split": _split,
    "Swish": _activation("silu"),
    "Tanh": _tanh,
    "Unsqueeze": _same,
}
