"""Products with seven multiplications of quarters, against numpy and against those with eight."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import small_decoders
from kernels import isa_for
from packed_products import ROOM, Array, Case, close, numbers, numbers_of, step, stored, written
from small_decoders import Options, decoder_folder
from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.panel_product import Gate, PanelProductSpec
from vermilion.codegen.emit.decoder.strassen import SevenProductsSpec
from vermilion.codegen.emit.decoder.strassen_rows import HalvedRows, HalvedRowsSpec
from vermilion.codegen.emit.decoder.weights import PANEL, BlockWeights
from vermilion.codegen.strassen import PRODUCTS
from vermilion.codegen.tensor import allocate
from vermilion.llm.engine import lower_products as lower_module
from vermilion.llm.engine.open_native import open_native_decoder

MANY = ROOM // 8 * 8
CASES = (
    (Case(64, (64,)), 32),  # one run
    (Case(128, (40, 70)), 32),  # two; a panel that is not full
    (Case(384, (128,), block=64), 64),  # three
    (Case(448, (64,)), 96),  # the last one shorter
    (Case(128, (64,), block=16), 32),
    (Case(128, (64,), has_zeros=True), 32),
    (Case(192, (64,), block=16, has_zeros=True), 64),
    (Case(64, (64,), scale=1e-6), 32),  # scales that a float16 would round away
)


def rows_of(count: int, depth: int) -> Array:
    return np.random.default_rng(7).standard_normal((count, depth)).astype(np.float32)


def quarters(matrix: Array) -> list[Array]:
    return [part for half in np.split(matrix, 2, 0) for part in np.split(half, 2, 1)]


def product(case: Case, run: int, x: Array, gate: Gate | None = None, **more: Any) -> Array:
    """Multiply rows by our kernels; what a gate gives are rows of its form."""
    matrix = stored(case)
    form = ActivationLayout("bf16", case.depth)
    memory, write, (control, prepared, codes) = written(matrix, x, form)
    weights = matrix.form()
    assert isinstance(weights, BlockWeights)
    halved = HalvedRows(case.depth, run, MANY)
    sums = allocate("sums", "u8", (halved.size_bytes,))
    width = weights.panels * PANEL
    bias = memory.tensor("bias", bias_of(case, width))
    out = allocate("out", "f32", (ROOM, width))
    if gate is not None:
        out = allocate("out", "u8", (ROOM, gate.form.row_bytes))
    least = more.get("least_rows", 1)
    spec = SevenProductsSpec(weights, halved, 0 if gate else width, True, least, gate)
    steps = [
        write,
        step(HalvedRowsSpec(form, halved, least), (control, prepared, sums)),
        replace(step(spec, (control, sums, codes, out, bias)), writes=(out,)),
    ]
    memory.run(steps, isa_for("cpu"))
    return memory.array(out)[: len(x)].copy()


def bias_of(case: Case, columns: int) -> Array:
    return np.arange(columns, dtype=np.float32) * case.scale


def wanted(case: Case, x: Array) -> Array:
    whole = x.astype(np.float64) @ numbers(stored(case))
    return whole + bias_of(case, whole.shape[1])


@pytest.mark.parametrize(("case", "run"), CASES, ids=str)
@pytest.mark.parametrize("count", [1, 8, 13, 27, 32])  # rows that have no partner, and none such
def test_products(case: Case, run: int, count: int) -> None:
    x = rows_of(count, case.depth)
    found, right = product(case, run, x), wanted(case, x)
    bias = bias_of(case, right.shape[1])
    # Twice the rounding of a plain product (8e-3 in `matrices_test`).
    assert close(found[:, : right.shape[1]] - bias, right - bias, 2e-2)


def test_fewer_rows_are_left_alone() -> None:
    case, x = Case(64, (64,)), rows_of(9, 64)
    untouched = product(case, 32, x, least_rows=10)
    assert (untouched.view(np.uint8) == 0x7B).all()
    assert close(product(case, 32, x, least_rows=9), wanted(case, x), 2e-2)


def test_a_row_does_not_drown_its_partner() -> None:
    """What a sum is rounded by goes to both rows: each is brought near 1 first."""
    case, x = Case(128, (64,)), rows_of(16, 128)
    x[0] *= 1e5
    x[9] = 0.0
    x[2, 5] = 3e4  # one large number of a row, as a first token has
    found, right = product(case, 64, x), wanted(case, x)
    found, right = (one - bias_of(case, 64) for one in (found, right))
    error = np.linalg.norm(found - right, axis=1)
    size = np.linalg.norm(right, axis=1)
    assert error[9] == 0.0
    assert (error[size > 0] / size[size > 0] < 2e-2).all()


def test_what_is_no_number_stays_in_its_row() -> None:
    case, x = Case(128, (64,)), rows_of(16, 128)
    x[3, 7], x[12, 100] = np.nan, np.inf
    found = product(case, 64, x)
    is_bad = np.zeros(16, bool)
    is_bad[[3, 12]] = True
    assert np.isnan(found[is_bad]).all()
    assert close(found[~is_bad], wanted(case, x[~is_bad]), 2e-2)


@pytest.mark.parametrize("count", [11, 32])
def test_a_gate_gives_the_rows_that_it_gives_apart(count: int) -> None:
    case, x = Case(128, (96, 96)), rows_of(count, 128)
    form = ActivationLayout("bf16", 96)
    found = numbers_of(product(case, 64, x, Gate("silu", form)), form)
    gates, values = np.split(product(case, 64, x), 2, axis=1)
    right = gates.astype(np.float64) / (1 + np.exp(-gates.astype(np.float64))) * values
    assert close(found, right, 2**-7)


def test_sums_of_rows() -> None:
    """The seven sums of quarters, of rows that are powers of two: nothing is rounded."""
    count, form = 16, HalvedRows(128, 32, MANY)
    x = np.exp2(np.random.default_rng(0).integers(-1, 2, (count, 128))).astype(np.float32)
    x[5] *= 64.0
    rows = ActivationLayout("bf16", 128)
    memory, write, (control, prepared, _) = written(stored(Case(128, (64,))), x, rows)
    sums = allocate("sums", "u8", (form.size_bytes,))
    memory.run([write, step(HalvedRowsSpec(rows, form, 1), (control, prepared, sums))],
               isa_for("cpu"))  # fmt: skip
    memory_of = memory.array(sums)
    factors = memory_of[form.factors_at :].view(np.float32).reshape(2, -1)[:, : count // 2].ravel()
    assert (np.log2(factors) % 1 == 0).all()
    assert factors[5] == 64 * np.median(factors)
    parts = quarters(x / factors[:, None])
    for number, (terms, _) in enumerate(PRODUCTS):
        right = sum(sign * parts[quarter] for quarter, sign in terms)
        for run in range(form.runs):
            start = run * form.run_bytes + number * form.sum_bytes
            found = memory_of[start : start + count // 2 * form.part.row_bytes]
            found = found.reshape(count // 2, -1).view(ml_dtypes.bfloat16)[:, : form.run]
            assert np.array_equal(found.astype(np.float32), right[:, run * 32 : run * 32 + 32])


def spec_of(**other: Any) -> PanelProductSpec:
    """Return a product that is computed so, but for what is other."""
    sizes = {"depth": 2048, "columns": 2048, "bits": 4, "block": 32, "has_zeros": False}
    sizes |= {name: other.pop(name) for name in tuple(other) if name in sizes}
    weights = BlockWeights(scale="f16", **sizes)
    kind = other.pop("kind", "bf16")
    fields = {"out_row": 2048, "has_bias": False, "max_rows": 512, "is_single": False, **other}
    return PanelProductSpec("bf16", weights, ActivationLayout(kind, sizes["depth"]), **fields)


@pytest.mark.parametrize(
    "other",
    [
        {"depth": 960}, {"bits": 8}, {"kind": "bfp16"}, {"max_rows": 16},
        {"columns": 2080}, {"columns": 1024}, {"depth": 2080}, {"block": 512}, {"max_rows": 508},
    ],
    ids=str,
)  # fmt: skip
def test_which_products(other: dict[str, Any]) -> None:
    found = lower_module.seven_of(spec_of())
    assert found is not None
    assert found.rows.runs == 4
    assert lower_module.seven_of(spec_of(**other)) is None


def test_a_decoder_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of many rows and of few, and what follows them: as with eight multiplications."""
    monkeypatch.setattr(lower_module, "LEAST_DEPTH", 64)
    folder = decoder_folder(tmp_path / "model", Options())
    eight, both = (logits(folder, rows, monkeypatch) for rows in (10**6, 150))
    for few, many in zip(eight, both, strict=True):
        assert close(many, few, 0.03)
    assert not np.array_equal(eight[0], both[0])


