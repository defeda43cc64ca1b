"""The generator of random graphs and what it stands on: guard pages, the judge, shrinking."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx
import pytest

from random_graphs.batches import Case, Tried, environment
from random_graphs.graph_writer import FORMATS
from random_graphs.growth import ANY, BUILDERS, grow
from random_graphs.judgement import judge
from random_graphs.native_parts import Way
from random_graphs.reference import Reference
from random_graphs.shrinking import Specimen, shrink
from random_graphs.tally import faults, table, tally
from random_graphs.trial import Outcome

linux = pytest.mark.skipif(sys.platform != "linux", reason="this system has no mprotect of Linux")


def model_of(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')


def end_of(lines: str) -> int:
    """Return how a process ends that runs these lines beside a guard."""
    script = f"import numpy as np\nfrom random_graphs.guarded_memory import GuardedMemory\n{lines}"
    done = subprocess.run([sys.executable, "-c", script], env=environment(), check=False)
    return done.returncode


@linux
@pytest.mark.parametrize(("side", "at"), [("end", 40), ("start", -4)])
def test_one_float_beyond_a_guarded_array_ends_the_process(side: str, at: int) -> None:
    touch = f"ctypes.c_float.from_address(a.ctypes.data + {at})"
    lines = f"import ctypes\na = GuardedMemory('{side}').empty((10,), np.dtype(np.float32))\n"
    assert end_of(f"{lines}a[:] = 1.0") == 0
    assert end_of(f"{lines}{touch}.value") == -11
    assert end_of(f"{lines}{touch}.value = 1.0") == -11


@linux
def test_writing_to_an_input_ends_the_process() -> None:
    lines = "a = GuardedMemory('end').read_only(np.ones(3, np.float32))\n"
    assert end_of(f"{lines}assert a.sum() == 3.0") == 0
    write = "import ctypes\nctypes.c_float.from_address(a.ctypes.data).value = 2.0"
    assert end_of(f"{lines}{write}") == -11


@pytest.mark.parametrize("number_format", [*FORMATS, ANY])
def test_a_seed_gives_one_legal_graph(number_format: str) -> None:
    for seed in range(5):
        one, other = grow(seed, number_format), grow(seed, number_format)
        assert one.model.SerializeToString() == other.model.SerializeToString()
        assert all(np.array_equal(one.inputs[n], other.inputs[n], equal_nan=True)
                   for n in one.inputs)  # fmt: skip
        onnx.checker.check_model(one.model)


def test_every_builder_is_drawn() -> None:
    assert len(BUILDERS) > 110


TWO = model_of("""(float[4, 8] x) => (float[4, 8] y, int64[4, 1] k) {
    y = Exp(x)
    k = ArgMax<axis = 1>(y)
}""")
X = {"x": np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)}


def verdicts(number_format: str = "fp32", **changed: np.ndarray) -> list[str]:
    reference = Reference(TWO, X)
    got = {name: np.array(reference.values[name]) for name in ("y", "k")} | changed
    return [v.output for v in judge(reference, X, got, number_format) if v.reason]


def test_the_judge_passes_rounding_and_nothing_more() -> None:
    right = Reference(TWO, X).values["y"]
    assert verdicts() == []
    assert verdicts(y=np.nextafter(right, np.float32(np.inf))) == []
    assert verdicts(y=right * np.float32(1.0001)) == ["y"]
    assert verdicts(y=right * np.float32(2.0)) == ["y"]
    assert verdicts(y=right * np.float32(1.001), number_format="bf16") == []
    assert verdicts(y=right * np.float32(1.2), number_format="bf16") == ["y"]


def test_the_judge_sees_one_wrong_element() -> None:
    reference = Reference(TWO, X).values
    for wrong in (np.nan, np.inf, 0.0):
        y = np.array(reference["y"])
        y[3, 7] = wrong
        assert verdicts(y=y) == ["y"]
    k = np.array(reference["k"])
    k[2] += 1
    assert verdicts(k=k) == ["k"]
    assert verdicts(k=reference["k"].astype(np.int32)) == ["k"]


def test_a_tie_that_rounding_decides_is_open() -> None:
    model = model_of("(float[3] x) => (float[3] y) { a = Mul(x, x) b = Sub(a, x) y = Ceil(b) }")
    inputs = {"x": np.array([1.0, 0.3, 2.5], np.float32)}  # 1·1 - 1 is 0, give or take
    reference = Reference(model, inputs)
    for at, passes in ((0, True), (1, False), (2, False)):
        got = np.array(reference.values["y"])
        got[at] += 1.0
        assert (judge(reference, inputs, {"y": got}, "fp32")[0].reason == "") == passes


def test_an_infinity_is_right_at_a_pole_alone() -> None:
    model = model_of("(float16[3] x) => (float16[3] y) { a = Acos(x) y = Tan(a) }")
    inputs = {"x": np.array([0.0, 0.0, 0.5], np.float16)}
    reference = Reference(model, inputs)
    for at, passes in ((0, True), (1, True), (2, False)):
        got = np.array(reference.values["y"])
        got[at] = -np.inf
        assert (judge(reference, inputs, {"y": got}, "fp16")[0].reason == "") == passes


def test_a_number_is_right_where_eight_roundings_decide_whether_there_is_one() -> None:
    model = model_of("(float[2] x) => (float[2] y) { a = Identity(x) y = Acos(a) }")
    # ONNX Runtime's GRU gives the first where it saturates. The second is far beyond 1.
    inputs = {"x": np.array([1.0000005, 1.001], np.float32)}
    reference = Reference(model, inputs)
    for at, passes in ((0, True), (1, False)):
        got = np.array(reference.values["y"])
        got[at] = 0.0
        assert (judge(reference, inputs, {"y": got}, "fp32")[0].reason == "") == passes


def test_shrinking_keeps_the_node_that_is_at_fault() -> None:
    model = model_of("""(float[4, 6] x, float[4, 6] z) => (float[4, 6] y, float[6, 4] v) {
        a = Relu(x) b = Erf(a) c = Neg(b) y = Add(c, z) d = Tanh(z) v = Transpose(d)
    }""")
    inputs = {n: np.ones((4, 6), np.float32) for n in ("x", "z")}

    def shows(specimen: Specimen) -> bool:
        return any(node.op_type == "Erf" for node in specimen.model.graph.node)

    smallest = shrink(Specimen(model, inputs), shows, 60.0)
    assert [node.op_type for node in smallest.model.graph.node] == ["Erf"]
    assert [a.size for a in smallest.inputs.values()] == [1]


def test_the_table_counts_by_number_format() -> None:
    way = {"way": Way("cpu", "auto", 1, True).__dict__}
    tried = [
        Tried(Case(1, "fp32"), Outcome("right", nodes=4, native_nodes=3, **way), ("Relu",)),
        Tried(Case(2, "fp32"), Outcome("guard fault", "SIGSEGV", **way)),
        Tried(Case(3, "int8"), Outcome("refused", "too large", **way)),
    ]
    text = table(tally(tried))
    assert "75.0%" in text
    assert [one.case.seed for one in faults(tried)] == [2]
