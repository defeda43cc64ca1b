"""LSTM, GRU and RNN run natively and equal ONNX Runtime, over directions, sizes and options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper

from kernels import TARGETS
from native_text import Array, differences, normal, read, refusals
from vermilion.api import compile_model
from vermilion.codegen.emit.recurrent import block_vectors, pack_gates
from vermilion.codegen.lower import cells

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class Case:
    """A recurrent node. `options` are attributes in ONNX text."""

    op_type: str
    steps: int
    batch: int
    width: int
    hidden: int
    direction: str = "forward"
    options: str = ""
    has_bias: bool = True
    has_state: bool = True
    has_peepholes: bool = False

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1


CASES = (
    Case("LSTM", 1, 1, 128, 128),  # Silero's
    Case("LSTM", 7, 2, 10, 37, "bidirectional"),
    Case("LSTM", 4, 3, 5, 16, "reverse", has_state=False),
    Case("LSTM", 3, 1, 9, 130, has_bias=False),
    Case("LSTM", 5, 2, 6, 20, options=", clip = 0.3", has_peepholes=True),
    Case("LSTM", 5, 2, 6, 20, options=", input_forget = 1"),
    Case("LSTM", 3, 1, 4, 9, "bidirectional", ', activations = ["Sigmoid", "Tanh", "Relu", '
         '"Sigmoid", "Softsign", "Tanh"]'),
    Case("GRU", 6, 2, 10, 37, "bidirectional"),
    Case("GRU", 6, 1, 10, 48, options=", linear_before_reset = 1"),
    Case("GRU", 3, 4, 7, 5, "reverse", ", linear_before_reset = 1", has_state=False),
    Case("GRU", 4, 1, 3, 100, has_bias=False),
    Case("RNN", 5, 2, 8, 33, "bidirectional"),
    Case("RNN", 1, 1, 8, 300, options=', activations = ["Relu"]', has_state=False),
)  # fmt: skip


def model_of(case: Case) -> tuple[ir.Model, dict[str, Array]]:
    gates, n, h = GATES[case.op_type], case.directions, case.hidden
    scale = np.float32(h**-0.5)
    constants = {
        "w": normal(n, gates * h, case.width, seed=1) * scale,
        "r": normal(n, gates * h, h, seed=2) * scale,
    }
    declared = [
        f"float[{case.steps},{case.batch},{case.width}] x",
        f"float[{n},{gates * h},{case.width}] w", f"float[{n},{gates * h},{h}] r",
    ]  # fmt: skip
    inputs = {"x": normal(case.steps, case.batch, case.width, seed=3)}
    names = ["x", "w", "r", "", "", "", "", ""]
    if case.has_bias:
        constants["b"] = normal(n, 2 * gates * h, seed=4)
        declared.append(f"float[{n},{2 * gates * h}] b")
        names[3] = "b"
    if case.has_state:
        for index, name in ((5, "h0"), (6, "c0"))[: 2 if case.op_type == "LSTM" else 1]:
            inputs[name] = normal(n, case.batch, h, seed=index)
            declared.append(f"float[{n},{case.batch},{h}] {name}")
            names[index] = name
    if case.has_peepholes:
        constants["p"] = normal(n, 3 * h, seed=8)
        declared.append(f"float[{n},{3 * h}] p")
        names[7] = "p"
    results = ["y", "yh", "yc"][: 3 if case.op_type == "LSTM" else 2]
    shapes = [f"float[{case.steps},{n},{case.batch},{h}] y", f"float[{n},{case.batch},{h}] yh",
              f"float[{n},{case.batch},{h}] yc"][: len(results)]  # fmt: skip
    given = ", ".join(names).rstrip(", ")
    text = f"""({", ".join(declared)}) => ({", ".join(shapes)}) {{
        {", ".join(results)} = {case.op_type}
            <hidden_size = {h}, direction = "{case.direction}"{case.options}>({given})
    }}"""
    return read(text, **constants), inputs


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_results(case: Case, target: str) -> None:
    model, inputs = model_of(case)
    assert max(differences(model, inputs, target).values()) < 4e-6


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_all_steps_as_one_call(case: Case, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they are where they are many, or a run alone knows how many."""
    monkeypatch.setattr(cells, "_LONGEST", 0)
    model, inputs = model_of(case)
    if case.op_type == "GRU" and "linear_before_reset" not in case.options:
        assert refusals(model) == ["GRU over more than 0 steps, of which each has two products"]
        return
    assert max(differences(model, inputs, target).values()) < 4e-6


def test_a_batch_that_comes_first_is_the_same_in_another_order() -> None:
    constants = {"w": normal(1, 80, 6, seed=1), "r": normal(1, 80, 20, seed=2) * np.float32(0.2)}
    inputs = {"x": normal(2, 5, 6), "h": normal(2, 1, 20, seed=3), "c": normal(2, 1, 20, seed=4)}
    declared = "float[2,5,6] x, float[2,1,20] h, float[2,1,20] c, float[1,80,6] w, float[1,80,20] r"
    # ONNX Runtime has no batch first: the model that it runs turns everything around.
    turned = read(
        f"""({declared}) => (float[2,5,1,20] y, float[2,1,20] yh) {{
            xt = Transpose<perm = [1, 0, 2]>(x)
            ht = Transpose<perm = [1, 0, 2]>(h)
            ct = Transpose<perm = [1, 0, 2]>(c)
            yt, yht = LSTM<hidden_size = 20>(xt, w, r, , , ht, ct)
            y = Transpose<perm = [2, 0, 1, 3]>(yt)
            yh = Transpose<perm = [1, 0, 2]>(yht)
        }}""",
        **constants,
    )
    assert max(differences(turned, inputs).values()) < 4e-6
    plain = read(
        f"""({declared}) => (float[2,5,1,20] y, float[2,1,20] yh) {{
            y, yh = LSTM<hidden_size = 20, layout = 1>(x, w, r, , , h, c)
        }}""",
        **constants,
    )
    from float_graphs import run_native

    one, other = (run_native(m, inputs, "cpu", "fp32") for m in (turned, plain))
    for name in ("y", "yh"):
        assert np.array_equal(one[name], other[name])


