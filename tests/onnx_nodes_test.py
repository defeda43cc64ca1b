"""The ONNX backend node tests: every one whose nodes the generator claims must pass natively.

A case whose parameters (weights, axes, sizes) are graph inputs is tried as it is, then with all
inputs but the first as constants: a compiled model has them so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from numpy.typing import NDArray
from onnx.backend.test.case.test_case import TestCase

from float_graphs import run_native
from kernels import TARGETS
from native_text import refusals
from onnx_cases import MODULES, cases_of
from vermilion.errors import VermilionError
from vermilion.ir.passes.pipeline import simplify

Array = NDArray[Any]

# What runs by default: the operators of ordinary networks. All run with `-m slow`.
DEFAULT = {
    "add", "averagepool", "clip", "concat", "conv", "convinteger", "convtranspose", "cumsum",
    "depthtospace", "dynamicquantizelinear", "expand", "gather", "gelu", "gemm",
    "globalaveragepool", "gru", "hardsigmoid", "hardswish", "instancenorm", "lstm", "matmul",
    "matmulinteger", "maxpool", "pad", "prelu", "reducemean", "reshape", "rnn", "sigmoid", "slice",
    "softmax", "softplus", "spacetodepth", "split", "squeeze", "tile", "transpose", "where",
}  # fmt: skip

# Between the nodes of one kernel we keep float32, where the reference rounds each result: outputs
# of 16 bits may then be one or two numbers away.
ROUNDING = {"bfloat16": 2.0**-6, "float16": 2.0**-9}

# Claimed and passed by each of both targets when this was written, of 1867; more are welcome.
LEAST_PASSED = 956


@dataclass(frozen=True)
class Ready:
    """A case that is claimed: the model, what it is fed, what it must give."""

    name: str
    model: ir.Model
    inputs: dict[str, Array]
    case: TestCase


def claimed(module: str, *, only_expanded: bool = False) -> Iterator[Ready]:
    """Yield the cases of a module whose every node is claimed."""
    for case in cases_of(module):
        if only_expanded and not is_expanded(case.name):
            continue
        arrays = [_array(value) for value in case.data_sets[0][0]]
        if any(array is None for array in arrays):
            continue  # sequences and optionals are no tensors
        # A single input is an input in both.
        for frozen in (False, True)[: max(1, len(arrays))]:
            ready = _prepared(case, [a for a in arrays if a is not None], frozen)
            if ready is not None:
                yield ready
                break


def _array(value: object) -> Array | None:
    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else None


def _prepared(case: TestCase, arrays: list[Array], frozen: bool) -> Ready | None:
    proto = onnx.ModelProto()
    proto.CopyFrom(case.model)
    inputs: dict[str, Array] = {}
    for index, (info, array) in enumerate(zip(list(proto.graph.input), arrays, strict=True)):
        if not info.type.HasField("tensor_type"):
            return None
        if index and frozen:
            proto.graph.initializer.append(onnx.numpy_helper.from_array(array, info.name))
            proto.graph.input.remove(info)
        else:
            inputs[info.name] = array
    try:
        model = simplify(ir.from_proto(proto)).model
    except VermilionError:
        return None
    if refusals(model) or not len(model.graph):
        return None
    return Ready(case.name, model, inputs, case)


def failure(ready: Ready, target: str) -> str:
    """Run a case natively; say what is wrong, empty if nothing is."""
    got = run_native(ready.model, ready.inputs, target, "fp32")
    results = zip(ready.case.model.graph.output, ready.case.data_sets[0][1], strict=True)
    for info, value in results:
        wanted, mine = _array(value), got[info.name]
        if wanted is None:
            return f"{info.name} is no tensor"
        if (mine.shape, mine.dtype) != (wanted.shape, wanted.dtype):
            return f"{mine.dtype}{mine.shape} instead of {wanted.dtype}{wanted.shape}"
        a, b = mine.astype(np.float64), wanted.astype(np.float64)
        rtol = max(ready.case.rtol, ROUNDING.get(wanted.dtype.name, 0.0))
        close = np.isclose(a, b, rtol=rtol, atol=ready.case.atol, equal_nan=True)
        if not close.all():
            return f"{info.name}: {(~close).sum()} of {close.size} differ"
    return ""


def _marked(module: str) -> Any:
    return module if module in DEFAULT else pytest.param(module, marks=pytest.mark.slow)


PASSED: dict[str, int] = {}


def _hold(cases: Sequence[Ready], target: str) -> None:
    failures = {ready.name: words for ready in cases if (words := failure(ready, target))}
    assert not failures, f"on {target}"


def is_expanded(name: str) -> bool:
    """Say whether a case is that of another one with the operator's function in its place."""
    return "_expanded" in name


@pytest.mark.parametrize("module", [_marked(module) for module in MODULES])
def test_claimed_cases_pass(module: str) -> None:
    cases = list(claimed(module))
    here, *others = TARGETS
    _hold(cases, here)
    for target in others:
        _hold([ready for ready in cases if not is_expanded(ready.name)], target)
    PASSED[module] = len(cases)


@pytest.mark.long
@pytest.mark.skipif(not TARGETS[1:], reason="this machine has no AVX-512")
@pytest.mark.parametrize("module", MODULES)
def test_expanded_cases_pass_on_the_other_targets(module: str) -> None:
    cases = list(claimed(module, only_expanded=True))
    for target in TARGETS[1:]:
        _hold(cases, target)


@pytest.mark.slow
def test_their_number() -> None:
    """Hold the count, so that a claim is not dropped by accident. Runs after the others."""
    if set(PASSED) != set(MODULES):
        pytest.skip("the other tests of this file were not chosen")
    assert sum(PASSED.values()) >= LEAST_PASSED
