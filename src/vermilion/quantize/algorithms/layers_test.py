from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from vermilion.ir.execute import open_session, run_session
from vermilion.quantize.algorithms import layers as module
from vermilion.quantize.algorithms import moments as moments_module
from vermilion.quantize.algorithms.layers import Layer, layers_of
from vermilion.quantize.algorithms.moments import Moments

RNG = np.random.default_rng(1)

CASES = {
    "plain": ("Conv(x, w)", (2, 6, 9, 8), (4, 6, 3, 3)),
    "stride and pads": ("Conv<strides=[2,1], pads=[1,0,2,1]>(x, w)", (1, 4, 9, 8), (5, 4, 3, 2)),
    "dilated": ("Conv<dilations=[2,3], pads=[1,1,1,1]>(x, w)", (1, 3, 12, 14), (4, 3, 3, 3)),
    "grouped": ("Conv<group=2>(x, w)", (1, 6, 7, 7), (4, 3, 3, 3)),
    "depthwise": ("Conv<group=6, pads=[1,1,1,1]>(x, w)", (1, 6, 7, 7), (6, 1, 3, 3)),
    "same upper": ('Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)', (1, 3, 8, 7), (2, 3, 3, 4)),
    "same lower": ('Conv<auto_pad="SAME_LOWER", strides=[2,2]>(x, w)', (1, 3, 8, 7), (2, 3, 3, 4)),
    "valid": ('Conv<auto_pad="VALID">(x, w)', (1, 3, 8, 7), (2, 3, 3, 4)),
    "one axis": ("Conv<pads=[2,0]>(x, w)", (2, 3, 11), (4, 3, 5)),
    "three axes": ("Conv(x, w)", (1, 2, 5, 5, 5), (3, 2, 2, 3, 2)),
    "product": ("MatMul(x, w)", (2, 3, 10), (10, 7)),
    "gemm": ("Gemm(x, w)", (5, 10), (10, 7)),
    "gemm turned": ("Gemm<transB=1>(x, w)", (5, 10), (7, 10)),
}


def build(case: str) -> tuple[ir.Model, Layer, np.ndarray, np.ndarray]:
    body, read, weight = CASES[case]
    shape = ",".join(map(str, read))
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[{shape}] x) => (float[?] y)
        {{ y = {body} }}"""
    proto = onnx.parser.parse_model(text.replace("float[?]", "float"))
    w = RNG.standard_normal(weight).astype(np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    model = ir.from_proto(proto)
    (layer,) = layers_of(model.graph)
    return model, layer, RNG.standard_normal(read).astype(np.float32), w


@pytest.mark.parametrize("longest", [10_000, 12])
@pytest.mark.parametrize("case", CASES)
def test_rows_times_matrices_are_what_the_operator_gives(
    case: str, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST", longest)
    model, layer, x, w = build(case)
    expected = next(iter(run_session(open_session(model), {"x": x}).values()))
    rows = layer.rows(x, 10**6, 0)
    assert layer.width <= max(longest, w[0, 0].size if layer.window else 1, 1) or layer.groups > 1
    products = np.einsum("grk,gok->rgo", rows, layer.matrices(w))
    flat = products.sum(axis=1) if layer.blocks > 1 else products.reshape(len(products), -1)
    if layer.window is not None:
        moved = np.moveaxis(expected, 1, -1)
        np.testing.assert_allclose(flat, moved.reshape(-1, moved.shape[-1]), atol=1e-4)
    else:
        np.testing.assert_allclose(flat, expected.reshape(-1, expected.shape[-1]), atol=1e-4)
    np.testing.assert_array_equal(layer.stored(layer.matrices(w), w.shape), w)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_moments_are_those_of_all_rows(
    case: str, channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moments_module, "ROWS_PER_SAMPLE", 10**6)
    _, layer, x, _ = build(case)
    if channels_last and layer.window is not None:
        x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    moments = Moments(layer)
    for _ in range(3):
        moments.add(x)
    rows = layer.rows(x, 10**6, 0).astype(np.float64)
    gram = rows.transpose(0, 2, 1) @ rows / rows.shape[1]
    mean = rows.mean(axis=1)
    np.testing.assert_allclose(moments.mean(), mean, atol=1e-4)
    np.testing.assert_allclose(moments.gram(centred=False), gram, atol=1e-3)
    centred = gram - mean[:, :, None] * mean[:, None, :]
    np.testing.assert_allclose(moments.gram(centred=True), centred, atol=1e-3)


def test_rows_are_drawn_and_moments_stop_when_they_have_enough() -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[999,4] x) => (float[999,2] y)
        <float[4,2] w = {1,2,3,4,5,6,7,8}> { y = MatMul(x, w) }"""
    (layer,) = layers_of(ir.from_proto(onnx.parser.parse_model(text)).graph)
    moments = Moments(layer)
    x = np.random.default_rng(5).standard_normal((999, 4)).astype(np.float32)
    for _ in range(400):
        moments.add(x)
    assert moments.is_full
    assert moments.count < 999 * 400 / 40
    assert np.abs(moments.mean() - x.mean(axis=0)).max() < 0.2  # of 256 rows: three deviations


@pytest.mark.parametrize(
    "body",
    ["y = MatMul(w, x)", "y = Gemm<transA=1>(x, w)", "h = MatMul(x, w) \n y = MatMul(h, w)"],
)
def test_what_is_no_layer(body: str) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2,2] x) => (float[2,2] y)
        <float[2,2] w = {{1,2,3,4}}> {{ {body} }}"""
    assert layers_of(ir.from_proto(onnx.parser.parse_model(text)).graph) == []


IMAGES = [case for case, (body, read, _) in CASES.items() if "Conv" in body and len(read) == 4]


@pytest.mark.parametrize("case", IMAGES)
@pytest.mark.parametrize("limit", [5, 20, 10_000])
def test_patches_are_the_same_where_channels_lie_last(case: str, limit: int) -> None:
    _, layer, x, _ = build(case)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    rows, others = (layer.rows(a, limit, 2) for a in (x, last))
    np.testing.assert_array_equal(others, rows)


@pytest.mark.parametrize("case", CASES)
def test_rows_do_not_change_with_what_they_were_read_from(case: str) -> None:
    _, layer, x, _ = build(case)
    rows = layer.rows(x, 10**6, 2)
    before = rows.copy()
    x[...] = 0.0
    np.testing.assert_array_equal(rows, before)


@pytest.mark.parametrize("longest", [10_000, 12])
@pytest.mark.parametrize("case", CASES)
def test_what_belongs_to_an_output_meets_its_weights(
    case: str, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST", longest)
    _, layer, _, w = build(case)
    axis = 1 if layer.transposed else 0
    scales = np.arange(1.0, w.shape[axis] + 1.0, dtype=np.float32)
    aligned = scales.reshape([-1 if i == axis else 1 for i in range(w.ndim)])
    whole = layer.matrices(np.broadcast_to(aligned, w.shape))
    given = np.broadcast_to(layer.by_output(scales, w.shape), whole.shape)
    np.testing.assert_array_equal(given, whole)
    one = layer.by_output(np.asarray(3.0, np.float32), w.shape)
    assert np.broadcast_to(one, whole.shape).min() == 3.0


@pytest.mark.parametrize("shape", [(0, 8), (8, 0)])
def test_a_weight_without_numbers_is_no_layer(shape: tuple[int, int]) -> None:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[2,{shape[0]}] x) => (float[2,8] y)
        {{ y = MatMul(x, w) }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(shape, np.float32), "w"))
    assert not layers_of(ir.from_proto(proto).graph)
