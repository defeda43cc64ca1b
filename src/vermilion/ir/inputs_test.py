import numpy as np
import onnx_ir as ir
import pytest

from vermilion.errors import ModelError, UnsupportedError
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.inputs import sample_inputs
from vermilion.ir.passes.contract_test import parse, weight
from vermilion.ir.samples.open_sizes import IMAGE_SIDE

TEXT = """(float[2,3] f, int64[4] i, uint8[4] u, bool[3] b, string[2] s, float16[2] h)
=> (bool[3] y) { y = Not(b) }"""


def test_each_type_has_its_values() -> None:
    inputs = sample_inputs(parse(TEXT))
    assert inputs["f"].shape == (2, 3)
    assert inputs["f"].dtype == np.float32
    assert set(inputs["i"].tolist()) <= {0, 1}
    assert inputs["u"].dtype == np.uint8
    assert inputs["b"].tolist() == [True, False, True]
    assert inputs["s"].tolist() == ["a", "a"]
    assert inputs["h"].dtype == np.float16
    model = parse(TEXT)
    run_session(open_session(model), inputs)


def test_same_seed_same_values_and_another_another() -> None:
    first, again = sample_inputs(parse(TEXT)), sample_inputs(parse(TEXT))
    assert np.array_equal(first["f"], again["f"])
    assert not np.array_equal(first["f"], sample_inputs(parse(TEXT), seed=1)["f"])


@pytest.mark.parametrize(
    ("declared", "shape"),
    [
        ("float[n, 3, h, w] x", (1, 3, IMAGE_SIDE, IMAGE_SIDE)),
        ("float[?, 3, 32, w] x", (1, 3, 32, IMAGE_SIDE)),
        ("int64[n, s] x", (1, 1)),
        ("int64[n, 3, h, w] x", (1, 3, 1, 1)),
        ("float[n, s, 8] x", (1, 1, 8)),
        ("float x", ()),
        ("float[0] x", (0,)),
    ],
)
def test_open_sizes(declared, shape) -> None:
    kind = declared.split("[")[0].split()[0]
    model = parse(f"({declared}) => ({kind} y) {{ y = Abs(x) }}")
    assert sample_inputs(model)["x"].shape == shape


def test_a_size_of_minus_one_is_open() -> None:
    model = parse("(float[2] x) => (float[2] y) { y = Abs(x) }")
    model.graph.inputs[0].shape = ir.Shape([-1])
    assert sample_inputs(model)["x"].shape == (1,)


def test_inputs_with_a_default_are_left_to_it() -> None:
    model = parse("(float[2] x, float[2] w) => (float[2] y) { y = Add(x, w) }", w=weight(2))
    model.graph.inputs.append(model.graph.initializers["w"])
    assert list(sample_inputs(model)) == ["x"]


def test_refuses_huge_inputs_before_making_them() -> None:
    model = parse("(float[1000000, 1000000] x) => (float[1] y) { y = ReduceSum(x) }")
    with pytest.raises(ModelError, match="would need more than 1024 MiB") as caught:
        sample_inputs(model)
    assert caught.value.where == "input `x`"


def test_a_sequence_is_a_list_of_tensors() -> None:
    model = parse("(seq(float[2]) x) => (int64 y) { y = SequenceLength(x) }")
    drawn = sample_inputs(model)["x"]
    assert [array.shape for array in drawn] == [(2,), (2,)]


def test_refuses_types_that_onnx_runtime_does_not_have() -> None:
    model = parse("(float[2] x) => (float[2] y) { y = Abs(x) }")
    model.graph.inputs[0].type = ir.TensorType(ir.DataType.COMPLEX64)
    with pytest.raises(UnsupportedError, match="the type COMPLEX64"):
        sample_inputs(model)
