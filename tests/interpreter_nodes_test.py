"""The ONNX backend node tests through the interpreter: all but those excused here, by reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx.backend.test.case.test_case import TestCase

from onnx_cases import MODULES, cases_of
from vermilion.ir.literal.interpret import interpret
from vermilion.ir.literal.table import OPERATORS

Array = NDArray[Any]

EXCUSED: dict[str, tuple[str, ...]] = {
    "random numbers": (
        "test_bernoulli", "test_bernoulli_expanded", "test_bernoulli_double",
        "test_bernoulli_double_expanded", "test_bernoulli_seed", "test_bernoulli_seed_expanded",
        "test_training_dropout", "test_training_dropout_default", "test_training_dropout_mask",
        "test_training_dropout_default_mask",
    ),
    "operators of training": (
        "test_adagrad", "test_adagrad_multiple", "test_adam", "test_adam_multiple",
        "test_momentum", "test_momentum_multiple", "test_nesterov_momentum",
    ),
    "a preview, in no runtime yet": (
        "test_flexattention", "test_flexattention_scaled", "test_flexattention_gqa",
        "test_flexattention_diff_head_sizes", "test_flexattention_score_mod",
        "test_flexattention_prob_mod", "test_flexattention_fp16", "test_flexattention_double",
        "test_flexattention_causal_mask", "test_flexattention_soft_cap",
        "test_flexattention_relative_positional",
    ),
    "the operator of version 8, which ran over a batch": ("test_scan_sum",),
    # The standard's words are "the length of the resized tensor"; these two divide by a length
    # that is a fraction. ONNX Runtime and PyTorch do as the words say.
    "the last element is not aligned": (
        "test_resize_downsample_scales_linear_align_corners",
        "test_resize_downsample_scales_cubic_align_corners",
    ),
    # Its indices are those of a tensor of another shape than the one that it asks for.
    # ONNX Runtime places by the shape asked for, as we do.
    "indices of another shape": ("test_maxunpool_export_with_output_shape",),
}  # fmt: skip

# Of 1867, when this was written; more are welcome.
LEAST_PASSED = 1835

# Relative to the largest of the expected numbers, which are float32 sums or float16 roundings.
TOLERANCE = {"float16": 2.0**-9, "bfloat16": 2.0**-6, "float32": 1e-5, "float64": 1e-6}

# What these expect is written with four digits.
WRITTEN_SHORT = (
    "test_averagepool_2d_ceil_last_window_starts_on_pad", "test_roialign_aligned_false",
    "test_roialign_aligned_true",
)  # fmt: skip
FOUR_DIGITS = 1e-4


def value_of(given: Any) -> Any:
    """Return what a case holds as the interpreter does: an array, a list of them, or nothing."""
    if isinstance(given, onnx.TensorProto):
        return ir.serde.deserialize_tensor(given).numpy()
    if isinstance(given, list) or given is None:
        return given
    array = np.asarray(given)
    return array.astype(object) if array.dtype.kind in "US" else array


def hold_equal(got: Any, wanted: Any, digits: float = 0.0) -> None:
    """Hold two results to each other: types, shapes, numbers, which may be `digits` apart."""
    if wanted is None or isinstance(wanted, list):
        assert type(got) is type(wanted)
        for one, other in zip(got or [], wanted or [], strict=True):
            hold_equal(one, value_of(other))
        return
    assert got.dtype == wanted.dtype, f"{got.dtype}, not {wanted.dtype}"
    assert got.shape == wanted.shape, f"{got.shape}, not {wanted.shape}"
    tolerance = max(digits, TOLERANCE.get(str(wanted.dtype), 0.0))
    if wanted.dtype.kind in "biuO" or "int" in str(wanted.dtype):
        np.testing.assert_array_equal(got, wanted)
        return
    one, other = got.astype(np.float64), wanted.astype(np.float64)
    size = np.max(np.abs(other), initial=1.0, where=np.isfinite(other))
    np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * size)


def run(case: TestCase) -> None:
    """Hold the interpreter to what the case expects."""
    model = ir.from_proto(case.model)
    names = [info.name for info in case.model.graph.input]
    digits = FOUR_DIGITS if case.name in WRITTEN_SHORT else 0.0
    for given, wanted in case.data_sets:
        feed = {name: value_of(value) for name, value in zip(names, given, strict=True)}
        found = interpret(model, feed)
        for got, expected in zip(found.values(), wanted, strict=True):
            hold_equal(got, value_of(expected), digits)


def test_what_the_standard_expects_is_computed() -> None:
    excused = {name for names in EXCUSED.values() for name in names}
    passed, failed = 0, {}
    for case in (case for module in MODULES for case in cases_of(module)):
        try:
            run(case)
        except Exception as error:
            failed[case.name] = f"{case.name}: {type(error).__name__}: {error}"
        else:
            passed += 1
    unexpected = [words for name, words in failed.items() if name not in excused]
    assert not unexpected, "\n".join(unexpected[:10])
    assert excused == set(failed), f"excused, and passed: {sorted(excused - set(failed))}"
    assert passed >= LEAST_PASSED, f"only {passed} passed"


def test_every_operator_of_the_generator_is_in_the_table() -> None:
    from vermilion.codegen.lower.block_rounding import DOMAIN, OPERATOR
    from vermilion.codegen.lower.rules import RULES

    assert OPERATOR in OPERATORS[DOMAIN]
    assert set(RULES) - {OPERATOR} <= set(OPERATORS[""])
