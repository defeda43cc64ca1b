"""Attention against numpy: edges of blocks and tiles, both number formats, masks, epilogues."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import TARGETS, Memory, isa_for
from vermilion.codegen.emit.attention import AttentionSpec
from vermilion.codegen.emit.matmul import Panels
from vermilion.codegen.emit.pack import PackSpec
from vermilion.codegen.emit.walk import matrices
from vermilion.codegen.isa import Isa
from vermilion.codegen.kernel import Step
from vermilion.codegen.numeric import NumericName
from vermilion.codegen.tensor import Storage, View, allocate
from vermilion.codegen.tile import Patch
from vermilion.ir.expression import Constant, Operand, apply

Array = NDArray[Any]

# Sums of bfloat16 products are in float32: what is left is the rounding of weights and results.
TOLERANCE: dict[NumericName, float] = {"f32": 2e-6, "bf16": 2.0**-7}

PATCH = Patch(4, 2)


@dataclass(frozen=True)
class Case:
    """Heads of query (rows × depth), keys and values; and how they are cut."""

    heads: int
    rows: int
    keys: int
    depth: int
    width: int
    block_rows: int = 32
    block_vectors: int = 0  # of keys, in blocks of the score tile; 0: all keys are one block
    score_tile: Patch = PATCH
    context_tile: Patch = PATCH

    def block_keys(self, isa: Isa) -> int:
        return self.block_vectors * self.score_tile.vectors * isa.lanes or self.keys


CASES = (
    Case(1, 4, 32, 16, 32),
    Case(2, 5, 33, 7, 17, block_rows=4),  # nothing is a multiple of anything
    Case(1, 1, 1, 1, 1, block_rows=1),
    Case(3, 9, 100, 8, 40, block_rows=4, block_vectors=1),  # several blocks of keys, and a rest
    Case(1, 8, 128, 4, 16, block_rows=8, block_vectors=2),  # several, and none
    Case(1, 33, 20, 3, 5, block_rows=32, score_tile=Patch(6, 1), context_tile=Patch(3, 1)),
    Case(2, 3, 65, 2, 64, block_rows=3, block_vectors=1, context_tile=Patch(2, 3)),
)


def numerics(target: str) -> list[NumericName]:
    return ["f32", "bf16"] if isa_for(target).has_bf16 else ["f32"]


def softmax(x: Array) -> Array:
    """Return the softmax of rows.

    A row that is masked out everywhere has weights of nought by 0.
    """
    top = np.where(np.isneginf(x.max(-1, keepdims=True)), 0.0, x.max(-1, keepdims=True))
    weights = np.exp(x - top)
    return np.asarray(weights / weights.sum(-1, keepdims=True))


def packed(
    memory: Memory, name: str, x: Array, numeric: NumericName, isa: Isa, vectors: int
) -> tuple[View, Step]:
    """Return the panels of matrices (heads, depth, columns), and the step that packs them."""
    storage: Storage = "bf16" if numeric == "bf16" else "f32"
    source = memory.tensor(name, x, storage)
    outer = ((x.shape[0], source.strides[0]),)
    spec = PackSpec(
        numeric, storage, isa.lanes, outer, *x.shape[1:], source.strides[1], source.strides[2],
        vectors,
    )  # fmt: skip
    out = allocate(f"{name} packed", "i32", (x.shape[0] * spec.matrix_elements,))
    return out, Step(spec, (source, out), (out,))


def attention(
    case: Case, numeric: NumericName, target: str, mask: Array | None, *, residual: bool = False
) -> tuple[Array, Array]:
    """Run one attention; give what came and what should."""
    memory, isa = Memory(), isa_for(target)
    random = np.random.default_rng(0)
    shapes = (
        (case.rows, case.depth), (case.depth, case.keys), (case.keys, case.width),
        (case.rows, case.width),
    )  # fmt: skip
    query, key, value, more = (
        random.standard_normal((case.heads, *shape)).astype(np.float32) for shape in shapes
    )
    storage: Storage = "f32"
    if numeric == "bf16":
        storage = "bf16"
        query, key, value = (
            x.astype(ml_dtypes.bfloat16).astype(np.float32) for x in (query, key, value)
        )
    query_view = memory.tensor("query", query, storage)
    key_view, pack_key = packed(memory, "key", key, numeric, isa, case.score_tile.vectors)
    steps = [pack_key]
    if numeric == "bf16":
        value_view, pack = packed(memory, "value", value, numeric, isa, case.context_tile.vectors)
        steps.append(pack)
        value_walk: Any = Panels((1,))
    else:
        value_view = memory.tensor("value", value)
        value_walk = matrices(value_view, value.shape)
    out = allocate("out", "f32", (case.heads, case.rows, case.width))
    score = apply("mul", Operand(0), Constant(0.25))
    scores = np.einsum("hrd,hdk->hrk", query, key, dtype=np.float64) * 0.25
    score_views: list[View] = []
    views: list[View] = []
    if mask is not None:
        score_views.append(memory.tensor("mask", mask))
        score = apply("add", score, Operand(1))
        scores = scores + mask
    expression = apply("add", Operand(0), Operand(1)) if residual else Operand(0)
    if residual:
        views.append(memory.tensor("more", more))
    spec = AttentionSpec(
        numeric=numeric, lanes=isa.lanes, outer=(case.heads,), rows=case.rows, keys=case.keys,
        depth=case.depth, width=case.width, query=matrices(query_view, query.shape),
        key=Panels((1,)), value=value_walk, output=matrices(out, out.shape),
        score_operands=tuple(matrices(view, scores.shape) for view in score_views),
        operands=tuple(matrices(view, out.shape) for view in views),
        score_expression=score, expression=expression, score_tile=case.score_tile,
        context_tile=case.context_tile, block_rows=min(case.block_rows, case.rows),
        block_keys=case.block_keys(isa),
    )  # fmt: skip
    arguments = (query_view, key_view, value_view, out, *score_views, *views)
    steps.append(Step(spec, arguments, (out,)))
    memory.run(steps, isa)
    wanted = np.einsum("hrk,hkw->hrw", softmax(scores), value.astype(np.float64))
    return memory.array(out), wanted + more if residual else wanted


def error(found: Array, wanted: Array) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_sizes_at_and_off_the_edges_of_tiles(case: Case, target: str) -> None:
    for numeric in numerics(target):
        assert error(*attention(case, numeric, target, None)) < TOLERANCE[numeric], numeric


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", ["keys", "rows and keys", "heads, rows and keys"])
def test_a_mask_is_added_to_the_scores(shape: str, target: str) -> None:
    case = CASES[3]
    sizes = {
        "keys": (1, 1, case.keys), "rows and keys": (1, case.rows, case.keys),
        "heads, rows and keys": (case.heads, case.rows, case.keys),
    }  # fmt: skip
    mask = np.random.default_rng(1).standard_normal(sizes[shape]).astype(np.float32)
    for numeric in numerics(target):
        assert error(*attention(case, numeric, target, mask)) < TOLERANCE[numeric], numeric


@pytest.mark.parametrize("target", TARGETS)
def test_blocks_that_are_masked_out_change_nothing(target: str) -> None:
    case = replace(CASES[3], heads=1)
    mask = np.zeros((1, case.rows, case.keys), np.float32)
    edge = case.block_keys(isa_for(target))
    assert edge < case.keys
    mask[:, ::2, :edge] = -np.inf  # the first block gives such rows no highest score
    mask[:, 1::2, edge:] = -np.inf
    mask[:, 0, :-1] = -np.inf  # one key is left
    for numeric in numerics(target):
        found, wanted = attention(case, numeric, target, mask)
        assert np.isfinite(found).all()
        assert error(found, wanted) < TOLERANCE[numeric], numeric


def test_scores_of_any_size_neither_overflow_nor_lose_the_highest() -> None:
    case = CASES[3]
    mask = np.linspace(-3e4, 3e4, case.keys, dtype=np.float32).reshape(1, 1, -1)
    found, wanted = attention(case, "f32", "cpu", mask)
    assert np.isfinite(found).all()
    assert error(found, wanted) < 1e-5


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES[:4], ids=str)
def test_the_result_goes_through_an_expression(case: Case, target: str) -> None:
    for numeric in numerics(target):
        found, wanted = attention(case, numeric, target, None, residual=True)
        assert error(found, wanted) < TOLERANCE[numeric], numeric
