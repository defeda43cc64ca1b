"""Mixtures of experts as steps, run: against numpy, row by row and expert by expert."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pytest

from described_numbers import mixed
from kernels import Memory, isa_for
from packed_products import Case as Stored
from packed_products import stored
from vermilion.codegen.emit.decoder.control import CONTROL_WORDS, LENGTH, ROWS
from vermilion.codegen.emit.decoder.experts import ExpertProductSpec
from vermilion.codegen.emit.decoder.routes import Routing
from vermilion.codegen.emit.decoder.row import Source
from vermilion.codegen.kernel import Step
from vermilion.codegen.tensor import Buffer, View
from vermilion.errors import UnsupportedError
from vermilion.llm.engine.description import ExpertMatrix, Experts, Rows
from vermilion.llm.engine.lower import lower
from vermilion.llm.engine.lowering import PackedMatrix, Shape, Weighed
from vermilion.llm.engine.matrices import BlockMatrix, Matrix, PlainMatrix
from vermilion.llm.engine.rewrite import join_products

HIDDEN, INNER = 64, 32
EIGHT = Routing(8, 3)
FEW = Shape(16, "int8", "f32", "f32", 1, is_single=True)
MANY = Shape(24, "int8", "f32", "f32", 4, is_single=False)
MANY_FLOATS = Shape(24, "f32", "f32", "f32", 4, is_single=False)


@dataclass(frozen=True)
class Case:
    """A mixture, and for how many rows its program is."""

    shape: Shape
    rows: int
    routing: Routing = EIGHT
    weights: Literal["blocks", "floats"] = "blocks"
    kind: Source = "silu"
    has_biases: bool = False
    has_shared: bool = False
    has_share: bool = False
    are_apart: bool = False  # what gates and what is gated: weights that cannot be one product


CASES = (
    Case(FEW, 1),
    Case(FEW, 5, has_shared=True),
    Case(FEW, 16, Routing(5, 1, is_normed=False), has_shared=True, has_share=True),
    Case(FEW, 2, Routing(40, 7, "sigmoid", scale=1.5), has_biases=True),
    Case(FEW, 3, weights="floats"),
    Case(FEW, 3, Routing(8, 8), are_apart=True),  # every expert has every row
    Case(MANY, 24, Routing(6, 2, "sigmoid", has_bias=True), kind="clamped_silu"),
    Case(MANY, 7, are_apart=True, has_biases=True),
    Case(MANY_FLOATS, 24, has_biases=True, kind="clamped_silu"),  # joined where it is computed
    Case(MANY_FLOATS, 1, weights="floats"),
    Case(MANY_FLOATS, 9, Routing(200, 2), kind="gelu_tanh"),  # more experts than have rows
    Case(MANY_FLOATS, 10, weights="floats", are_apart=True, has_share=True, has_shared=True),
)


def experts(case: Case) -> Experts:
    random, routing = np.random.default_rng(3), case.routing

    def one(depth: int, columns: int, block: int) -> Matrix:
        if case.weights == "floats":
            values = random.standard_normal((depth, columns)).astype(np.float32) / 8
            kind: Any = np.float16 if block == 16 else np.float32
            return Matrix((PlainMatrix(values.astype(kind)),))
        made = stored(Stored(depth, (columns,), block=block, scale=0.03))
        (part,) = made.parts
        assert isinstance(part, BlockMatrix)
        codes = random.integers(0, 256, part.codes.shape).astype(np.uint8)
        return Matrix((replace(part, codes=codes, scales=part.scales.astype(np.float16)),))

    def all_of(depth: int, columns: int, block: int = 32) -> ExpertMatrix:
        matrices = tuple(one(depth, columns, block) for _ in range(routing.experts))
        bias = random.standard_normal((routing.experts, columns)).astype(np.float32)
        return ExpertMatrix(matrices, bias if case.has_biases else None)

    gates = all_of(HIDDEN, INNER)
    ups = all_of(HIDDEN, INNER, 16 if case.are_apart else 32)
    bias = random.standard_normal(routing.experts).astype(np.float32)
    return Experts(
        "node", Rows("x", 0, HIDDEN), Rows("scores", 0, routing.experts), "y", routing,
        (gates, ups), all_of(INNER, HIDDEN), case.kind, bias if routing.has_bias else None,
        Rows("shared", 0, HIDDEN) if case.has_shared else None,
        Rows("scores", routing.experts, 1) if case.has_share else None,
    )  # fmt: skip


def given(case: Case) -> dict[str, Any]:
    random = np.random.default_rng(5)
    widths = {"x": HIDDEN, "scores": case.routing.experts + 8, "shared": HIDDEN}
    return {
        name: random.standard_normal((case.rows, width)).astype(np.float32)
        for name, width in widths.items()
    }


def run(case: Case, operation: Experts, values: dict[str, Any]) -> tuple[tuple[Step, ...], Any]:
    """Lower, compile and run; return the steps and the rows of the result."""
    isa = isa_for("cpu")
    matrices = {}
    for name, one in operation.products:
        form = one.form()
        buffer = Buffer(f"weights {name}", form.size_bytes * len(one.matrices), "input")
        matrices[name] = PackedMatrix(form, buffer)
    widths = {name: array.shape[1] for name, array in values.items()}
    lowered = lower(Weighed((operation,), matrices), case.shape, widths, ["y"])
    memory, inputs = Memory(), {buffer.name: buffer for buffer in lowered.inputs}

    def of(name: str, kind: type) -> Any:
        buffer = inputs[name]
        return memory.bytes_of(View(buffer, "u8", (1,), (1,)))[: buffer.size_bytes].view(kind)

    control = of("control", np.int64)
    control[:CONTROL_WORDS] = 0
    control[[ROWS, LENGTH]] = case.rows
    for name, array in values.items():
        if f"rows {name}" in inputs:
            of(f"rows {name}", np.float32).reshape(-1, widths[name])[: case.rows] = array
    for name, values_ in lowered.constants.items():
        of(name, np.float32)[:] = values_.ravel()
    for name, one in operation.products:
        one.pack(one.form(), of(f"weights {name}", np.uint8))
    memory.run(lowered.steps, isa)
    rows = of("rows y", np.float32).reshape(-1, lowered.widths["y"])
    return lowered.steps, rows[: case.rows, :HIDDEN].copy()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_mixture(case: Case) -> None:
    (operation,) = join_products([experts(case)])
    assert isinstance(operation, Experts)
    assert len(operation.first) == 1 + case.are_apart
    values = given(case)
    steps, found = run(case, operation, values)

    def read(own: Rows) -> Any:
        return values[own.buffer][:, own.offset : own.offset + own.width].astype(np.float64)

    wanted = mixed(operation, read)
    limit = 3e-2 if case.shape.codes == "int8" and case.weights == "blocks" else 1e-5
    assert np.abs(found - wanted).max() < limit * np.abs(wanted).max()
    is_gated = len([one for one in steps if isinstance(one.spec, ExpertProductSpec)]) == 2 and not [
        one for one in steps if one.spec.family == "routed_rows"
    ]
    assert is_gated == (case.shape is MANY_FLOATS and not case.are_apart)


def test_a_router_without_a_number_chooses_some_experts() -> None:
    """Rows of damaged weights are no other rows' memory."""
    case = Case(FEW, 4)
    (operation,) = join_products([experts(case)])
    assert isinstance(operation, Experts)
    values = given(case)
    whole = run(case, operation, values)[1]
    values["scores"][1] = np.nan
    values["scores"][2] = -np.inf
    found = run(case, operation, values)[1]
    assert np.isfinite(found).all()
    assert np.array_equal(found[[0, 3]], whole[[0, 3]])


def test_experts_have_one_type_of_weights() -> None:
    one, other = (Matrix((PlainMatrix(np.zeros((64, 32), kind)),)) for kind in ("f4", "f2"))
    with pytest.raises(UnsupportedError, match="several types"):
        ExpertMatrix((one, other)).form()
