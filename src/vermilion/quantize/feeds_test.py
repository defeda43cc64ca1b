from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.errors import OptionError
from vermilion.quantize.feeds import checked, input_slots

MODEL = ir.from_proto(
    onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[n,3] x, int64[2] ids) => (float[n,3] y)'
        "{ y = Identity(x) }"
    )
)
SLOTS = input_slots(MODEL)
IDS = np.zeros(2, np.int64)


def test_fitting_samples_pass() -> None:
    samples = [{"x": np.zeros((n, 3), np.float32), "ids": IDS} for n in (1, 5)]
    assert [sample["x"].shape for sample in checked(samples, SLOTS)] == [(1, 3), (5, 3)]


def test_samples_are_taken_one_at_a_time() -> None:
    taken: list[int] = []

    def source():
        for number in range(3):
            taken.append(number)
            yield {"x": np.zeros((1, 3), np.float32), "ids": IDS}

    next(checked(source(), SLOTS))
    assert taken == [0]


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({"x": np.zeros((1, 3), np.float32)}, "the inputs `x`, the model takes `ids`, `x`"),
        ({"x": np.zeros((1, 3)), "ids": IDS}, "`x` got float64 and expected float32"),
        (
            {"x": np.zeros((1, 4), np.float32), "ids": IDS},
            r"`x` got float32\[1,4\] and expected float32\[\?,3\]",
        ),
        ({"x": np.zeros(3, np.float32), "ids": IDS}, r"got float32\[3\]"),
        ({"x": [1.0], "ids": IDS}, "`x` got `list` and expected a NumPy array"),
    ],
)
def test_others_are_refused_by_name(sample: dict[str, np.ndarray], words: str) -> None:
    fine = {"x": np.zeros((1, 3), np.float32), "ids": IDS}
    with pytest.raises(OptionError, match=words) as caught:
        list(checked([fine, sample], SLOTS))
    assert caught.value.where == "calibration sample 1"
