"""Operators written out as their definitions equal ONNX Runtime's own, and fuse where they can."""

from __future__ import annotations

import numpy as np
import pytest

from float_graphs import families, run_native
from kernels import TARGETS
from native_text import differences, normal, read, refusals

C = {
    "s": normal(6, seed=1), "b": normal(6, seed=2), "m": normal(6, seed=3),
    "v": np.abs(normal(6, seed=4)) + np.float32(0.1),
}  # fmt: skip
DECLARED = "float[6] s, float[6] b, float[6] m, float[6] v"
CASES = {
    "batch": "BatchNormalization<epsilon = 0.01>(x, s, b, m, v)",
    "instance": "InstanceNormalization<epsilon = 0.01>(x, s, b)",
    "l1": "LpNormalization<axis = 1, p = 1>(x)",
    "l2": "LpNormalization<axis = 3>(x)",
    "response": "LRN<size = 3, alpha = 0.5, beta = 0.6, bias = 2.0>(x)",
    "response of five": "LRN<size = 5>(x)",
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("is_last", [False, True], ids=["planes", "channels last"])
@pytest.mark.parametrize("name", CASES)
def test_images(name: str, is_last: bool, target: str) -> None:
    used = {key: value for key, value in C.items() if f", {key}" in CASES[name]}
    declared = "".join(f", float[6] {key}" for key in used)
    shape = (2, 5, 7, 6) if is_last else (2, 6, 5, 7)
    source = "t = Transpose<perm = [0, 3, 1, 2]>(x)" if is_last else "t = Abs(x)"
    model = read(
        f"""(float[{",".join(map(str, shape))}] x{declared}) => (float[2,6,5,7] y) {{
            {source}
            y = {CASES[name].replace("(x", "(t")}
        }}""",
        **used,
    )
    assert differences(model, {"x": normal(*shape)}, target)["y"] < 4e-6


def test_groups_of_channels() -> None:
    scale, shift = normal(6, seed=1), normal(6, seed=2)
    model = read(
        """(float[2,6,5,7] x, float[6] s, float[6] b) => (float[2,6,5,7] y) {
            y = GroupNormalization<num_groups = 2, epsilon = 0.01>(x, s, b)
        }""",
        opset=21,
        s=scale,
        b=shift,
    )

    x = normal(2, 6, 5, 7)
    got = run_native(model, {"x": x}, "cpu", "fp32")["y"]
    parts = x.reshape(2, 2, -1).astype(np.float64)
    mean, variance = parts.mean(2, keepdims=True), parts.var(2, keepdims=True)
    wanted = ((parts - mean) / np.sqrt(variance + 0.01)).reshape(x.shape)
    wanted = wanted * scale[:, None, None] + shift[:, None, None]
    assert np.abs(got - wanted).max() < 1e-5


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("axes", ["", "axes = [0, 2], ", "axes = [-1], "])
@pytest.mark.parametrize("operation", ["ReduceL1", "ReduceLogSum", "ReduceLogSumExp"])
def test_reductions(operation: str, axes: str, keep: int) -> None:
    whole, reduced = (4, 5, 9), {"": [0, 1, 2], "axes = [0, 2], ": [0, 2], "axes = [-1], ": [2]}
    result = [1 if i in reduced[axes] else n for i, n in enumerate(whole)
              if keep or i not in reduced[axes]]  # fmt: skip
    model = read(
        f"""(float[4,5,9] x) => (float[{",".join(map(str, result))}] y) {{
            a = Abs(x)
            y = {operation}<{axes}keepdims = {keep}>(a)
        }}"""
    )
    assert differences(model, {"x": normal(*whole) * 30})["y"] < 4e-6


@pytest.mark.parametrize("kind", ["float", "float16"])
def test_powers_of_infinities_have_a_sum(kind: str) -> None:
    model = read(
        f"({kind}[4,5] x) => ({kind}[4] y) {{ y = ReduceLogSumExp<axes = [1], keepdims = 0>(x) }}"
    )
    x = normal(4, 5).astype({"float": np.float32, "float16": np.float16}[kind])
    x[0, 2], x[1], x[2, 3] = np.inf, -np.inf, -np.inf
    got = run_native(model, {"x": x}, "cpu", "fp32")["y"].astype(np.float64)
    wanted = np.logaddexp.reduce(x.astype(np.float64), axis=1)
    np.testing.assert_allclose(got, wanted, rtol=2e-3 if kind == "float16" else 1e-6)


def test_a_batch_norm_that_no_convolution_takes_is_one_kernel_with_its_activation() -> None:
    model = read(
        f"""(float[2,6,5,7] x, {DECLARED}) => (float[2,6,5,7] y) {{
            n = BatchNormalization(x, s, b, m, v)
            y = Relu(n)
        }}""",
        **C,
    )
    assert families(model) == ["map"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("y, n, w = BatchNormalization<training_mode = 1>(x, s, b, m, v)",
         "BatchNormalization in training mode"),
        ("y = LRN<size = 1000000000>(x)", "LRN over 1000000000 channels at a time"),
        ("y = InstanceNormalization(x, x0, b)",
         "InstanceNormalization with a scale or shift that is not constant"),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, reason: str) -> None:
    model = read(
        f"(float[2,6,5,7] x, float[6] x0, {DECLARED}) => (float[2,6,5,7] y) {{ {text} }}", **C
    )
    assert refusals(model) == [reason]


@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize("p", [1, 2])
def test_a_row_of_zeros_has_no_norm_and_stays_zero(p: int, kind: str) -> None:
    """Nor has one whose squares are smaller than any number."""

    model = read(f"({kind}[3,5] x) => ({kind}[3,5] y) {{ y = LpNormalization<axis=1, p={p}>(x) }}")
    x = normal(3, 5)
    x[1] = 0.0
    x[2] = 1e-30 if kind == "float" else 0.0
    x = x.astype({"float": np.float32, "float16": np.float16}[kind])
    got = run_native(model, {"x": x}, "cpu", "fp32")["y"]
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        norm = np.abs(x).sum(1) if p == 1 else np.sqrt(np.square(x.astype(np.float32)).sum(1))
        wanted = np.where(norm[:, None] == 0, 0.0, wide / norm[:, None])
    np.testing.assert_allclose(got, wanted, rtol=1e-3 if kind == "float16" else 1e-5)
