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
from vermilion.llm.engine.matrices import Part, PlainMatrix, StoredMatrix

FLOATS: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype("u2"),
}


def part_of(
    type_: str, rows: NDArray[np.uint8], where: str, *, is_turned: bool = False
) -> Part:  # fmt: skip
    """Return a matrix of rows of bytes, one a column of the product; one a row if it is turned.

    Raises: ModelError, UnsupportedError.
    """
    if rows.ndim != 2:
        raise ModelError(f"a tensor of {rows.ndim} dimensions is no matrix", where=where)
    if type_ in FLOATS:
        values = rows.view(ml_dtypes.bfloat16 if type_ == "BF16" else FLOATS[type_])
        part: Part = PlainMatrix(values if is_turned else values.T)
    else:
        found = block_type(type_)
        if found is None or is_turned:
            raise UnsupportedError(f"weights of the type {type_} are not known here", where=where)
        part = StoredMatrix(rows.shape[1] // found.bytes * found.values, found, rows)
    if part.depth % LANES:
        raise UnsupportedError(
            f"rows of {part.depth} numbers are no whole vectors of {LANES}", where=where
        )
    return part


def floats_of(type_: str, rows: NDArray[np.uint8], where: str, rank: int = 1) -> Floats:
    """Return the numbers of a vector, or of as many dimensions.

    Raises: ModelError, UnsupportedError.
    """
    if rows.ndim != rank:
        what = "vector" if rank == 1 else f"list of {rank} dimensions"
        raise ModelError(f"a tensor of {rows.ndim} dimensions is no {what}", where=where)
    numbers = numbers_of_rows(type_, np.atleast_2d(np.ascontiguousarray(rows)))
    numbers = numbers.reshape(*rows.shape[:-1], -1)
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
    before = part.order
    return replace(part, order=order if before is None else before[order])


def halves_of(part: Part, *, is_interleaved: bool = False) -> tuple[Part, Part]:
    """Return the first and the second half of a matrix's columns, or every other of them."""
    columns = np.arange(part.columns)
    if is_interleaved:
        return in_order(part, columns[::2]), in_order(part, columns[1::2])
    half = part.columns // 2
    return in_order(part, columns[:half]), in_order(part, columns[half:])
