"""Graphs of all kinds: none is refused, and what stays in float is named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from vermilion.ir.execute import open_session, run_session
from vermilion.progress import no_progress
from vermilion.quantization import quantize_file
from vermilion.quantize.look import look
from vermilion.quantize.observe import Range
from vermilion.quantize.options import Options
from vermilion.quantize.quantize import quantize_model
from vermilion.quantize.result import Quantized

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def drawn_anew() -> None:
    """Let each test draw the same numbers, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def real(*shape: int) -> np.ndarray:
    size = np.sqrt(np.prod(shape[1:]) if len(shape) > 2 else shape[0])
    return (RNG.standard_normal(shape) / size).astype(np.float32)


def model(
    text: str, opset: int = 17, ir_version: int = 8, domain: str = "", **weights: np.ndarray
) -> ir.Model:
    more = f', "{domain}" : 1' if domain else ""
    head = f'<ir_version: {ir_version}, opset_import: ["" : {opset}{more}]>'
    proto = onnx.parser.parse_model(f"{head} g {text}")
    for name, array in weights.items():
        proto.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return ir.from_proto(proto)


def feeds(name: str, *shape: int, count: int = 8) -> list[dict[str, np.ndarray]]:
    return [{name: RNG.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def first(found: ir.Model, feed: dict[str, Any]) -> np.ndarray:
    return np.asarray(next(iter(run_session(open_session(found), feed).values())), np.float32)


def decibels(original: ir.Model, done: Quantized, data: list[dict[str, np.ndarray]]) -> float:
    wanted, found = (np.stack([first(m, x) for x in data]) for m in (original, done.model))
    return float(10 * np.log10(np.sum(wanted**2) / np.sum((wanted - found) ** 2)))


ADDENDS = {
    "matrix": (6, 10),
    "column": (6, 1),
    "row": (1, 10),
    "vector": (10,),
    "scalar": (),
    "one": (1,),
    "none": None,
}


@pytest.mark.parametrize("scheme", ["xint8", "a8w8"])
@pytest.mark.parametrize("form", ADDENDS)
def test_gemm_in_all_forms(form: str, scheme: str) -> None:
    shape = ADDENDS[form]
    weights = {"w": real(10, 20)}
    if shape is not None:
        weights["c"] = RNG.standard_normal(shape).astype(np.float32)
    name = "c" if shape is not None else '""'
    body = (
        f"y = Gemm<transB = 1, beta = 0.5>(x, w, {name})"
        if shape is not None
        else ("y = Gemm<transB = 1>(x, w)")
    )
    original = model(f"(float[6,20] x) => (float[6,10] y) {{ {body} }}", **weights)
    data = feeds("x", 6, 20)
    assert decibels(original, quantize_model(original, data, scheme=scheme), data) > 22.0


@pytest.mark.parametrize("turned", [0, 1])
def test_a_gemm_has_weights_of_4_bits(turned: int) -> None:
    weight = real(64, 32)
    original = model(
        f"(float[6,64] x) => (float[6,32] y) {{ y = Gemm<transB = {turned}>(x, w, c) }}",
        w=np.ascontiguousarray(weight.T) if turned else weight,
        c=RNG.standard_normal(32).astype(np.float32),
    )
    data = feeds("x", 6, 64)
    done = quantize_model(original, data, scheme="int4")
    assert [node.op_type for node in done.model.graph] == ["MatMulNBits", "Add"]
    assert decibels(original, done, data) > 18.0


def test_an_addend_that_is_computed_is_added() -> None:
    text = "(float[6,20] x, float[6,10] c) => (float[6,10] y) { y = Gemm<beta = 2.0>(x, w, c) }"
    original = model(text, w=real(20, 10))
    data = [{**a, **b} for a, b in zip(feeds("x", 6, 20), feeds("c", 6, 10), strict=True)]
    assert decibels(original, quantize_model(original, data, scheme="a8w8"), data) > 30.0


def test_a_bias_that_others_read_is_copied() -> None:
    text = """(float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Conv<pads = [1,1,1,1]>(x, w, b)
        m = Transpose<perm = [0,2,3,1]>(a) n = Add(m, b) t = Transpose<perm = [0,3,1,2]>(n)
        y = Conv(t, v, b) }"""
    original = model(text, w=real(4, 4, 3, 3), v=real(4, 4, 1, 1), b=RNG.random(4, np.float32))
    data = feeds("x", 1, 4, 8, 8)
    for scheme in ("xint8", "a8w8"):
        assert decibels(original, quantize_model(original, data, scheme=scheme), data) > 22.0


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_halves_are_computed_in_float(kind: str) -> None:
    dtype = np.dtype(ir.DataType[kind.upper()].numpy())
    text = f"""({kind}[1,4,8,8] x) => ({kind}[1,4,8,8] y) {{ f = Cast<to = 1>(x)
        h = Cast<to = {int(ir.DataType[kind.upper()])}>(f) a = Conv<pads = [1,1,1,1]>(h, w)
        r = Relu(a) y = Conv(r, v) }}"""
    original = model(text)
    for name, array in {"w": real(8, 4, 3, 3), "v": real(4, 8, 1, 1)}.items():
        tensor = ir.tensor(array.astype(dtype), name=name)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape))
        for node in original.graph:
            for place, read in enumerate(node.inputs):
                if read is not None and read.name == name:
                    node.replace_input_with(place, value)
        value.const_value = tensor
        original.graph.register_initializer(value)
    data = [{"x": a["x"].astype(dtype)} for a in feeds("x", 1, 4, 8, 8)]
    for scheme in ("xint8", "a16w8", "bf16"):
        done = quantize_model(original, data, scheme=scheme)
        assert done.outputs[0].sqnr_db > 18.0
        assert [v.dtype for v in (*done.model.graph.inputs, *done.model.graph.outputs)] == [
            ir.DataType[kind.upper()]
        ] * 2