def test_products_of_the_same_rows_in_other_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 64 cut half of 1152 into other runs than blocks of 32: rows lie otherwise."""
    monkeypatch.setattr(small_decoders, "HIDDEN", 1152)
    monkeypatch.setattr(small_decoders, "KEY_HEADS", 4)
    folder = decoder_folder(tmp_path / "model", Options(is_split=True, key_block=64))
    eight, both = (logits(folder, rows, monkeypatch) for rows in (10**6, 150))
    for few, many in zip(eight, both, strict=True):
        assert close(many, few, 0.03)
    assert not np.array_equal(eight[0], both[0])


def logits(folder: Path, least_rows: int, monkeypatch: pytest.MonkeyPatch) -> list[Array]:
    """Return what follows prompts of 480 rows and of 120, and a token."""
    if not (isa_for("cpu").has_vnni and isa_for("cpu").has_bf16):
        pytest.skip("this machine has no AVX-512 VNNI and BF16")
    monkeypatch.setattr(lower_module, "LEAST_ROWS", least_rows)
    monkeypatch.setattr(lower_module, "LEAST_COLUMNS", 64)
    tokens = np.random.default_rng(0).integers(0, 320, (3, 200))
    decoder = open_native_decoder(folder, prefill="bf16", threads=2, cache=folder / "code")
    state = decoder.start(3, 210)
    parts = [state.forward(part, True) for part in (tokens[:, :160], tokens[:, 160:])]
    return [*parts, state.forward(tokens[:, :1])]
