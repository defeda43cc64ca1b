"""Types of weights in GGUF files: their numbers bit for bit, and products that read them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels import isa_for
from packed_products import ROOM, step, written
from vermilion.codegen.emit.decoder.activation_layout import ActivationLayout
from vermilion.codegen.emit.decoder.block_product import BlockProductSpec
from vermilion.codegen.emit.decoder.panel_product import PanelProductSpec
from vermilion.codegen.emit.decoder.weights import PANEL, BlockWeights
from vermilion.codegen.kernel import Spec
from vermilion.codegen.tensor import allocate
from vermilion.llm.engine.block_forms import BlockType
from vermilion.llm.engine.block_types import block_type, block_types
from vermilion.llm.engine.matrices import Matrix, StoredMatrix

DEPTH, COLUMNS = 512, 48
# Where a block has its float16 scales.
SCALES: dict[str, tuple[int, ...]] = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82),
    "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "TQ1_0": (52,), "TQ2_0": (64,), "IQ2_XXS": (0,), "IQ2_XS": (0,), "IQ2_S": (0,), "IQ3_XXS": (0,),
    "IQ3_S": (0,), "IQ1_S": (0,),
}  # fmt: skip
# One of each form that kernels tell apart; the others take as long and add nothing.
FORMS = ("Q4_1", "Q4_K", "Q6_K", "IQ4_NL", "MXFP4")


def random_rows(type_: BlockType, count: int = COLUMNS, depth: int = DEPTH) -> NDArray[np.uint8]:
    """Return rows of random codes, with scales that a model could have."""
    random = np.random.default_rng(7)
    shape = (count, depth // type_.values, type_.bytes)
    blocks = random.integers(0, 256, shape, dtype=np.uint8)
    for place in SCALES.get(type_.name, ()):
        scales = (random.standard_normal(shape[:2]) * 0.02).astype(np.float16)
        blocks[:, :, place : place + 2] = scales[..., None].view(np.uint8)
    if type_.name == "MXFP4":
        blocks[:, :, 0] = random.integers(118, 126, shape[:2])
        blocks[0, 0, 0] = 1  # not a normal number
    if type_.name == "IQ1_M":  # whose scale lies in the highest bits of four words
        blocks[:, :, (49, 51, 53)] &= 15
        blocks[:, :, 55] = (blocks[:, :, 55] & 15) | 32
    return blocks.reshape(count, -1)


@pytest.mark.needs("gguf")
@pytest.mark.parametrize("name", block_types())
def test_numbers_are_the_reference_s_bit_for_bit(name: str) -> None:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    type_ = block_types()[name]
    rows = random_rows(type_)
    theirs = dequantize(rows, GGMLQuantizationType[name])
    assert np.isfinite(theirs).all()
    assert np.array_equal(type_.dequantize(rows).view(np.uint32), theirs.view(np.uint32))


@pytest.mark.parametrize(
    "name", [*FORMS, *(pytest.param("NVFP4", marks=pytest.mark.long),
                       pytest.param("Q5_1", marks=pytest.mark.long),
                       pytest.param("Q2_K", marks=pytest.mark.long),
                       pytest.param("IQ4_XS", marks=pytest.mark.long))]
)  # fmt: skip
@pytest.mark.parametrize(("kind", "limit"), [("int8", 4e-3), ("f32", 1e-6)])
def test_products_read_them(name: str, kind: Literal["int8", "f32"], limit: float) -> None:
    type_ = block_type(name)
    assert type_ is not None
    rows = random_rows(type_)
    numbers = type_.dequantize(rows).astype(np.float64)
    x = np.random.default_rng(1).standard_normal((7, DEPTH)).astype(np.float32)
    # A part in another order behind one that ends inside a panel.
    order = np.random.default_rng(2).permutation(COLUMNS)
    parts = (StoredMatrix(DEPTH, type_, rows), StoredMatrix(DEPTH, type_, rows, order))
    found = multiplied(Matrix(parts), x, kind)
    whole = np.concatenate([numbers, numbers[order]])
    share = np.abs(found - x @ whole.T) / (np.abs(x) @ np.abs(whole).T)
    assert share.max() < limit


def multiplied(matrix: Matrix, x: NDArray[np.float32], kind: Literal["int8", "f32"]) -> Any:
    form = matrix.form()
    assert isinstance(form, BlockWeights)
    block, zero = (form.block, form.zero) if kind == "int8" else (0, 0)
    rows = ActivationLayout(kind, DEPTH, block, zero)
    memory, write, read = written(matrix, x, rows)
    width = form.panels * PANEL
    out = allocate("out", "f32", (ROOM, width))
    spec: Spec = BlockProductSpec(form, rows, width, 6, has_bias=False)
    if kind == "f32":
        spec = PanelProductSpec("f32", form, rows, width, False, ROOM, is_single=False)
    memory.run([write, step(spec, (*read, out))], isa_for("cpu"))
    return memory.array(out)[: len(x), : matrix.columns].copy()


def test_what_a_weight_costs_is_said() -> None:
    stored = {name: (one.stored_bits, one.packed_bits) for name, one in block_types().items()}
    assert stored["Q4_0"] == (4.5, 4.5)
    assert stored["Q4_K"] == (4.5, 4.75)
    assert stored["Q6_K"] == (6.5625, 8.625)  # through eight bits
