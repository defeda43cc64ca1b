from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from models import Net, small_cnn
from vermilion.backends.iree.half import to_half
from vermilion.errors import UnsupportedError
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.literal.types import complete_types
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.samples import sample_inputs

HALF, FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT


def types_of(model: ir.Model, op_type: str) -> set[ir.DataType | None]:
    return {node.outputs[0].dtype for node in model.graph if node.op_type == op_type}


def chain(scale: float = 1.0, constant: float = 1.0) -> ir.Model:
    """Return x·w → Mul → Add → Softmax, of which the first three can be float16."""
    net = Net("chain", seed=3)
    x = net.input("x", (2, 32))
    y = net.op("MatMul", x, net.constant("w", net.normal((32, 32), 0.2)), name="product")
    y = net.op("Mul", y, net.constant("s", np.float32([scale])), name="scaled")
    y = net.op("Mul", y, net.constant("t", np.float32([1 / scale])), name="back")
    y = net.op("Add", y, net.constant("c", np.float32([constant])), name="shifted")
    net.output(net.op("Softmax", y, name="softmax"), "y", (2, 32))
    return typed(net.model())


def typed(model: ir.Model) -> ir.Model:
    complete_types(model)
    return model


def test_what_is_safe_is_half_and_what_is_sensitive_is_not() -> None:
    model = chain()
    half = to_half(model)
    assert types_of(half.model, "MatMul") == types_of(half.model, "Add") == {HALF}
    assert types_of(half.model, "Softmax") == {FLOAT}
    assert (half.converted, half.kept) == (4, {})
    assert half.min_cosine > 0.99999
    assert [v.dtype for v in (*half.model.graph.inputs, *half.model.graph.outputs)] == [
        FLOAT,
        FLOAT,
    ]
    assert types_of(model, "MatMul") == {FLOAT}, "the model given is not changed"
    stored = half.model.graph.initializers
    assert "w" not in stored
    assert stored["w_fp16"].const_value.dtype == HALF


def test_two_casts_and_no_more_cross_a_chain() -> None:
    half = to_half(typed(simplify(small_cnn()).model))
    casts = [node for node in half.model.graph if node.op_type == "Cast"]
    # In, around the global average, which sums many elements, and out.
    assert len(casts) == 4
    assert types_of(half.model, "Conv") == types_of(half.model, "Gemm") == {HALF}
    assert types_of(half.model, "GlobalAveragePool") == {FLOAT}


def test_what_leaves_the_range_stays_float32() -> None:
    model = chain(scale=1e5)
    half = to_half(model)
    assert set(half.kept) == {"scaled_output", "back_output"}
    assert "beyond float16" in half.kept["scaled_output"]
    assert "trial run" in half.kept["back_output"]
    inputs = sample_inputs(model)
    expected = run_session(open_session(model), inputs)["y"]
    found = run_session(open_session(half.model), inputs)["y"]
    np.testing.assert_allclose(found, expected, atol=2e-3)


def test_a_mask_constant_beyond_the_range_is_not_infinity() -> None:
    half = to_half(chain(constant=-3.4e38))
    assert list(half.kept) == ["shifted_output"]
    assert types_of(half.model, "MatMul") == {HALF}


def test_an_output_that_others_read_too_keeps_its_name_and_type() -> None:
    net = Net("two", seed=4)
    x = net.input("x", (1, 8))
    y = net.op("MatMul", x, net.constant("w", net.normal((8, 8), 0.3)), name="a")
    net.output(y, "first", (1, 8))
    net.output(net.op("Exp", net.op("Relu", y, name="r"), name="e"), "second", (1, 8))
    half = to_half(typed(net.model()))
    assert [(v.name, v.dtype) for v in half.model.graph.outputs] == [
        ("first", FLOAT),
        ("second", FLOAT),
    ]
    inputs = sample_inputs(half.model)
    assert np.isfinite(run_session(open_session(half.model), inputs)["second"]).all()


def test_a_part_without_anything_to_convert() -> None:
    net = Net("exp", seed=5)
    net.output(net.op("Exp", net.input("x", (4,)), name="e"), "y", (4,))
    with pytest.raises(UnsupportedError, match="no operator of this part") as error:
        to_half(typed(net.model()))
    assert "fp32" in error.value.hint


def test_what_only_moves_a_float32_result_does_not_round_it() -> None:
    net = Net("moved", seed=6)
    x = net.input("x", (2, 32))
    y = net.op("MatMul", x, net.constant("w", net.normal((32, 32), 0.2)), name="product")
    y = net.op("Transpose", net.op("Softmax", y, name="softmax"), name="turned", perm=[1, 0])
    y = net.op("Reshape", y, net.constant("shape", np.int64([32, 2])), name="shaped")
    net.output(y, "y", (32, 2))
    half = to_half(typed(net.model()))
    assert types_of(half.model, "MatMul") == {HALF}
    assert types_of(half.model, "Transpose") == types_of(half.model, "Reshape") == {FLOAT}
    assert set(half.kept) == {"turned_output", "y"}
    assert sum(node.op_type == "Cast" for node in half.model.graph) == 2
