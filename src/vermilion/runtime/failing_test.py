"""A node that fails to compile costs itself, not its region."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import fake_provider
from vermilion.backends import backend
from vermilion.backends.base import CompileOptions, Part, Program
from vermilion.backends.native import NativeBackend
from vermilion.backends.provider.child import Limits
from vermilion.backends.vitisai.backend import VitisAiBackend
from vermilion.backends.vitisai.backend_test import STACK
from vermilion.errors import UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.hardware.targets.target import Target
from vermilion.ir.passes.infer_shapes import infer_shapes
from vermilion.ir.passes.pipeline import simplify
from vermilion.ir.passes.rewrite import run_pass
from vermilion.progress import no_progress
from vermilion.runtime.failing import Compiler, find_culprits

NET = """<ir_version: 9, opset_import: ["" : 17]>
net (float[4,8] x, float[8,8] w) => (float[4,8] y, float[4,8] z) {
  [first] a = MatMul (x, w)
  [relu] b = Relu (a)
  [tanh] c = Tanh (b)
  [second] d = MatMul (c, w)
  [soft] e = Softmax (d)
  [exp] f = Exp (e)
  [third] y = MatMul (f, w)
  [last] z = Abs (e)
}"""
Fails = Callable[[list[str]], str]


class Failing(NativeBackend):
    """Generated code that fails on some operators, before or after it is lowered."""

    def __init__(self, why: Fails, *, late: bool = False) -> None:
        self._why = why
        self._late = late

    def _fail(self, part: Part) -> None:
        reason = self._why([node.op_type for node in part.model.graph])
        if reason == "words":
            raise UnsupportedError("no such thing", hint="none")
        if reason == "full":
            raise OSError(errno.ENOSPC, "No space left on device")
        if reason:
            raise IndexError(reason)

    def check(self, part: Part, target: Target, options: CompileOptions) -> None:
        if not self._late:
            self._fail(part)
        super().check(part, target, options)

    def compile(self, part: Part, target: Target, options: CompileOptions, folder: Path) -> Program:
        self._fail(part)
        return super().compile(part, target, options, folder)


def outcome(why: Fails, folder: Path, *, late: bool = False) -> tuple[dict[str, str], set[str]]:
    """Compile; give the nodes left out with the reason, and those that were compiled."""
    model = ir.from_onnx_text(NET)
    weight = np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)
    value = next(v for v in model.graph.inputs if v.name == "w")
    model.graph.inputs.remove(value)
    value.const_value = ir.tensor(weight, name="w")
    model.graph.register_initializer(value)
    model = simplify(model).model
    device = Failing(why, late=late)
    compiler = Compiler(
        model, (device, backend("ort")), find_target("cpu"), CompileOptions(threads=1), no_progress
    )
    decided, done, failed = compiler.compiled(folder)
    names = [str(node.name) for node in model.graph]
    left = {n: r.reason for n, r in zip(names, decided.refusals, strict=True) if r is not None}
    for name, refusal in failed.items():
        left |= {names[at]: refusal.reason for at in decided.positions(name)}
    return left, {names[at] for name in done for at in decided.positions(name)}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("reason", ["list index out of range", "words"])
def test_one_node_is_left_out(reason: str, late: bool, tmp_path: Path) -> None:
    left, done = outcome(lambda ops: reason if "Tanh" in ops else "", tmp_path, late=late)
    assert set(left) == {"tanh"}
    assert ("no such thing" if reason == "words" else "IndexError") in left["tanh"]
    assert done == {"first", "relu", "second", "soft", "exp", "third", "last"}


def test_nodes_that_fail_for_other_reasons_are_all_found(tmp_path: Path) -> None:
    def why(ops: list[str]) -> str:
        return "a tanh" if "Tanh" in ops else "words" if "Exp" in ops else ""

    left, done = outcome(why, tmp_path)
    assert set(left) == {"tanh", "exp"}
    assert len(done) == 6


def test_nodes_that_fail_only_together_are_left_out_together(tmp_path: Path) -> None:
    left, _ = outcome(lambda ops: "both" if {"Softmax", "Exp"} <= set(ops) else "", tmp_path)
    assert set(left) == {"soft", "exp"}


def test_where_everything_fails_everything_is_left_out(tmp_path: Path) -> None:
    left, done = outcome(lambda ops: "always", tmp_path)
    assert len(left) == 8
    assert done == set()


def test_a_full_disk_is_no_fault_of_the_graph(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No space left"):
        outcome(lambda ops: "full", tmp_path)


def test_nothing_is_left_out_where_nothing_fails(tmp_path: Path) -> None:
    left, done = outcome(lambda ops: "", tmp_path)
    assert left == {}
    assert len(done) == 8


LIMITS = Limits(90.0, 90.0, 90.0)
TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[1, 3, 6, 6] x) => (float[1, 3, 6, 6] y) {
    a = Abs (x)
    b = Exp (a)
    c = Sigmoid (b)
    d = Neg (c)
    y = Mul (d, a)
}"""


def test_the_operator_that_crashes_the_provider_is_found(tmp_path: Path) -> None:
    worker = (fake_provider.__name__, "access violation on Sigmoid")
    npu = VitisAiBackend(worker=worker, find=lambda _: STACK, limits=LIMITS)
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    run_pass(infer_shapes, model)
    (found,) = find_culprits(model, find_target("strix"), (npu, backend("ort")), tmp_path / "out")
    assert found.path == tmp_path / "out" / "vaiml_par_0-culprit.onnx"
    assert [node.op_type for node in ir.load(found.path).graph] == ["Sigmoid"]
    assert "SIGSEGV" in found.reason
    assert found.as_json()["tries"] == found.tries


def test_nothing_is_written_where_all_compiles(tmp_path: Path) -> None:
    model = ir.from_proto(onnx.parser.parse_model(TEXT))
    modelled = (backend("npu_model"), backend("ort"))
    assert find_culprits(model, find_target("strix"), modelled, tmp_path / "out") == ()
    assert not (tmp_path / "out").exists()
