from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from vermilion.ir.execute import open_session, run_session
from vermilion.quantize.addends import join_biases
from vermilion.quantize.algorithms.attention import ease_attention
from vermilion.quantize.calibrate import open_fetching, tensor_facts
from vermilion.quantize.quantize import quantize_model

RNG = np.random.default_rng(0)
WIDTH, TOKENS, HEADS = 24, 10, 3
SAMPLES = [
    {"x": (RNG.standard_normal((2, TOKENS, WIDTH)) + 0.5).astype(np.float32)} for _ in range(8)
]

SPLIT = f"[2, {TOKENS}, {HEADS}, {WIDTH // HEADS}]"
SHAPES = f"""heads = Constant<value_ints = {SPLIT}>()
    whole = Constant<value_ints = [2, {TOKENS}, {WIDTH}]>()"""


def head(name: str, layer: str, perm: str = "[0, 2, 1, 3]") -> str:
    return f"{name}_4 = Reshape({layer}, heads) {name} = Transpose<perm = {perm}>({name}_4)"


LAYERS = """qm = MatMul(x, wq) ql = Add(qm, bq) km = MatMul(x, wk) kl = Add(bk, km)
    vm = MatMul(x, wv) vl = Add(vm, bv)"""
END = """o4 = Transpose<perm = [0, 2, 1, 3]>(o) ow = Reshape(o4, whole)
    om = MatMul(ow, wo) y = Add(om, bo)"""
KEYS = head("k", "kl", "[0, 2, 3, 1]")
SEPARATE = f"{SHAPES} {LAYERS} {head('q', 'ql')} {KEYS} {head('v', 'vl')} s = MatMul(q, k)"
FUSED = f"""{SHAPES} three = Constant<value_ints = [2, {TOKENS}, 3, {HEADS}, {WIDTH // HEADS}]>()
    m = MatMul(x, wqkv) l = Add(m, bqkv) r = Reshape(l, three)
    t = Transpose<perm = [2, 0, 3, 1, 4]>(r) zero = Constant<value_int = 0>()
    one = Constant<value_int = 1>() two = Constant<value_int = 2>()
    qs = Gather<axis = 0>(t, zero) q = Mul(qs, scale) kk = Gather<axis = 0>(t, one)
    v = Gather<axis = 0>(t, two) k = Transpose<perm = [0, 1, 3, 2]>(kk) s = MatMul(q, k)"""
MIX = "o = MatMul(p, v)"

# Text, tensors that are made easier, nodes that go.
FORMS = {
    "scaled": (f"{SEPARATE} c = Mul(s, scale) p = Softmax(c) {MIX} {END}", 3, ["Mul"]),
    "divided": (f"{SEPARATE} c = Div(s, four) p = Softmax(c) {MIX} {END}", 3, ["Div"]),
    "masked": (f"{SEPARATE} c = Add(s, mask) p = Softmax(c) {MIX} {END}", 2, []),
    "where": (f"{SEPARATE} c = Where(keep, s, low) p = Softmax(c) {MIX} {END}", 2, []),
    "fused": (f"{FUSED} p = Softmax(s) {MIX} {END}", 3, ["Mul"]),
}
TURNED = SEPARATE.replace("s = MatMul(q, k)", "kr = Mul(k, turn) s = MatMul(q, kr)")
# What is not the same behind the change, or could not be told to be.
OTHERS = {
    "other axis": (f"{SEPARATE} p = Softmax<axis = 2>(s) {MIX} {END}", 0),
    "no mask": (f"{SEPARATE} c = Where(keep, s, scale) p = Softmax(c) {MIX} {END}", 0),
    "keys are read": (f"{SEPARATE} p = Softmax(s) {MIX} {END} z = Relu(kl)", 1),
    "weights are read": (f"{SEPARATE} p = Softmax(s) {MIX} {END} z = Relu(p)", 1),
    "turned by place": (f"{TURNED} p = Softmax(s) {MIX} {END}", 1),
}