@pytest.mark.parametrize("threads", [2, 4])
def test_any_number_of_workers_gives_the_same(threads: int) -> None:
    from float_graphs import run_native

    model, inputs = model_of(Case("LSTM", 40, 4, 64, 256, "bidirectional"))
    one = run_native(model, inputs, "cpu", "fp32")
    other = run_native(model, inputs, "cpu", "fp32", threads)
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("options", "inputs", "reason"),
    [
        ('activations = ["ScaledTanh"]', "x, w, r", "RNN with the activation ScaledTanh"),
        ("activation_alpha = [0.5]", "x, w, r", "RNN with parameters of its activations"),
        ("hidden_size = 3", "x, w, v", "RNN with weights that are not constant"),
        ("hidden_size = 3", "x, w, r, , lengths", "RNN over sequences of different lengths"),
    ],
)
def test_what_is_refused(options: str, inputs: str, reason: str) -> None:
    model = read(
        f"""(float[2,1,4] x, float[1,3,4] w, float[1,3,3] r, float[1,3,3] v, int32[1] lengths)
        => (float[2,1,1,3] y) {{ y = RNN<{options}>({inputs}) }}""",
        w=normal(1, 3, 4),
        r=normal(1, 3, 3),
        lengths=np.array([1], np.int32),
    )
    assert refusals(model) == [reason]


def test_packed_gates_lie_as_the_kernel_reads_them() -> None:
    lanes, gates, hidden, depth = 8, 3, 21, 5
    weights = normal(gates, hidden, depth)
    packed = pack_gates(weights, lanes).reshape(-1)
    block = block_vectors(gates) * lanes
    for gate in range(gates):
        for unit in range(hidden):
            for k in range(depth):
                number, rest = divmod(unit, block)
                at = ((number * depth + k) * gates + gate) * block + rest
                assert packed[at] == weights[gate, unit, k]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", ["4,N", "T,2", "T,N"])
@pytest.mark.parametrize("op_type", GATES)
def test_any_length_and_batch(op_type: str, sizes: str, target: str, tmp_path: Path) -> None:
    """Rows are computed three at a time where there are registers, whatever is left over."""
    random = np.random.default_rng(1)
    reset = ", linear_before_reset = 1" if op_type == "GRU" else ""
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
      g (float[{sizes},5] x) => (float[L,2,M,20] y, float[2,M,20] h) {{
      y, h = {op_type} <hidden_size = 20, direction = "bidirectional"{reset}> (x, w, r) }}"""
    proto = onnx.parser.parse_model(text)
    for name, depth in (("w", 5), ("r", 20)):
        array = 0.3 * random.standard_normal((2, 20 * GATES[op_type], depth))
        proto.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    compiled = compile_model(proto, target=target, cache_dir=tmp_path)
    assert {node["backend"] for node in compiled.report.nodes} == {"native"}
    session = compiled.session()
    wanted = onnxruntime.InferenceSession(proto.SerializeToString())
    for length, batch in ((1, 1), (4, 2), (4, 3), (7, 4), (4, 8), (33, 2), (50, 7)):
        shape = [length if "T" in sizes else 4, batch if "N" in sizes else 2, 5]
        x = random.standard_normal(shape).astype(np.float32)
        found = session.run(None, {"x": x})
        for mine, right in zip(found, wanted.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5)
    assert not session.notes, "no run is left to ONNX Runtime"


def test_a_batch_that_lies_first_may_be_one(tmp_path: Path) -> None:
    """Of one entry the turned tensor lies as it should, of more it is copied: both are right."""
    random = np.random.default_rng(2)
    text = """<ir_version: 8, opset_import: ["" : 17]>
      g (float[N,T,5] x) => (float[L,1,M,20] y) {
      t = Transpose <perm = [1, 0, 2]> (x) y = RNN <hidden_size = 20> (t, w, r) }"""
    proto = onnx.parser.parse_model(text)
    for name, depth in (("w", 5), ("r", 20)):
        array = (0.3 * random.standard_normal((1, 20, depth))).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    session = compile_model(proto, cache_dir=tmp_path).session()
    wanted = onnxruntime.InferenceSession(proto.SerializeToString())
    for shape in ((1, 1, 5), (1, 6, 5), (3, 1, 5), (4, 9, 5)):
        x = random.standard_normal(shape).astype(np.float32)
        (mine,), (right,) = session.run(None, {"x": x}), wanted.run(None, {"x": x})
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5)
    assert not session.notes


def test_lengths_that_are_given_may_end_before_a_dynamic_one(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
      g (float[T,2,3] x) => (float[L,1,2,4] y) <int32[2] lengths = {4, 4}> {
      y = RNN <hidden_size = 4> (x, w, r, , lengths) }"""
    proto = onnx.parser.parse_model(text)
    for name, depth in (("w", 3), ("r", 4)):
        array = np.full((1, 4, depth), 0.3, np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    compiled = compile_model(proto, cache_dir=tmp_path)
    assert {node["backend"] for node in compiled.report.nodes} == {"ort"}
    (found,) = compiled.session().run(None, {"x": np.ones((6, 2, 3), np.float32)})
    assert not found[4:].any()