@pytest.mark.parametrize("scheme", ["xint8", "a8w8", "bf16", "int4", "int8-dynamic"])
def test_a_model_of_float64_is_computed_in_float32(scheme: str) -> None:
    text = """(double[6,64] x) => (double[6,32] y) {
        k = Constant<value = double[1] {0.5}>() a = MatMul(x, w) y = Mul(a, k) }"""
    original = model(text, w=real(64, 32).astype(np.float64))
    data = [{"x": row["x"].astype(np.float64)} for row in feeds("x", 6, 64)]
    done = quantize_model(original, data, scheme=scheme)
    assert decibels(original, done, data) > 15.0
    ends = (*done.model.graph.inputs, *done.model.graph.outputs)
    assert {value.dtype for value in ends} == {ir.DataType.DOUBLE}


def test_float64_beside_float32_stays() -> None:
    text = """(float[6,64] x, double[6,32] c) => (double[6,32] y) {
        a = MatMul(x, w) d = Cast<to = 11>(a) y = Add(d, c) }"""
    done = quantize_model(
        model(text, w=real(64, 32)),
        [{**row, "c": np.full((6, 32), 1e12)} for row in feeds("x", 6, 64)],
        scheme="a8w8",
    )
    by_kind = {node.op_type: node for node in done.model.graph}
    assert by_kind["Add"].outputs[0].dtype == ir.DataType.DOUBLE


@pytest.mark.parametrize("opset", [7, 11])
def test_old_formats_are_raised(opset: int) -> None:
    text = "(float[1,4,8,8] x, float[4,4,3,3] w) => (float[1,4,6,6] y) { y = Conv(x, w) }"
    original = model(text, opset, 3, w=real(4, 4, 3, 3))
    data = feeds("x", 1, 4, 8, 8)
    assert decibels(original, quantize_model(original, data, scheme="a8w8"), data) > 30.0


def test_what_cannot_be_raised_takes_a_scale_a_tensor() -> None:
    """The converter follows no bodies, and no domains but its own."""
    text = """(float[4,16] x) => (float[4,8] y) { a = MatMul(x, w) y = com.microsoft.Gelu(a) }"""
    original = model(text, 10, 6, "com.microsoft", w=real(16, 8))
    data = feeds("x", 4, 16)
    done = quantize_model(original, data, scheme="a8w8")
    assert done.model.opset_imports[""] == 10
    assert decibels(original, done, data) > 30.0


@pytest.mark.parametrize("scheme", ["a8w8", "bf16", "mxint8"])
@pytest.mark.parametrize("opset", [11, 12])
def test_bodies_of_opset_11_and_12_are_raised_by_rules(opset: int, scheme: str) -> None:
    text = """(float[1,4,16] x) => (float[1,4,8] y) {
        b = Loop(three, yes, x) <body = b (int64 n, bool go, float[1,4,16] s)
                => (bool still, float[1,4,16] t) {
            a = MatMul(s, w) u = Squeeze<axes = [0]>(a) p = Softmax<axis = 1>(u)
            t = Unsqueeze<axes = [0]>(p) still = Identity(go) }>
        y = MatMul(b, v) }"""
    three, yes = np.asarray(3), np.asarray(True)
    original = model(text, opset, 6, three=three, yes=yes, w=real(16, 16), v=real(16, 8))
    data = feeds("x", 1, 4, 16)
    done = quantize_model(original, data, scheme=scheme)
    assert done.model.opset_imports[""] >= 13
    assert decibels(original, done, data) > 25.0


