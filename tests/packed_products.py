"""Matrices of packed weights, the rows that are multiplied with them, and both as numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import Memory, isa_for
from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.control import CONTROL_WORDS, ROWS
from vermilion.codegen.emit.decoder.row import RowSpec
from vermilion.codegen.kernel import Spec, Step
from vermilion.codegen.tensor import View, allocate
from vermilion.llm.engine.embedding import unpacked_nibbles
from vermilion.llm.engine.matrices import BlockMatrix, Matrix

Array = NDArray[Any]
ROOM = 36  # rows that buffers have


@dataclass(frozen=True)
class Case:
    """Columns of the parts of one matrix, and how they are stored."""

    depth: int
    columns: tuple[int, ...]
    bits: Literal[4, 8] = 4
    block: int = 32
    has_zeros: bool = False
    scale: float = 0.1


def stored(case: Case) -> Matrix:
    random = np.random.default_rng(0)
    blocks = -(-case.depth // case.block)
    parts = []
    for columns in case.columns:
        size = (columns, blocks, case.block * case.bits // 8)
        scales = (random.random((columns, blocks)) + 0.5) * case.scale
        zeros = random.integers(0, 1 << case.bits, (columns, blocks), np.uint8)
        parts.append(
            BlockMatrix(
                case.depth, case.bits, case.block, random.integers(0, 256, size, np.uint8),
                scales.astype(np.float32), zeros if case.has_zeros else None,
            )
        )  # fmt: skip
    return Matrix(tuple(parts))


def numbers(matrix: Matrix) -> Array:
    """Return the matrix as numbers: (depth, columns)."""
    columns = []
    for part in matrix.parts:
        assert isinstance(part, BlockMatrix)
        codes = unpacked_nibbles(part.codes) if part.bits == 4 else part.codes
        zeros = 1 << (part.bits - 1) if part.zeros is None else part.zeros[:, :, None].astype(int)
        values = (codes.astype(int) - zeros) * part.scales.astype(float)[:, :, None]
        columns.append(values.reshape(part.columns, -1)[:, : part.depth])
    return np.concatenate(columns).T


def written(
    matrix: Matrix, x: Array, form: ActivationLayout
) -> tuple[Memory, Step, tuple[View, ...]]:
    """Return the step that writes rows for a product, and what the product reads.

    Both in memory.
    """
    isa = isa_for("cpu")
    if form.kind in ("bf16", "bfp16") and not isa.has_bf16:
        pytest.skip(f"this machine has no AVX-512 BF16 for rows in {form.kind}")
    memory, weights = Memory(), matrix.form()
    packed = np.empty(weights.size_bytes, np.uint8)
    matrix.pack(weights, packed)
    words = np.zeros(CONTROL_WORDS, np.int64)
    words[ROWS] = len(x)
    control = memory.tensor("control", words, "i64")
    rows = memory.tensor("rows", np.pad(x, ((0, ROOM - len(x)), (0, 0))))
    prepared = allocate("prepared", "u8", (ROOM * form.row_bytes,))
    codes = memory.tensor("codes", packed, "u8")
    write = RowSpec("plain", x.shape[1], (x.shape[1],), 0, None, 0, (form,), ROOM)
    return memory, step(write, (control, rows, prepared)), (control, prepared, codes)


def step(spec: Spec, arguments: tuple[View, ...]) -> Step:
    """Return a step that writes its last argument."""
    return Step(spec, arguments, arguments[-1:])


def close(found: Array, wanted: Array, limit: float) -> bool:
    return float(np.abs(found - wanted).max()) <= limit * float(np.abs(wanted).max())


def rows_of(case: Case, count: int) -> Array:
    return np.random.default_rng(1).standard_normal((count, case.depth)).astype(np.float32)


def numbers_of(rows: Array, form: ActivationLayout) -> Array:
    """Return the numbers of rows that are not whole ones."""
    kind = np.float32 if form.kind == "f32" else ml_dtypes.bfloat16
    return rows.view(kind)[:, : form.width].astype(np.float32)
