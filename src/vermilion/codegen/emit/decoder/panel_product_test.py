"""Products of panels with a bias, of few rows and of many, ended by every gate, against numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest

from kernels import isa_for
from packed_products import ROOM, Array, Case, close, numbers, numbers_of, stored, written
from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.panel_product import PanelProductSpec
from vermilion.codegen.emit.decoder.panel_tile import Gate
from vermilion.codegen.emit.decoder.row import Source
from vermilion.codegen.emit.decoder.weights import PANEL
from vermilion.codegen.kernel import Step
from vermilion.llm.engine.matrices import Matrix, PlainMatrix

Kind = Literal["f32", "bf16", "bfp16"]
UNTOUCHED = -7.0
# bfloat16 has 8 bits, a block of eight shares an exponent and has 7; scales in float16 have 11.
LIMITS: dict[Kind, float] = {"f32": 6e-4, "bf16": 8e-3, "bfp16": 3e-2}


@dataclass(frozen=True)
class _Product:
    """A matrix with its numbers, rows and a bias, and what they give."""

    matrix: Matrix
    values: Array
    rows: Array
    bias: Array

    @property
    def wanted(self) -> Array:
        result: Array = self.rows.astype(np.float64) @ self.values + self.bias
        return result


def _plain(depth: int, *columns: int) -> tuple[Matrix, Array]:
    values = np.random.default_rng(depth).standard_normal((depth, sum(columns)))
    values = values.astype(np.float32)
    parts = np.split(values, np.cumsum(columns)[:-1], axis=1)
    return Matrix(tuple(map(PlainMatrix, parts))), values


def _codes(case: Case) -> tuple[Matrix, Array]:
    matrix = stored(case)
    return matrix, numbers(matrix)


def _product(weights: tuple[Matrix, Array], count: int) -> _Product:
    matrix, values = weights
    random = np.random.default_rng(count)
    # As large as the sums: lost or added twice, it is seen in every number format.
    spread = float(np.abs(values).mean()) * math.sqrt(len(values))
    bias = random.standard_normal(matrix.columns).astype(np.float32) * np.float32(spread)
    rows = random.standard_normal((count, len(values))).astype(np.float32)
    return _Product(matrix, values, rows, bias)


def _run(product: _Product, kind: Kind, target: Array, **more: Any) -> Array:
    """Multiply over `target`, of which the result is what it then holds."""
    form, weights = ActivationLayout(kind, product.matrix.form().depth), product.matrix.form()
    memory, write, (control, rows, codes) = written(product.matrix, product.rows, form)
    padded = np.pad(product.bias, (0, weights.panels * PANEL - product.bias.size))
    out = memory.tensor("out", target, "u8" if target.dtype == np.uint8 else "f32")
    settings = {"out_row": target.shape[1], "is_single": False, **more}
    spec = PanelProductSpec(
        "f32" if kind == "f32" else "bf16", weights, form, has_bias=True, max_rows=ROOM, **settings
    )
    arguments = (control, rows, codes, out, memory.tensor("bias", padded))
    memory.run([write, Step(spec, arguments, (out,))], isa_for("cpu"))
    return memory.array(out).copy()


def _floats(product: _Product, kind: Kind, **more: Any) -> Array:
    width = product.matrix.form().panels * PANEL
    return _run(product, kind, np.full((ROOM, width), UNTOUCHED, np.float32), **more)


# Tiles are of twelve, eight and four rows: one that is not full, one and another, all of them.
@pytest.mark.parametrize(
    ("kind", "count"),
    [("f32", 1), ("f32", 13), ("bf16", 3), ("bf16", 23), ("bf16", ROOM), ("bfp16", 17)],
)
def test_rows_and_a_bias(kind: Kind, count: int) -> None:
    # Two runs of the depth, the last block not full, and five panels, the last not full.
    product = _product(_codes(Case(496, (101, 40), block=64, has_zeros=True)), count)
    found = _floats(product, kind)
    assert close(found[:count, : product.bias.size], product.wanted, LIMITS[kind])
    beyond = -(-count // 4) * 4  # rows are computed in fours
    assert (found[beyond:] == UNTOUCHED).all()


@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize(("depth", "columns"), [(16, (1,)), (784, (70, 30)), (272, (33,))])
def test_plain_weights_and_a_bias(depth: int, columns: tuple[int, ...], kind: Kind) -> None:
    product = _product(_plain(depth, *columns), 6)
    found = _floats(product, kind)[:6, : sum(columns)]
    assert close(found, product.wanted, 1e-5 if kind == "f32" else LIMITS[kind])


@pytest.mark.parametrize("storage", ["float16", "bfloat16"])
def test_plain_weights_of_16_bits_stay_what_they_are(storage: str) -> None:
    type_ = np.dtype(np.float16) if storage == "float16" else np.dtype(ml_dtypes.bfloat16)
    _, values = _plain(272, 33)
    matrix = Matrix((PlainMatrix(values.astype(type_)),))
    assert matrix.form().size_bytes == 272 * 64 * 2
    product = _product((matrix, values.astype(type_).astype(np.float32)), 6)
    assert close(_floats(product, "f32")[:6, :33], product.wanted, 1e-5)


@pytest.mark.parametrize("count", [1, 5])
def test_single_rows_write_nothing_beside_them(count: int) -> None:
    product = _product(_plain(80, 65), count)
    found = _floats(product, "f32", is_single=True)
    assert close(found[:count, :65], product.wanted, 1e-5)
    assert (found[count:] == UNTOUCHED).all()


@pytest.mark.parametrize(("most", "is_there"), [(8, True), (7, False)])
def test_more_rows_than_it_is_for_are_another_kernels(most: int, is_there: bool) -> None:
    product = _product(_codes(Case(64, (64,))), 8)
    found = _floats(product, "bf16", most_rows=most)
    if is_there:
        assert close(found[:8], product.wanted, LIMITS["bf16"])
    else:
        assert (found == UNTOUCHED).all()


def _erf(x: Array) -> Array:
    return np.vectorize(math.erf)(x)


GATES: dict[Source, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
}


@pytest.mark.parametrize(
    ("gate", "kind"), [("silu", "f32"), ("gelu", "bf16"), ("gelu_tanh", "bf16")]
)
def test_a_gate_at_its_end(gate: Source, kind: Kind) -> None:
    # Two runs of the depth, three pairs of panels: the gate's columns, then what they gate.
    product = _product(_codes(Case(512, (96, 96), scale=0.01)), 5)
    form = ActivationLayout(kind, 96)
    target = np.zeros((ROOM, form.row_bytes), np.uint8)
    written_rows = _run(product, kind, target, gate=Gate(gate, form), out_row=0)
    halves = product.wanted[:, :96], product.wanted[:, 96:]
    wanted = GATES[gate](halves[0]) * halves[1]
    # Both factors are rounded sums, and what they give is rounded once more.
    assert close(numbers_of(written_rows[:5], form), wanted, 3 * LIMITS[kind])