def constants() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    made = {f"w{n}": rng.standard_normal((WIDTH, WIDTH)) / 5 for n in "qkvo"}
    made |= {f"b{n}": rng.standard_normal(WIDTH) + 2.0 for n in "qkvo"}
    made["wqkv"] = np.concatenate([made[f"w{n}"] for n in "qkv"], 1)
    made["bqkv"] = np.concatenate([made[f"b{n}"] for n in "qkv"])
    hidden = np.triu(np.ones((TOKENS, TOKENS), np.bool_), 1)
    made |= {"scale": np.asarray(0.3), "four": np.asarray(4.0), "low": np.asarray(-1e9)}
    made |= {"mask": np.where(hidden, -3.4e38, 0.0), "turn": rng.uniform(0.5, 1, (1, TOKENS))}
    return {**{n: a.astype(np.float32) for n, a in made.items()}, "keep": ~hidden}


def model_of(body: str) -> ir.Model:
    shape = f"float[2,{TOKENS},{WIDTH}]"
    more = ", float z" if "z = " in body else ""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g ({shape} x) => ({shape} y{more})
        {{ {body} }}"""
    proto = onnx.parser.parse_model(text)
    read = {name for node in proto.graph.node for name in node.input}
    for name, array in constants().items():
        if name in read:
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
    if more:
        proto.graph.output[1].CopyFrom(onnx.helper.make_tensor_value_info("z", 1, None))
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def eased(model: ir.Model) -> int:
    join_biases(model.graph, ())
    shapes = {name: fact.shape for name, fact in tensor_facts(model, SAMPLES[0]).items()}
    return ease_attention(model, shapes, SAMPLES)


def outputs(model: ir.Model) -> np.ndarray:
    session = open_session(model)
    return np.stack([run_session(session, sample)["y"] for sample in SAMPLES])


def prepared(body: str) -> ir.Model:
    from vermilion.quantize.working_copy import working_copy

    return working_copy(model_of(body))


@pytest.mark.parametrize("form", FORMS)
def test_the_result_stays_and_keys_and_values_have_no_mean(form: str) -> None:
    body, count, gone = FORMS[form]
    model = prepared(body)
    before, operators = outputs(model), [node.op_type for node in model.graph]
    assert eased(model) == count
    np.testing.assert_allclose(outputs(model), before, rtol=2e-4, atol=2e-4)
    after = [node.op_type for node in model.graph]
    assert [op for op in ("Mul", "Div") if op in operators and op not in after] == gone
    names = [str(node.outputs[0].name) for node in model.graph if node.op_type == "Gemm"]
    session = open_fetching(model, names)
    found = [run_session(session, sample, names) for sample in SAMPLES]
    means = {name: np.mean([f[name].mean(axis=0) for f in found], axis=0) for name in names}
    centred = [m for name, m in means.items() if np.abs(m).max() < 1e-4]
    if form == "fused":
        (whole,) = (m for m in means.values() if len(m) == 3 * WIDTH)
        assert np.abs(whole[WIDTH:]).max() < 1e-4 < np.abs(whole[:WIDTH]).max()
    else:
        assert len(centred) == 2


@pytest.mark.parametrize("form", OTHERS)
def test_what_somebody_else_would_see_is_left_alone(form: str) -> None:
    body, count = OTHERS[form]
    model = prepared(body)
    before = outputs(model)
    assert eased(model) == count
    np.testing.assert_allclose(outputs(model), before, rtol=2e-4, atol=2e-4)


def test_eight_bits_hold_more_of_it() -> None:
    model = model_of(FORMS["scaled"][0])
    data = [{"x": sample["x"]} for sample in SAMPLES]
    plain, own = (
        quantize_model(model, data, scheme="xint8", middle=middle) for middle in (True, False)
    )
    assert own.outputs[0].sqnr_db > plain.outputs[0].sqnr_db + 1.0


def test_scores_that_eight_bits_cannot_hold_stay_float() -> None:
    body = FORMS["masked"][0].replace("c = Add(s", "big = Mul(s, four) c = Add(big")
    model = model_of(body)
    data = [{"x": 4.0 * sample["x"]} for sample in SAMPLES]
    done = quantize_model(model, data, scheme="xint8").model
    scores = next(n for n in done.graph if n.op_type == "Softmax").inputs[0]
    assert scores is not None
    product = next(n for n in done.graph if n.op_type == "MatMul")
    readers = {use.node.op_type for use in product.outputs[0].uses()}
    assert "QuantizeLinear" not in readers
