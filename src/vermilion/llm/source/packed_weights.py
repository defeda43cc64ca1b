"""Weights of few bits in a folder, as GPTQ, AWQ and compressed-tensors store them.

Codes, scales and zero points stay what they are. Sources: AutoGPTQ/GPTQModel (`qweight` of the
depth in words, zero points one less than they are), casper-hansen/AutoAWQ (words of columns in the
order 0 2 4 6 1 3 5 7), vllm-project/compressed-tensors (`pack-quantized`: rows in words, codes that
count from the middle).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.errors import ModelError, UnsupportedError
from vermilion.llm.engine.embedding import numbers_of_rows
from vermilion.llm.engine.matrices import BlockMatrix, Part
from vermilion.llm.source.safetensors import SafeTensor

_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)  # where column i of a word is
Bits = Literal[4, 8]


@dataclass(frozen=True)
class Packing:
    """How a folder's weights are packed. `zero_shift` is added to stored zero points."""

    method: Literal["gptq", "awq", "compressed-tensors"]
    bits: Bits
    group: int  # values of the depth that share a scale; -1: all of them
    zero_shift: int = 0


def packing_of(given: object, where: str) -> Packing | None:
    """Return how a configuration says that weights are packed, None where they are not.

    Raises: UnsupportedError for a way that is not known here.
    """
    if not isinstance(given, Mapping):
        return None
    method = given.get("quant_method")
    if method == "gptq":
        shift = 0 if given.get("checkpoint_format") == "gptq_v2" else 1
        return _checked(Packing("gptq", given.get("bits"), given.get("group_size"), shift), where)  # type: ignore[arg-type]
    if method == "awq":
        version = str(given.get("version", "gemm")).lower()
        if version != "gemm":
            raise UnsupportedError(f"AWQ weights of the version `{version}`", where=where)
        bits, group = given.get("bits", given.get("w_bit")), given.get("group_size", 128)
        return _checked(Packing("awq", bits, group), where)
    if method == "compressed-tensors":
        return _compressed(given, where)
    raise UnsupportedError(
        f"weights that `{method}` quantized are not read",
        where=where,
        hint="GPTQ, AWQ and compressed-tensors (`pack-quantized`) are",
    )


def _compressed(given: Mapping[str, object], where: str) -> Packing:
    groups = given.get("config_groups")
    found = list(groups.values()) if isinstance(groups, Mapping) else []
    weights = [one.get("weights") for one in found if isinstance(one, Mapping)]
    if given.get("format") != "pack-quantized" or len(weights) != 1:
        raise UnsupportedError(
            f"weights in the format `{given.get('format')}` of compressed-tensors are not read",
            where=where,
            hint="`pack-quantized` with one group of layers is",
        )
    own = weights[0] if isinstance(weights[0], Mapping) else {}
    if not own.get("symmetric", True) or own.get("actorder"):
        raise UnsupportedError("compressed-tensors with zero points or reordering", where=where)
    group = own.get("group_size") or -1
    return _checked(Packing("compressed-tensors", own.get("num_bits"), group), where)  # type: ignore[arg-type]


def _checked(packing: Packing, where: str) -> Packing:
    is_whole = isinstance(packing.group, int) and (
        packing.group == -1 or (packing.group >= LANES and packing.group % LANES == 0)
    )
    if packing.bits not in (4, 8) or not is_whole or (packing.method, packing.bits) == ("awq", 8):
        raise UnsupportedError(
            f"{packing.method} weights of {packing.bits} bits in groups of {packing.group}",
            where=where,
        )
    return packing


