"""A tensor's bytes, as they lie in a file, as what the engine reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.weights import LANES
from vermilion.errors import ModelError, UnsupportedError
from vermilion.llm.engine.block_types import block_type
from vermilion.llm.engine.description import Floats
from vermilion.llm.engine.embedding import Embedding, numbers_of_rows
from vermilion.llm.engine.matrices import BlockMatrix, Part, PlainMatrix, StoredMatrix

FLOATS: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype("u2"),
}


def part_of(type_: str, rows: NDArray[np.uint8], where: str) -> Part:
    """Return a matrix of rows of bytes, one a column of the product.

    Raises: ModelError, UnsupportedError.
    """
    if rows.ndim != 2:
        raise ModelError(f"a tensor of {rows.ndim} dimensions is no matrix", where=where)
    if type_ in FLOATS:
        values = rows.view(ml_dtypes.bfloat16 if type_ == "BF16" else FLOATS[type_])
        part: Part = PlainMatrix(values.T)
    else:
        found = block_type(type_)
        if found is None:
            raise UnsupportedError(f"weights of the type {type_} are not known here", where=where)
        part = StoredMatrix(rows.shape[1] // found.bytes * found.values, found, rows)
    if part.depth % LANES:
        raise UnsupportedError(
            f"rows of {part.depth} numbers are no whole vectors of {LANES}", where=where
        )
    return part


def floats_of(type_: str, rows: NDArray[np.uint8], where: str) -> Floats:
    """Return the numbers of a vector.

    Raises: ModelError, UnsupportedError.
    """
    if rows.ndim != 1:
        raise ModelError(f"a tensor of {rows.ndim} dimensions is no vector", where=where)
    numbers = numbers_of_rows(type_, np.ascontiguousarray(rows)[None])[0]
    if not np.isfinite(numbers).all():
        raise ModelError(
            "it has numbers that are not finite", where=where, hint="download the file again"
        )
    return np.ascontiguousarray(numbers)


def embedding_of(type_: str, rows: NDArray[np.uint8], where: str) -> Embedding:
    """Return the rows that tokens begin with."""
    width = part_of(type_, rows, where).depth
    return Embedding(width, 1.0, stored=rows, type=type_)


def in_order(part: Part, order: NDArray[np.int64]) -> Part:
    """Return a matrix whose column i is what column `order[i]` was."""
    if isinstance(part, BlockMatrix):
        zeros = None if part.zeros is None else part.zeros[order]
        return replace(part, codes=part.codes[order], scales=part.scales[order], zeros=zeros)
    before = part.order
    return replace(part, order=order if before is None else before[order])
