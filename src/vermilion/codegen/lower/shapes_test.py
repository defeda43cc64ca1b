"""Operators that only rename data cost nothing where strides allow, and are right where not."""

from __future__ import annotations

import re

import numpy as np
import pytest

from float_graphs import steps
from kernels import TARGETS
from native_text import differences, normal, read, refusals

MODELS = {
    "reshape of a transpose": """(float[4,6,5] x) => (float[30,4] y) {
        t = Transpose<perm = [1, 2, 0]>(x)
        y = Reshape(t, shape)
    }""",
    "reshape that needs a copy": """(float[4,6,5] x) => (float[20,6] y) {
        t = Transpose<perm = [2, 0, 1]>(x)
        y = Reshape(t, shape20)
    }""",
    "slices with steps and negative bounds": """(float[9,8,7] x) => (float[3,4,3] y) {
        y = Slice(x, starts, ends, axes, steps)
    }""",
    "split": """(float[2,10,3] x) => (float[2,4,3] a, float[2,6,3] b) {
        a, b = Split<axis = 1>(x, sizes)
    }""",
    "concat of views": """(float[3,4] x, float[4,2] z) => (float[3,6] y) {
        s = Slice(z, zero, three)
        y = Concat<axis = -1>(x, s)
    }""",
    "expand": """(float[3,1] x) => (float[2,3,5] y) { y = Expand(x, wide) }""",
    "squeeze and unsqueeze": """(float[1,4,1] x) => (float[1,1,4] y) {
        s = Squeeze(x)
        y = Unsqueeze(s, axes01)
    }""",
    "gather at one place": """(float[4,5,6] x) => (float[4,6] y) {
        y = Gather<axis = 1>(x, last)
    }""",
    "a transpose of an image": """(float[2,3,4,5] x) => (float[2,4,5,3] y) {
        y = Transpose<perm = [0, 2, 3, 1]>(x)
    }""",
    "flatten": """(float[2,3,4] x) => (float[6,4] y) { y = Flatten<axis = 2>(x) }""",
}
CONSTANTS = {
    "shape": ("int64[2]", [30, 4]),
    "shape20": ("int64[2]", [20, 6]),
    "starts": ("int64[3]", [-2, 0, 6]),
    "ends": ("int64[3]", [100, -1, 0]),
    "axes": ("int64[3]", [0, 1, 2]),
    "steps": ("int64[3]", [1, 2, 1]),
    "sizes": ("int64[2]", [4, 6]),
    "zero": ("int64[1]", [0]),
    "three": ("int64[1]", [3]),
    "wide": ("int64[3]", [2, 3, 5]),
    "axes01": ("int64[2]", [0, 1]),
    "last": ("int64", -1),
}
SHAPED = {
    "starts": [0, 0, -3],
    "ends": [100, -1, 100],
    "axes": [0, 1, 2],
    "steps": [3, 2, 1],
}


def model(name: str):  # type: ignore[no-untyped-def]
    text = MODELS[name]
    used = {
        key: value
        for key, value in CONSTANTS.items()
        if re.search(rf"\b{key}\b", text.split("{", 1)[1])
    }
    arrays = {key: np.array(SHAPED.get(key, value[1])) for key, value in used.items()}
    inputs = ", ".join(f"{used[key][0]} {key}" for key in used)
    head, rest = text.split(")", 1)
    return read(f"{head}{', ' if inputs else ''}{inputs}){rest}", **arrays)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", MODELS)
def test_equal_to_the_reference(name: str, target: str) -> None:
    made = model(name)
    inputs = {v.name: normal(*v.shape) for v in made.graph.inputs}
    assert set(differences(made, inputs, target).values()) == {0.0}


@pytest.mark.parametrize(
    "name",
    [
        "reshape of a transpose",
        "split",
        "expand",
        "squeeze and unsqueeze",
        "gather at one place",
        "flatten",
    ],
)
def test_only_the_result_is_written(name: str) -> None:
    made = model(name)
    assert len(steps(made)) == len(made.graph.outputs)


def test_a_reshape_that_needs_a_copy_makes_one() -> None:
    made = steps(model("reshape that needs a copy"))
    assert [step.spec.family for step in made] == ["map"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "(float[4] x, int64[1] a, int64[1] b) => (float[n] y) { y = Slice(x, a, b) }",
            "generated code needs fixed shapes",
        ),
        (
            "(float[4] x, int64[1] a, int64[1] b) => (float[2] y) { y = Slice(x, a, b) }",
            "Slice with bounds that are not constant",
        ),
        ("(double[4] x) => (double[4] y) { y = Neg(x) }", "`x` is DOUBLE, which"),
        ("(float[4] x) => (float[4] y) { y = Hardmax(x) }", "the code generator has no `Hardmax`"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    assert refusals(read(text))[0].startswith(reason)
