"""Packed weights and the products that read them, against numpy on the unpacked numbers."""

from __future__ import annotations

from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest

from kernels import isa_for
from packed_products import (
    ROOM,
    Array,
    Case,
    close,
    numbers,
    numbers_of,
    rows_of,
    step,
    stored,
    written,
)
from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.block_product import BlockProductSpec
from vermilion.codegen.emit.decoder.panel_product import Gate, PanelProductSpec
from vermilion.codegen.emit.decoder.row import RowSpec
from vermilion.codegen.emit.decoder.weights import PANEL, BlockWeights
from vermilion.codegen.kernel import Spec
from vermilion.codegen.tensor import View, allocate
from vermilion.llm.engine.matrices import Matrix, PlainMatrix

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


def product(matrix: Matrix, x: Array, form: ActivationLayout, spec: type, **more: Any) -> Array:
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


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("count", [1, 8])
def test_whole_numbers_are_exact_but_for_the_rows(case: Case, count: int) -> None:
    matrix, x = stored(case), rows_of(case, count)
    form = matrix.form()
    assert isinstance(form, BlockWeights)
    assert form.scale == ("f32" if case.scale < 1e-4 else "f16")
    rows = ActivationLayout("int8", case.depth, case.block, form.zero)
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
        matrix, x, ActivationLayout(kind, case.depth), PanelProductSpec,
        numeric=numeric, is_single=False,
    )  # fmt: skip
    assert close(found, x @ numbers(matrix), limit)


@pytest.mark.parametrize("is_single", [True, False])
def test_plain_weights(is_single: bool) -> None:
    values = np.random.default_rng(2).standard_normal((1200, 70)).astype(np.float32)
    matrix = Matrix((PlainMatrix(values[:, :30]), PlainMatrix(values[:, 30:])))
    x = np.random.default_rng(3).standard_normal((5, 1200)).astype(np.float32)
    form = ActivationLayout("f32", 1200)
    found = product(matrix, x, form, PanelProductSpec, numeric="f32", is_single=is_single)
    assert close(found, x @ values, 1e-5)
    if not is_single:  # in more than one run of the depth
        form = ActivationLayout("bf16", 1200)
        found = product(matrix, x, form, PanelProductSpec, numeric="bf16", is_single=False)
        narrow = [a.astype(ml_dtypes.bfloat16).astype(np.float64) for a in (x, values)]
        assert close(found, narrow[0] @ narrow[1], 1e-5)


@pytest.mark.parametrize("kind", ["f32", "bf16", "bfp16"])
@pytest.mark.parametrize("count", [3, 8, 30])  # groups of sixteen panels, of eight and of four
def test_a_gate_in_its_product_gives_the_same_rows(
    kind: Literal["f32", "bf16", "bfp16"], count: int
) -> None:
    case = Case(688, (160, 160))  # three runs of the depth, five pairs of panels
    matrix, x = stored(case), rows_of(case, count)
    form, next_form = ActivationLayout(kind, 688), ActivationLayout(kind, 160)
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
