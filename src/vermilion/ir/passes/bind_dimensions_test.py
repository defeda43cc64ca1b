from pathlib import Path

import numpy as np
import pytest

from vermilion.api import compile_model
from vermilion.errors import OptionError
from vermilion.ir.passes.bind_dimensions import (
    bind_dimensions,
    dimension_options,
    open_dimensions,
    symbolic_names,
)
from vermilion.ir.passes.contract_test import parse

TEXT = "(float[batch, 3, h, w] x, float[batch, 4] z) => (float[batch, 3, h, w] y) { y = Abs(x) }"


def dims(model, name):
    value = next(v for v in [*model.graph.inputs, *model.graph.outputs] if v.name == name)
    return [size if isinstance(size, int) else size.value for size in value.shape.dims]


def test_a_name_is_bound_everywhere_and_the_original_stays() -> None:
    model = parse(TEXT)
    bound = bind_dimensions(model, {"batch": 2, "h": 8})
    assert dims(bound, "x") == [2, 3, 8, "w"]
    assert dims(bound, "z") == [2, 4]
    assert dims(bound, "y") == [None, 3, None, "w"]  # what the nodes make of the inputs
    assert dims(model, "x") == ["batch", 3, "h", "w"]
    assert symbolic_names(bound) == ("w",)


def test_an_input_shape_binds_its_names() -> None:
    bound = bind_dimensions(parse(TEXT), {"x": (1, 3, 8, 16)})
    assert dims(bound, "x") == [1, 3, 8, 16]
    assert dims(bound, "z") == [1, 4]
    assert open_dimensions(bound) == ()


def test_unnamed_and_negative_sizes_are_bound_by_the_shape_alone() -> None:
    model = parse("(float[?, 3, ?, ?] x) => (float[?, 3, ?, ?] y) { y = Abs(x) }")
    assert symbolic_names(model) == ()
    assert open_dimensions(model)[0] == "x (axis 0, no name)"
    assert dims(bind_dimensions(model, {"x": [1, 3, 8, 9]}), "x") == [1, 3, 8, 9]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (
            {"bach": 1},
            ["no dynamic dimension or input shape named `bach`", "did you mean `batch`?"],
        ),
        ({"x": 3}, ["`x` is an input of 4 dimensions", "[batch, 3, h, w]: write all sizes"]),
        ({"x": (1, 3, 8, 10**20)}, ["`x[3]` cannot be"]),
        ({"batch": 2**63}, ["`batch` cannot be"]),
        ({"batch": 10**5000}, ["`batch` cannot be", "digits"]),
        ({"batch": (1, 2)}, ["named `batch`"]),
        ({"batch": 0}, ["cannot be 0"]),
        ({"batch": -1}, ["cannot be -1"]),
        ({"batch": True}, ["cannot be true"]),
        ({"x": (1, 3, 8)}, ["has 3 dimensions, the model's has 4", "[batch, 3, h, w]"]),
        ({"x": (1, 4, 8, 8)}, ["axis 1 is fixed at 3"]),
        ({"batch": 2, "x": (1, 3, 8, 8)}, ["`batch` is bound to both 2 and 1"]),
    ],
)
def test_wrong_requests_are_explained(wanted, words) -> None:
    with pytest.raises(OptionError) as caught:
        bind_dimensions(parse(TEXT), wanted)
    for word in words:
        assert word in str(caught.value)


def test_one_size_is_the_shape_of_an_input_of_one_dimension() -> None:
    model = parse("(float[?] x) => (float[?] y) { y = Abs(x) }")
    assert dims(bind_dimensions(model, {"x": 5}), "x") == [5]


def test_a_name_on_an_output_may_be_another_size(tmp_path: Path) -> None:
    text = """(float[batch, 4] x) => (float[batch, 2] y)
    <int64[2] to = {-1, 2}> { y = Reshape(x, to) }"""
    compiled = compile_model(parse(text), dims={"batch": 3}, cache_dir=tmp_path)
    assert compiled.session().run(None, {"x": np.ones((3, 4), np.float32)})[0].shape == (6, 2)


def test_stale_inferred_shapes_are_forgotten() -> None:
    model = parse("(float[n, 2] x) => (float[n, 2] y) { a = Abs(x) y = Neg(a) }")
    inner = model.graph[0].outputs[0]
    inner.shape = type(model.graph.inputs[0].shape)(["m", 2])
    bound = bind_dimensions(model, {"n": 3})
    assert bound.graph[0].outputs[0].shape is None


@pytest.mark.parametrize(
    ("inputs", "options"),
    [
        ("float[batch, seq, 8] x", "--dim batch=1 --dim seq=128"),
        ("float[batch, 8] x, float[batch, n] y", "--dim batch=1 --dim n=128"),
        ("float[?, 8] x, float[4] y", "--dim x=1x8"),
        ("float[2, 8] x", ""),
    ],
)
def test_all_that_is_open_is_bound(inputs: str, options: str) -> None:
    model = parse(f"({inputs}) => (float z) {{ z = ReduceMax <keepdims = 0> (x) }}")
    assert dimension_options(model) == options
