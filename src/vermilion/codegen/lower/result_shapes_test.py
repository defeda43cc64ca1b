"""What nodes give is computed, for every operator that is generated, and lies are found."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from claimed_operators import model_of, texts
from native_text import read, refusals
from vermilion.codegen.isa import isa_of
from vermilion.codegen.lower.part import lower_part
from vermilion.codegen.lower.result_shapes import contradiction
from vermilion.codegen.lower.rules import RULES, refusal
from vermilion.errors import UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.ir.opset import static_shape

CASES = {name: (opset, text) for name, opset, text in texts()}
# One is no operator of ONNX, one of an opset that ONNX Runtime does not know, and one has no
# inputs but constants: `backends/native_open_test.py` has it.
ELSEWHERE = {"RoundToBlocks", "CumProd", "Range"}


def _resized(change: Callable[[list[int]], list[int]]) -> Callable[[ir.Value], None]:
    def lie(value: ir.Value) -> None:
        sizes = list(static_shape(value) or ())
        value.shape = ir.Shape(change(sizes) if sizes else [2])  # of a number there is no axis

    return lie


def _of_another_type(value: ir.Value) -> None:
    other = ir.DataType.DOUBLE if value.dtype == ir.DataType.FLOAT else ir.DataType.FLOAT
    value.dtype = other


LIES: dict[str, Callable[[ir.Value], None]] = {
    "smaller": _resized(lambda sizes: [*sizes[:-1], max(1, sizes[-1] // 2)]),
    "larger": _resized(lambda sizes: [*sizes[:-1], sizes[-1] * 10]),
    "first axis larger": _resized(lambda sizes: [sizes[0] + 1, *sizes[1:]]),
    "other rank": _resized(lambda sizes: [*sizes, 1]),
    "scalar": _resized(lambda sizes: []),
    "other type": _of_another_type,
}


def _lies(name: str) -> dict[str, ir.Model]:
    """Return the model of an operator with each of its results declared as what it is not."""
    opset, text = CASES[name]
    found = {}
    for lie, change in LIES.items():
        for at in range(len(model_of(text, opset).graph.outputs)):
            model = model_of(text, opset)
            value = model.graph.outputs[at]
            before = (static_shape(value), value.dtype)
            change(value)
            if before != (static_shape(value), value.dtype):
                found[f"{name}, {lie}, {value.name}"] = model
    return found


def test_there_is_a_model_for_every_operator() -> None:
    assert set(CASES) == set(RULES) - ELSEWHERE


@pytest.mark.parametrize("name", CASES)
def test_what_is_declared_right_is_taken(name: str) -> None:
    opset, text = CASES[name]
    (node,) = model_of(text, opset).graph
    assert node.op_type == name
    assert contradiction(node) == ""
    assert refusal(node) is None


@pytest.mark.parametrize("name", CASES)
def test_lowering_believes_no_declared_result(name: str) -> None:
    for case, model in _lies(name).items():
        value = next(v for v in model.graph.outputs if v.name == case.split(", ")[-1])
        with pytest.raises(UnsupportedError, match="is declared as") as error:
            lower_part(model, isa_of(find_target("cpu")))
        shape = static_shape(value)
        assert str(list(shape or ())) in error.value.message, case


PROGRAM = """
import sys, numpy as np, vermilion
from vermilion.ir.samples import sample_inputs
from vermilion.ir.load import load_model
for path in sys.argv[1:]:
    try:
        found = vermilion.compile_model(path)
        inputs = sample_inputs(load_model(path))
        vermilion.InferenceSession(found.artifact).run(None, inputs)
        print(path, "ran")
    except vermilion.VermilionError as error:
        print(path, type(error).__name__, error.message.replace(chr(10), " "))
"""


def test_no_file_with_a_lie_about_a_result_runs_or_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a child: where memory were overwritten, a signal would say so."""
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path / "cache"))
    paths = {}
    for name in CASES:
        for case, model in _lies(name).items():
            path = tmp_path / f"{len(paths)}.onnx"
            ir.save(model, path)
            paths[str(path)] = case
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *paths], capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr[-2000:])
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    wrong = {
        paths[path]: said.get(path) for path in paths if "ModelError" not in said.get(path, "")
    }
    assert not wrong
    assert all("is declared as" in words for words in said.values())


OPEN = {
    "Reshape": "(float[4,6] x, int64[2] s) => (float[6,4] y) { y = Reshape(x, s) }",
    "Expand": "(float[1,6] x, int64[2] s) => (float[4,6] y) { y = Expand(x, s) }",
    "Split": """(float[4,6] x, int64[2] s) => (float[4,2] y, float[4,4] z) {
        y, z = Split<axis=1>(x, s)
    }""",
    "Squeeze": "(float[4,1,6] x, int64[1] s) => (float[4,6] y) { y = Squeeze(x, s) }",
    "Unsqueeze": "(float[4,6] x, int64[1] s) => (float[4,1,6] y) { y = Unsqueeze(x, s) }",
}


@pytest.mark.parametrize("name", OPEN)
def test_a_shape_that_only_a_run_knows_is_not_taken_from_what_is_declared(name: str) -> None:
    found = refusals(read(OPEN[name]))
    assert [reason for reason in found if "cannot be computed" in reason or "open" in reason]


# Attributes and weights that do not fit one another: kernels would read beyond what is there.
MISFITS = {
    "weights for other channels": ("y = Conv(x, w)", "float[2,5,8,8] x", "float[2,4,6,6] y"),
    "kernel_shape larger than the weights": (
        "y = Conv<kernel_shape=[5,5]>(x, w)", "float[2,4,8,8] x", "float[2,4,4,4] y"),
    "a window beyond the data": (
        "y = MaxPool<kernel_shape=[9,9]>(x)", "float[2,4,8,8] x", "float[2,4,1,1] y"),
    "indices beyond the data": (
        "y = GatherElements(x, picks)", "float[4,2] x", "float[1,3] y"),
    "an index beyond the data": ("y = Gather(x, index)", "float[3,6] x", "float[3,6] y"),
    "a perm that repeats": (
        "y = Transpose<perm=[0,0]>(x)", "float[4,4] x", "float[4,4] y"),
    "hidden units of another number": (
        "y = LSTM<hidden_size=4>(x, lw, lr)", "float[7,2,6] x", "float[7,1,2,4] y"),
    "a scale for other channels": (
        "y = InstanceNormalization(x, c, c)", "float[2,8,8,8] x", "float[2,8,8,8] y"),
    "channels that make no blocks": (
        "y = DepthToSpace<blocksize=2>(x)", "float[2,6,8,8] x", "float[2,1,16,16] y"),
    "an axis that is not there": ("y = Softmax<axis=2>(x)", "float[4,6] x", "float[4,6] y"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISFITS)
def test_what_does_not_fit_is_not_taken(name: str) -> None:
    node, inputs, results = MISFITS[name]
    model = model_of(f"({inputs}) => ({results}) {{ {node} }}", 17)
    found = refusal(model.graph[0])
    assert found is not None
    assert "cannot be computed" in found.reason
