"""Weights of products and embeddings, as the graph stores them."""

from __future__ import annotations

from typing import Literal, cast

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.errors import ModelError
from vermilion.ir.attributes import integer
from vermilion.llm.engine.embedding import Embedding, unpacked_nibbles
from vermilion.llm.engine.matrices import BlockMatrix, Matrix, PlainMatrix
from vermilion.llm.engine.reader import (
    array_of,
    floats_of,
    is_there,
    refuse,
)

_BITS: dict[int, Literal[4, 8]] = {4: 4, 8: 8}


def read_matrix(node: ir.Node, width: int) -> tuple[Matrix, NDArray[np.float32] | None]:
    """Read the weights of a product whose source has `width` numbers, and its bias."""
    if width % LANES:
        raise refuse(node, f"rows of {width} numbers are no whole vectors of {LANES}")
    if node.op_type == "MatMul":
        values = array_of(node, 1)
        if values.dtype not in (np.float16, np.float32):
            raise refuse(node, f"a matrix of {values.dtype}")
        if values.ndim != 2 or values.shape[0] != width:
            raise refuse(node, f"a matrix of shape {list(values.shape)} for rows of {width}")
        return Matrix((PlainMatrix(values),)), None
    if integer(node, "K") != width:
        raise refuse(node, f"K is {integer(node, 'K')} and its rows have {width} numbers")
    matrix = Matrix((_blocks(node, width),))
    bias = floats_of(node, 5).reshape(-1) if is_there(node, 5) else None
    if bias is not None and bias.size != matrix.columns:
        raise refuse(node, f"a bias of {bias.size} for {matrix.columns} columns")
    return matrix, bias


def _blocks(node: ir.Node, width: int) -> BlockMatrix:
    bits = _BITS.get(integer(node, "bits", 4))
    block, columns = integer(node, "block_size"), integer(node, "N")
    if bits is None or block % LANES or block < LANES:
        raise refuse(node, f"{integer(node, 'bits', 4)} bits in blocks of {block}")
    if is_there(node, 4):
        raise refuse(node, "its columns are regrouped (g_idx)")
    if "weight_prepacked" in node.attributes and integer(node, "weight_prepacked"):
        raise refuse(node, "its weights are packed for another device")
    blocks = -(-width // block)
    codes = _codes(_shaped(node, 1, (columns, blocks, block * bits // 8)))
    scales = _shaped(node, 2, (columns, blocks))
    zeros = None
    if is_there(node, 3):
        zeros = _zeros(node, columns, blocks, bits)
    return BlockMatrix(width, bits, block, codes, scales, zeros)


def _zeros(node: ir.Node, columns: int, blocks: int, bits: int) -> NDArray[np.uint8]:
    if array_of(node, 3).dtype != np.uint8:
        raise refuse(node, "its zero points are no codes")
    if bits == 8:
        return _codes(_shaped(node, 3, (columns, blocks)))
    packed = _codes(_shaped(node, 3, (columns, -(-blocks // 2))))
    return np.ascontiguousarray(unpacked_nibbles(packed)[:, :blocks])


def _shaped(node: ir.Node, index: int, shape: tuple[int, ...]) -> NDArray[np.generic]:
    found = array_of(node, index)
    if found.size != int(np.prod(shape)):
        raise ModelError(
            f"input {index} has {found.size} elements where {list(shape)} are needed",
            where=f"node `{node.name}` ({node.op_type})",
        )
    return found.reshape(shape)


def read_embedding(node: ir.Node) -> Embedding:
    """Read an embedding of codes."""
    bits = _BITS.get(integer(node, "bits", 4))
    block = integer(node, "block_size", 128)
    if bits is None or integer(node, "gather_axis", 0) or not _is_last_axis(node):
        raise refuse(node, "only rows of codes along their depth are understood")
    codes = _reshaped(node)
    scales = floats_of(node, 2)
    scales = scales.reshape(len(codes), -1)
    width = codes.shape[1] * 8 // bits
    blocks = -(-width // block)
    zeros = None
    if is_there(node, 3):
        zeros = _codes(_shaped(node, 3, (len(codes), -(-blocks * bits // 8))))
    if scales.shape[1] != blocks:
        raise refuse(node, f"{scales.shape[1]} scales for {blocks} blocks of a row")
    return Embedding(
        width, 1.0, codes=codes, scales=scales, zeros=zeros, bits=bits, block=block
    )  # fmt: skip


def _is_last_axis(node: ir.Node) -> bool:
    return integer(node, "quantize_axis", 1) in (-1, 1)


def _reshaped(node: ir.Node) -> NDArray[np.uint8]:
    """Return the codes, (vocabulary, bytes): through a reshape where they are the head's own."""
    value = node.inputs[0]
    producer = value.producer() if value is not None else None
    if producer is not None and producer.op_type == "Reshape":
        codes = _codes(array_of(producer, 0))
        return codes.reshape(len(codes), -1)
    found = array_of(node, 0)
    if found.dtype != np.uint8:
        raise refuse(node, "its codes are not two a byte")
    return _codes(found).reshape(len(found), -1)


def _codes(found: NDArray[np.generic]) -> NDArray[np.uint8]:
    return cast("NDArray[np.uint8]", found)


def read_plain_embedding(node: ir.Node) -> Embedding:
    """Read an embedding of numbers: rows, or the columns of the head where they are tied."""
    if integer(node, "axis", 0):
        raise refuse(node, "only rows are embeddings")
    value = node.inputs[0]
    producer = value.producer() if value is not None else None
    if producer is not None and producer.op_type == "Transpose":
        table = array_of(producer, 0).T
    else:
        table = array_of(node, 0)
    if table.ndim != 2:
        raise refuse(node, f"a table of shape {list(table.shape)}")
    return Embedding(int(table.shape[1]), 1.0, plain=table)
