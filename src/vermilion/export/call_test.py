from __future__ import annotations

import numpy as np
import pytest

from vermilion.errors import OptionError
from vermilion.export.call import (
    InputSpec,
    match_inputs,
    parse_input,
    parse_inputs,
    sample,
)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("1x3x224x224", InputSpec("", (1, 3, 224, 224))),
        ("7", InputSpec("", (7,))),
        ("1x8:int64", InputSpec("", (1, 8), "int64")),
        ("ids:1x128", InputSpec("ids", (1, 128))),
        ("ids:1x128:int64", InputSpec("ids", (1, 128), "int64")),
        (
            "batch=2x3x224x224",
            InputSpec("", (2, 3, 224, 224), open_names=("batch", "", "", "")),
        ),
        (
            "ids:batch=2xmax_length=16:int64",
            InputSpec("ids", (2, 16), "int64", ("batch", "max_length")),
        ),
    ],
)
def test_an_input_is_read_and_written_back(text: str, spec: InputSpec) -> None:
    assert parse_input(text) == spec
    assert parse_input(str(spec)) == spec


@pytest.mark.parametrize(
    "text",
    ["", "x", "1x", "1x0", "-1x3", "1,3", "ids:", "ids:1x3:int64:more", "a:b:1x3", "1X3",
     "1" * 5000, "batch=x3", "batch=0x3", "=2x3", "2=2x3", "a=2xb", "batchx3"],
)  # fmt: skip
def test_what_is_no_input_says_how_to_write_one(text: str) -> None:
    with pytest.raises(OptionError, match="is not an input") as caught:
        parse_input(text)
    assert "1x3x224x224" in caught.value.hint


def test_an_unknown_type_lists_the_known_ones() -> None:
    with pytest.raises(OptionError, match="`float8` is not a type") as caught:
        parse_input("x:1x3:float8")
    assert "float16" in caught.value.hint


def test_a_dictionary_is_explained_with_the_list_to_write_instead() -> None:
    dictionary = {"x": (1, 3, 8, 8), "mask": np.zeros((1, 8)), "y": "1x2"}
    with pytest.raises(OptionError, match=r"`torch\.onnx\.export` takes .* tuple") as caught:
        parse_inputs(dictionary)  # type: ignore[arg-type]
    assert '`["x:1x3x8x8", "mask:1x8", "y:1x2"]`' in caught.value.hint


@pytest.mark.parametrize("given", [[], "1x3", ["x:1", "x:2"]])
def test_inputs_that_are_none_or_ambiguous_are_refused(given: object) -> None:
    with pytest.raises(OptionError):
        parse_inputs(given)  # type: ignore[arg-type]


def test_an_open_size_has_one_example() -> None:
    parse_inputs(["a:n=2xk=3", "b:n=2"])
    with pytest.raises(OptionError, match="`n` is 2 in one input and 3 in another"):
        parse_inputs(["a:n=2", "b:n=3"])


@pytest.mark.needs("torch")
def test_samples_repeat_and_integers_are_safe_as_ids_and_masks() -> None:
    spec = parse_input("ids:64:int64")
    ids = sample(spec, seed=3).numpy()
    assert ids.dtype == np.int64
    assert set(ids.tolist()) == {0, 1}
    assert np.array_equal(ids, sample(spec, seed=3).numpy())
    assert not np.array_equal(ids, sample(spec, seed=4).numpy())
    assert sample(parse_input("8:float16"), seed=0).numpy().dtype == np.float16
    assert sample(parse_input("8:bool"), seed=0).numpy().dtype == np.bool_


@pytest.mark.needs("torch")
def test_a_size_with_the_name_of_an_input_is_asked_about() -> None:
    import torch

    class Net(torch.nn.Module):
        def forward(self, image: torch.Tensor) -> torch.Tensor:
            return image

    with pytest.raises(OptionError, match="names a dynamic size, and `image` is an input") as told:
        match_inputs(Net(), parse_inputs(["image=1x3x8x8"]))
    assert "`image:SHAPE`" in told.value.hint
    assert match_inputs(Net(), parse_inputs(["image:image=1x3"])).inputs[0].name == "image"
