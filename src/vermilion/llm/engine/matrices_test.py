"""Packed weights and the products that read them, against numpy on the unpacked numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import Memory, isa_for
from vermilion.codegen.emit.decoder.block_product import BlockProductSpec
from vermilion.codegen.emit.decoder.control import CONTROL_WORDS, ROWS
from vermilion.codegen.emit.decoder.panel_product import Gate, PanelProductSpec
from vermilion.codegen.emit.decoder.prepared import Prepared
from vermilion.codegen.emit.decoder.row import RowSpec
from vermilion.codegen.emit.decoder.weights import PANEL, BlockWeights
from vermilion.codegen.kernel import Spec, Step
from vermilion.codegen.tensor import View, allocate
from vermilion.llm.engine.embedding import unpacked_nibbles
from vermilion.llm.engine.matrices import BlockMatrix, Matrix, PlainMatrix

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


CASES = (
    Case(64, (32,)),
    Case(96, (48, 40)),  # parts that meet inside a panel, and a panel that is not full
    Case(80, (33,), block=32, has_zeros=True),  # a last block that is not full
    Case(48, (64,), bits=8, block=16),
    Case(48, (7, 64), bits=8, block=16, has_zeros=True),
    Case(256, (96,), block=128, has_zeros=True),
    Case(688, (150, 33)),  # three runs of the depth, the last not of whole blocks, and six panels
    Case(64, (32,), scale=1e-6),  # scales that a float16 would round away
)


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
    """Give the matrix as numbers: (depth, columns)."""
    columns = []
    for part in matrix.parts:
        assert isinstance(part, BlockMatrix)
        codes = unpacked_nibbles(part.codes) if part.bits == 4 else part.codes
        zeros = 1 << (part.bits - 1) if part.zeros is None else part.zeros[:, :, None].astype(int)
        values = (codes.astype(int) - zeros) * part.scales.astype(float)[:, :, None]
        columns.append(values.reshape(part.columns, -1)[:, : part.depth])
    return np.concatenate(columns).T


def written(matrix: Matrix, x: Array, form: Prepared) -> tuple[Memory, Step, tuple[View, ...]]:
    """Give the step that writes rows for a product, and what the product reads: both in memory."""
    isa = isa_for("cpu")
    if not (isa.has_vnni and isa.has_bf16):
        pytest.skip("this machine has no AVX-512 VNNI and BF16")
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
    """Give a step that writes its last argument."""
    return Step(spec, arguments, arguments[-1:])


def product(matrix: Matrix, x: Array, form: Prepared, spec: type, **more: Any) -> Array:
    """Write rows for a product and multiply them, both by our kernels."""
    memory, write, read = written(matrix, x, form)
    weights = matrix.form()
    width = weights.panels * PANEL
    out = allocate("out", "f32", (ROOM, width))
    if spec is PanelProductSpec:
        more["max_rows"] = ROOM
    multiply: Spec = spec(weights=weights, rows=form, out_row=width, has_bias=False, **more)
    memory.run([write, step(multiply, (*read, out))], isa_for("cpu"))
    return memory.array(out)[: len(x), : matrix.columns].copy()


def close(found: Array, wanted: Array, limit: float) -> bool:
    return float(np.abs(found - wanted).max()) <= limit * float(np.abs(wanted).max())


def rows_of(case: Case, count: int) -> Array:
    return np.random.default_rng(1).standard_normal((count, case.depth)).astype(np.float32)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("count", [1, 8])
def test_whole_numbers_are_exact_but_for_the_rows(case: Case, count: int) -> None:
    matrix, x = stored(case), rows_of(case, count)
    form = matrix.form()
    assert isinstance(form, BlockWeights)
    assert form.scale == ("f32" if case.scale < 1e-4 else "f16")
    rows = Prepared("int8", case.depth, case.block, form.zero)
    found = product(matrix, x, rows, BlockProductSpec, row_tile=6)
    blocks = np.pad(x, ((0, 0), (0, -case.depth % case.block))).reshape(count, -1, case.block)
    step = np.abs(blocks).max(-1, keepdims=True) / 127
    rounded = (np.rint(blocks / step) * step).reshape(count, -1)[:, : case.depth]
    # A float16 scale has 11 bits: 2^-11 of each product, and some rows round the other way.
    assert close(found, rounded @ numbers(matrix), 2e-3)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("kind", "limit"), [("f32", 6e-4), ("bf16", 8e-3), ("bfp16", 3e-2)])
@pytest.mark.parametrize("count", [7, 30])
def test_unpacked_weights(
    case: Case, kind: Literal["f32", "bf16", "bfp16"], limit: float, count: int
) -> None:
    matrix, x = stored(case), rows_of(case, count)
    numeric = "f32" if kind == "f32" else "bf16"
    found = product(
        matrix, x, Prepared(kind, case.depth), PanelProductSpec, numeric=numeric, is_single=False,
    )  # fmt: skip
    assert close(found, x @ numbers(matrix), limit)


@pytest.mark.parametrize("is_single", [True, False])
def test_plain_weights(is_single: bool) -> None:
    values = np.random.default_rng(2).standard_normal((1200, 70)).astype(np.float32)
    matrix = Matrix((PlainMatrix(values[:, :30]), PlainMatrix(values[:, 30:])))
    x = np.random.default_rng(3).standard_normal((5, 1200)).astype(np.float32)
    form = Prepared("f32", 1200)
    found = product(matrix, x, form, PanelProductSpec, numeric="f32", is_single=is_single)
    assert close(found, x @ values, 1e-5)
    if not is_single:  # in more than one run of the depth
        form = Prepared("bf16", 1200)
        found = product(matrix, x, form, PanelProductSpec, numeric="bf16", is_single=False)
        narrow = [a.astype(ml_dtypes.bfloat16).astype(np.float64) for a in (x, values)]
        assert close(found, narrow[0] @ narrow[1], 1e-5)


def numbers_of(rows: Array, form: Prepared) -> Array:
    """Give the numbers of rows that are not whole ones."""
    kind = np.float32 if form.kind == "f32" else ml_dtypes.bfloat16
    return rows.view(kind)[:, : form.width].astype(np.float32)


@pytest.mark.parametrize("kind", ["f32", "bf16", "bfp16"])
@pytest.mark.parametrize("count", [3, 8, 30])  # groups of sixteen panels, of eight and of four
def test_a_gate_in_its_product_gives_the_same_rows(
    kind: Literal["f32", "bf16", "bfp16"], count: int
) -> None:
    case = Case(688, (160, 160))  # three runs of the depth, five pairs of panels
    matrix, x = stored(case), rows_of(case, count)
    form, next_form = Prepared(kind, 688), Prepared(kind, 160)
    weights, numeric = matrix.form(), "f32" if kind == "f32" else "bf16"

    def spec(out_row: int, gate: Gate | None) -> PanelProductSpec:
        return PanelProductSpec(numeric, weights, form, out_row, False, ROOM, False, gate)  # type: ignore[arg-type]

    def rows(name: str) -> View:
        return allocate(name, "u8", (ROOM, next_form.row_bytes))

    memory, write, read = written(matrix, x, form)
    halves, apart, joined = allocate("halves", "f32", (ROOM, 320)), rows("apart"), rows("joined")
    low, high = (View(halves.buffer, "f32", (1,), (1,), offset) for offset in (0, 160))
    gate = RowSpec("silu", 160, (320, 320), 0, None, 0, (next_form,), ROOM)
    steps = [
        write,
        step(spec(320, None), (*read, halves)),
        step(gate, (read[0], low, high, apart)),
        step(spec(0, Gate("silu", next_form)), (*read, joined)),
    ]
    memory.run(steps, isa_for("cpu"))
    found, wanted = (numbers_of(memory.array(one)[:count], next_form) for one in (joined, apart))
    assert wanted.any()
    # Where rows are rounded, a few are rounded the other way: the sigmoid is off by 1e-5 there.
    is_equal = found == wanted
    assert is_equal.all() if kind == "f32" else is_equal.mean() > 0.99
    assert close(found, wanted, 2**-7)