def packed_part(packing: Packing, tensors: Mapping[str, SafeTensor], where: str) -> Part:
    """Return a packed matrix.

    Raises: ModelError for tensors that do not fit each other; UnsupportedError for columns that
    are regrouped.
    """
    if packing.method == "compressed-tensors":
        return _from_rows(packing, tensors, where)
    words = _words(tensors, "qweight", where)
    scales = _scales(tensors, "scales", where)
    count = 32 // packing.bits
    if packing.method == "gptq":
        depth, columns = len(words) * count, words.shape[1]
        rows = np.ascontiguousarray(words.T).view(np.uint8)  # (columns, bytes of the depth)
        zeros = _columns_of(_words(tensors, "qzeros", where), packing.bits)
        zeros = zeros + np.uint8(packing.zero_shift)
        _check_order(packing, tensors, depth, where)
    else:
        depth, columns = len(words), words.shape[1] * count
        codes = np.ascontiguousarray(_columns_of(words, 4, _AWQ_ORDER).T)
        rows = codes[:, ::2] | (codes[:, 1::2] << np.uint8(4))
        zeros = _columns_of(_words(tensors, "qzeros", where), 4, _AWQ_ORDER)
    block = depth if packing.group == -1 else packing.group
    blocks = -(-depth // block)
    if depth % block or scales.shape != (blocks, columns) or zeros.shape != scales.shape:
        raise ModelError(
            f"{columns} columns of {depth} in groups of {block} have scales {scales.shape} and"
            f" zero points {zeros.shape}",
            where=where,
            hint="download the folder's files again",
        )
    return BlockMatrix(
        depth, packing.bits, block, rows.reshape(columns, blocks, -1),
        np.ascontiguousarray(scales.T), np.ascontiguousarray(zeros.T),
    )  # fmt: skip


def _from_rows(packing: Packing, tensors: Mapping[str, SafeTensor], where: str) -> Part:
    words = _words(tensors, "weight_packed", where)
    scales = _scales(tensors, "weight_scale", where)
    columns, depth = len(words), words.shape[1] * 32 // packing.bits
    block = depth if packing.group == -1 else packing.group
    if depth % block or scales.shape != (columns, depth // block):
        raise ModelError(
            f"{columns} columns of {depth} in groups of {block} have scales {scales.shape}",
            where=where,
            hint="download the folder's files again",
        )
    codes = words.view(np.uint8).reshape(columns, depth // block, -1)
    return BlockMatrix(depth, packing.bits, block, codes, scales, None)


def _words(tensors: Mapping[str, SafeTensor], name: str, where: str) -> NDArray[np.uint32]:
    tensor = tensors.get(name)
    if tensor is None or tensor.type != "I32" or len(tensor.shape) != 2:
        raise ModelError(f"`{name}` is no matrix of words", where=where)
    return tensor.rows.view(np.uint32)


def _scales(tensors: Mapping[str, SafeTensor], name: str, where: str) -> NDArray[np.generic]:
    tensor = tensors.get(name)
    if tensor is None or tensor.type not in ("F16", "F32", "BF16") or len(tensor.shape) != 2:
        raise ModelError(f"`{name}` is no matrix of floats", where=where)
    if tensor.type == "F16":
        return tensor.rows.view(np.float16)
    return numbers_of_rows(tensor.type, tensor.rows)


def _columns_of(
    words: NDArray[np.uint32], bits: int, order: tuple[int, ...] | None = None
) -> NDArray[np.uint8]:
    """Return the columns that words hold, the lowest bits first: (rows, columns)."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    if order is not None:
        shifts = shifts[list(order)]
    parts = (words[:, :, None] >> shifts) & np.uint32((1 << bits) - 1)
    return cast("NDArray[np.uint8]", parts.astype(np.uint8).reshape(len(words), -1))


def _check_order(
    packing: Packing, tensors: Mapping[str, SafeTensor], depth: int, where: str
) -> None:
    order = tensors.get("g_idx")
    if order is None:
        return
    if order.type != "I32" or order.shape != (depth,):
        raise ModelError("`g_idx` is not one number for each row", where=where)
    block = depth if packing.group == -1 else packing.group
    if not np.array_equal(order.rows.view(np.int32).reshape(-1), np.arange(depth) // block):
        raise UnsupportedError(
            "its columns are regrouped (`g_idx`, `desc_act`)",
            where=where,
            hint="a model that was quantized without `desc_act` is read",
        )