BRANCHES = """(float[1,4,8,8] x) => (float[1,4,8,8] y) {
    m = ReduceMax<keepdims = 0>(x) c = Greater(m, limit)
    a = If(c) <then_branch = t () => (float[1,4,8,8] p) { p = Conv<pads = [1,1,1,1]>(x, w) },
               else_branch = e () => (float[1,4,8,8] q) { q = Conv<pads = [1,1,1,1]>(x, v) }>
    y = Conv<pads = [1,1,1,1]>(a, u) }"""


def test_what_is_in_branches_is_named_and_has_weights_of_8_bits() -> None:
    weights = {name: real(4, 4, 3, 3) for name in "wvu"}
    original = model(BRANCHES, limit=np.float32(2.5), **weights)
    data = feeds("x", 1, 4, 8, 8)
    done = quantize_model(original, data, scheme="a8w8")
    assert {(row.op_type, row.has_weights) for row in done.inner} == {("Conv", True)}
    assert len(done.inner) == 2
    assert "w" not in done.model.graph.initializers
    assert decibels(original, done, data) > 25.0
    names = [row.name for row in done.inner]
    in_float = quantize_model(original, data, scheme="mxint8").inner
    assert [(row.name, row.has_weights) for row in in_float] == [(n, False) for n in names]
    left = quantize_model(original, data, scheme="a8w8", exclude=[names[0]])
    assert [row.has_weights for row in left.inner] == [False, True]


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_recurrent_layers_have_weights_of_8_bits(kind: str) -> None:
    gates = {"LSTM": 4, "GRU": 3}[kind]
    text = f"""(float[5,1,16] x) => (float[5,1,8] y) {{ a = MatMul(x, m)
        h = {kind}<hidden_size = 12>(a, w, r) s = Squeeze(h, one) y = MatMul(s, v) }}"""
    weights = {"m": real(16, 16), "v": real(12, 8), "one": np.asarray([1])}
    weights |= {"w": real(1, gates * 12, 16), "r": real(1, gates * 12, 12)}
    original = model(text, **weights)
    data = feeds("x", 5, 1, 16)
    done = quantize_model(original, data, scheme="a8w8")
    assert [(row.op_type, row.outer, row.has_weights) for row in done.inner] == [(kind, "", True)]
    layer = next(node for node in done.model.graph if node.op_type == kind)
    makers = [v.producer().op_type for v in layer.inputs[1:3]]
    assert makers == ["Mul", "Mul"]  # which every runtime makes a constant of
    assert decibels(original, done, data) > 25.0


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_errors_of_recurrent_weights_cancel(kind: str) -> None:
    """What both weights are multiplied with is of few directions, as states mostly are."""
    gates = {"LSTM": 4, "GRU": 3}[kind]
    text = f"""(float[40,1,24] x) => (float[40,1,8] y) {{ h = {kind}<hidden_size = 24>(x, w, r)
        s = Squeeze(h, one) y = MatMul(s, v) }}"""
    weights = {"w": real(1, gates * 24, 24), "r": 2.0 * real(1, gates * 24, 24)}
    weights |= {"v": real(24, 8), "one": np.asarray([1])}
    original = model(text, **weights)
    few = real(4, 24)
    data = [{"x": (f["x"] @ few).astype(np.float32)} for f in feeds("x", 40, 1, 4, count=24)]
    rows = np.concatenate([f["x"].reshape(-1, 24) for f in data])

    def noise(rounding: Literal["nearest", "compensated"]) -> float:
        done = quantize_model(original, data, scheme="a8w8", rounding=rounding).model
        stored = done.graph.initializers
        integers, scale = (stored[f"w_{word}"].const_value for word in ("quantized", "scale"))
        assert integers is not None
        assert scale is not None
        found = integers.numpy() * scale.numpy()
        return float(np.sum((rows @ (found - weights["w"])[0].T) ** 2))

    assert noise("compensated") < 0.25 * noise("nearest")


def test_sequences_pass() -> None:
    text = """(float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Conv<pads = [1,1,1,1]>(x, w)
        s = SequenceConstruct(a, x) e = SequenceAt(s, zero) k = ConcatFromSequence<axis = 1>(s)
        z = Conv(k, v) y = Add(z, e) }"""
    original = model(text, w=real(4, 4, 3, 3), v=real(4, 8, 1, 1), zero=np.asarray(0))
    data = feeds("x", 1, 4, 8, 8)
    for scheme in ("xint8", "a8w8", "bf16"):
        assert decibels(original, quantize_model(original, data, scheme=scheme), data) > 22.0


