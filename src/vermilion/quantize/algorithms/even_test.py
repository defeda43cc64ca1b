from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from vermilion.ir.execute import open_session, run_session
from vermilion.quantize.addends import join_biases
from vermilion.quantize.algorithms import even
from vermilion.quantize.algorithms.channels import changed_tensors
from vermilion.quantize.algorithms.even import even_out
from vermilion.quantize.calibrate import open_fetching, tensor_facts
from vermilion.quantize.quantize import quantize_model
from vermilion.quantize.working_copy import working_copy

WIDTH, TOKENS, HEADS = 24, 10, 3
RNG = np.random.default_rng(0)
SAMPLES = [{"x": RNG.standard_normal((2, TOKENS, WIDTH)).astype(np.float32)} for _ in range(8)]

NORM = "n = LayerNormalization<axis = -1>(x, gain, shift)"
PRODUCTS = """qm = MatMul(n, wq) ql = Add(qm, bq) km = MatMul(n, wk) kl = Add(km, bk)
    vm = MatMul(n, wv) vl = Add(vm, bv)"""
HEADS_OF = f"""four = Constant<value_ints = [2, {TOKENS}, {HEADS}, {WIDTH // HEADS}]>()
    whole = Constant<value_ints = [2, {TOKENS}, {WIDTH}]>()
    q4 = Reshape(ql, four) q = Transpose<perm = [0, 2, 1, 3]>(q4)
    k4 = Reshape(kl, four) k = Transpose<perm = [0, 2, 3, 1]>(k4)
    v4 = Reshape(vl, four) v = Transpose<perm = [0, 2, 1, 3]>(v4)"""
MIXED = """s = MatMul(q, k) p = Softmax(s) o = MatMul(p, v) o4 = Transpose<perm = [0, 2, 1, 3]>(o)
    ow = Reshape(o4, whole) om = MatMul(ow, wo) ol = Add(om, bo)"""
BLOCK = f"{NORM} {PRODUCTS} {HEADS_OF} {MIXED}"
TURNED = BLOCK.replace("s = MatMul(q, k)", "qq = Relu(q) s = MatMul(qq, k)")
SUM = "r = Add(x, ol) ym = MatMul(r, wy) y = Add(ym, by)"


def constants() -> dict[str, np.ndarray]:
    """Return weights, some of whose channels are far larger than others."""
    rng = np.random.default_rng(1)
    spread = np.exp(rng.normal(0.0, 1.2, (4, WIDTH)))
    made = {f"w{n}": rng.standard_normal((WIDTH, WIDTH)) / 5 for n in "qkvoy"}
    made |= {f"b{n}": rng.standard_normal(WIDTH) for n in "qkvoy"}
    made |= {"gain": spread[0], "shift": rng.standard_normal(WIDTH) * spread[0]}
    for n in "qkv":
        made[f"w{n}"] /= spread[0][:, None]
    made["wq"], made["bq"] = made["wq"] * spread[1], made["bq"] * spread[1]
    made["wk"], made["bk"] = made["wk"] / spread[1], made["bk"] / spread[1]
    made["wv"], made["bv"] = made["wv"] * spread[2], made["bv"] * spread[2]
    made["wo"] /= spread[2][:, None]
    return {name: array.astype(np.float32) for name, array in made.items()}


def model_of(body: str, outputs: str = "y") -> ir.Model:
    given = ", ".join(f"float[2,{TOKENS},{WIDTH}] {name}" for name in outputs.split())
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2,{TOKENS},{WIDTH}] x) => ({given})
        {{ {body} }}"""
    proto = onnx.parser.parse_model(text)
    read = {name for node in proto.graph.node for name in node.input}
    for name, array in constants().items():
        if name in read:
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def evened(model: ir.Model) -> int:
    shapes = {name: fact.shape for name, fact in tensor_facts(model, SAMPLES[0]).items()}
    return even_out(model, shapes, SAMPLES)


def outputs(model: ir.Model) -> np.ndarray:
    session = open_session(model)
    return np.stack([run_session(session, sample)["y"] for sample in SAMPLES])


def spread_of(model: ir.Model, name: str) -> tuple[float, float]:
    """Return the largest of a tensor's channels beside the smallest, and its largest mean."""
    session = open_fetching(model, [name])
    rows = np.concatenate([run_session(session, s)[name].reshape(-1, WIDTH) for s in SAMPLES])
    largest = np.abs(rows).max(axis=0)
    return float(largest.max() / largest.min()), float(np.abs(rows.mean(axis=0)).max())


@pytest.mark.parametrize("joined", [False, True])
def test_the_result_stays_and_channels_are_alike(joined: bool) -> None:
    model = working_copy(model_of(f"{BLOCK} {SUM}"))
    before = outputs(model)
    if joined:
        join_biases(model.graph, ())
    scattered = {name: spread_of(model, name)[0] for name in ("n", "ql", "vl")}
    assert evened(model) >= 6  # the norm, the sum, queries and keys, values and what reads them
    np.testing.assert_allclose(outputs(model), before, rtol=2e-4, atol=2e-4)
    for name, ratio in scattered.items():
        assert spread_of(model, name)[0] < 0.5 * ratio, name
    assert spread_of(model, "n")[1] < 1e-4
    assert spread_of(model, "r")[1] < 1e-4
    changed = changed_tensors(model)
    assert {"n", "ql", "q", "k", "v", "o", "ow", "ol", "r"} <= changed
    assert not {"s", "p", "y"} & changed


@pytest.mark.parametrize(
    ("body", "outputs_are", "count"),
    [
        (f"{BLOCK} y = Add(x, ol)", "y n", 4),  # an output
        (f"{BLOCK} z = Relu(n) zz = Add(z, ol) y = Add(zz, x)", "y", 4),  # not products alone
        (f"{TURNED} y = Add(x, ol)", "y", 3),  # not moved alone
    ],
)
def test_what_somebody_else_would_see_is_left_alone(
    body: str, outputs_are: str, count: int
) -> None:
    model = working_copy(model_of(body, outputs_are))
    before = outputs(model)
    assert evened(model) == count
    np.testing.assert_allclose(outputs(model), before, rtol=2e-4, atol=2e-4)


def test_eight_bits_hold_more_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for name in ("plain", "even"):
        if name == "plain":
            monkeypatch.setattr("vermilion.quantize.look.even_out", lambda *given: 0)
        else:
            monkeypatch.setattr("vermilion.quantize.look.even_out", even.even_out)
        done = quantize_model(model_of(f"{BLOCK} {SUM}"), SAMPLES, scheme="xint8")
        found[name] = done.outputs[0].sqnr_db
    assert found["even"] > found["plain"] + 3.0