MASKS = {"lowest": -3.4e38, "billion": -1e9, "half": -1e4, "infinite": -np.inf}
ATTENTION = """(float[1,12,24] x{given}) => (float[1,12,24] y) {{ q = MatMul(x, wq)
    k = MatMul(x, wk) v = MatMul(x, wv) t = Transpose<perm = [0,2,1]>(k) s = MatMul(q, t)
    {masked} p = Softmax(m) y = MatMul(p, v) }}"""
FORMS = {
    "constant": ("", "m = Add(s, mask)"),
    "where": ("", "m = Where(keep, s, low)"),
    "computed": ("", "f = Cast<to = 1>(hide) n = Mul(f, low) m = Add(n, s)"),
    "given": (", float[12,12] given", "m = Add(s, given)"),
}


# Zero times infinity is no number.
@pytest.mark.parametrize(
    ("form", "low"), sorted({(f, n) for f in FORMS for n in MASKS} - {("computed", "infinite")})
)
def test_masks_are_no_ranges(form: str, low: str) -> None:
    value = np.float32(MASKS[low])
    given, masked = FORMS[form]
    hide = np.triu(np.ones((12, 12), np.bool_), 1)
    mask = np.where(hide, value, np.float32(0.0))
    weights = {f"w{name}": real(24, 24) for name in "qkv"}
    extra = {"mask": mask, "keep": ~hide, "hide": hide, "low": np.asarray(value)}
    used = {name: array for name, array in extra.items() if name in masked}
    original = model(ATTENTION.format(given=given, masked=masked), **weights, **used)
    data = feeds("x", 1, 12, 24)
    data = [{**x, "given": mask} if given else x for x in data]
    for scheme, least in {"xint8": 25.0, "a8w8": 22.0, "a16w8": 32.0}.items():
        assert decibels(original, quantize_model(original, data, scheme=scheme), data) > least


def test_ranges_of_16_bits_have_headroom() -> None:
    text = (
        "(float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Conv(x, w) b = Sigmoid(a) y = Conv(b, w) }"
    )
    original = model(text, w=real(4, 4, 1, 1))
    steady = [{"x": np.sign(f["x"])} for f in feeds("x", 1, 4, 8, 8)]
    scales = quantize_model(original, steady, scheme="a16w8").model.graph.initializers

    def end(name: str) -> float:
        stored = scales[f"{name}_scale"].const_value
        assert stored is not None
        return float(stored.numpy()) * 32767

    assert end("x") == pytest.approx(2.0)
    assert end("b") == pytest.approx(1.0)  # no sigmoid gives more
    seen = Range()
    for largest in (1.0, 2.0, 4.0, 8.0):
        seen.add(np.asarray([largest], np.float32))
    assert seen.spread is not None
    assert seen.spread.headroom() > 8.0


@pytest.mark.parametrize("scheme", ["a8w8", "int4", "bf16"])
def test_files_of_the_float_model_are_not_needed(scheme: str, tmp_path: Path) -> None:
    text = """(float[4,96] x) => (float[4,48] y) { n = LayerNormalization(x, s, b)
        a = MatMul(n, w) c = Mul(a, k) y = MatMul(c, v) }"""
    ones = np.ones(96, np.float32)
    weights = {"w": real(96, 96), "v": real(96, 48), "s": ones, "b": 0 * ones, "k": 2 * ones}
    original = model(text, **weights)
    (tmp_path / "float").mkdir()
    proto = ir.to_proto(original)
    onnx.save(proto, tmp_path / "float" / "m.onnx", save_as_external_data=True, size_threshold=0)
    data = feeds("x", 4, 96)
    place = tmp_path / "there" / "q.onnx"
    quantize_file(tmp_path / "float" / "m.onnx", place, calib=data, scheme=scheme)
    shutil.rmtree(tmp_path / "float")
    moved = shutil.move(place, tmp_path / "moved.onnx")
    found = first(ir.load(moved), data[0])
    wanted = first(original, data[0])
    assert np.sum((wanted - found) ** 2) < 0.05 * np.sum(wanted**2)


def test_products_of_one_tensor_share_what_is_seen() -> None:
    original = model(
        "(float[9,16] x) => (float[9,8] y) { a = MatMul(x, w) b = MatMul(x, v) y = Add(a, b) }",
        w=real(16, 8),
        v=real(16, 8),
    )
    seen = look(original, feeds("x", 9, 16), Options(scheme="a8w8"), no_progress)
    assert seen.moments["w"] is seen.moments["v"]
