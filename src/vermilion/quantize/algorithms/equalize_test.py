from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import models
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.measure import agreement
from vermilion.quantize.algorithms.equalize import equalize_layers

# Float32 sums in another order: what is left of 24 bits after some thousand additions.
SAME_DB = 90.0


def model_of(
    body: str, weights: dict[str, tuple[int, ...]], result: str = "float[a,b,c,d] y"
) -> ir.Model:
    text = f'<ir_version: 8, opset_import: ["" : 17]> g (float[1,4,8,8] x) => ({result}) {{{body}}}'
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(7)
    for name, shape in weights.items():
        values = rng.standard_normal(shape) * 10.0 ** rng.uniform(
            -2, 2, (shape[0], *(1,) * (len(shape) - 1))
        )
        proto.graph.initializer.append(
            onnx.numpy_helper.from_array(values.astype(np.float32), name)
        )
    return ir.from_proto(proto)


def outputs(model: ir.Model) -> np.ndarray:
    x = np.random.default_rng(8).standard_normal((1, 4, 8, 8)).astype(np.float32)
    return next(iter(run_session(open_session(model), {"x": x}).values()))


def weight(model: ir.Model, name: str) -> np.ndarray:
    tensor = model.graph.initializers[name].const_value
    assert tensor is not None
    return tensor.numpy()


def by_output(array: np.ndarray) -> np.ndarray:
    return np.abs(array).reshape(len(array), -1).max(axis=1)


def by_input(array: np.ndarray) -> np.ndarray:
    return np.abs(array).max(axis=(0, 2, 3))


PAIR = "h = Conv(x, a, ab) \n r = Relu(h) \n y = Conv(r, b)"
PAIR_WEIGHTS = {"a": (6, 4, 3, 3), "ab": (6,), "b": (5, 6, 1, 1)}

FUNCTIONS = {
    "pair, no group attribute": (PAIR, PAIR_WEIGHTS),
    "grouped": (
        "h = Conv<group=2>(x, a, ab) \n r = LeakyRelu<alpha=0.1>(h) \n y = Conv<group=3>(r, b)",
        {"a": (6, 2, 3, 3), "ab": (6,), "b": (9, 2, 1, 1)},
    ),
    "depthwise triple": (
        "h = Conv(x, a, ab) \n r = Relu(h) \n k = Conv<group=6>(r, d) \n s = Relu(k)"
        "\n y = Conv(s, b)",
        {**PAIR_WEIGHTS, "d": (6, 1, 3, 3)},
    ),
    "pool between": (
        "h = Conv(x, a, ab) \n m = MaxPool<kernel_shape=[2,2]>(h) \n y = Conv(m, b)",
        PAIR_WEIGHTS,
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_stays_and_weights_move(name: str) -> None:
    body, weights = FUNCTIONS[name]
    model = model_of(body, weights)
    before, old = outputs(model), weight(model, "a")
    assert equalize_layers(model) == body.count("Conv") - 1
    assert not np.array_equal(weight(model, "a"), old)
    assert agreement("y", before, outputs(model)).sqnr_db > SAME_DB


def test_classifier_after_a_global_pool_is_reached() -> None:
    model = model_of(
        "h = Conv(x, a, ab) \n p = GlobalAveragePool(h) \n f = Flatten(p)"
        "\n g = Gemm<transB=1>(f, b) \n r = Relu(g) \n y = Gemm(r, c)",
        {"a": (6, 4, 3, 3), "ab": (6,), "b": (7, 6), "c": (7, 3)},
        result="float[a,b] y",
    )
    before = outputs(model)
    assert equalize_layers(model) == 2
    assert agreement("y", before, outputs(model)).sqnr_db > SAME_DB


def test_ranges_of_a_pair_become_alike() -> None:
    model = model_of(PAIR, PAIR_WEIGHTS)
    equalize_layers(model)
    np.testing.assert_allclose(
        by_output(weight(model, "a")), by_input(weight(model, "b")), rtol=0.02
    )


def test_ranges_of_a_triple_become_alike() -> None:
    model = model_of(*FUNCTIONS["depthwise triple"])
    equalize_layers(model)
    middle = by_output(weight(model, "d"))
    np.testing.assert_allclose(by_output(weight(model, "a")), middle, rtol=0.02)
    np.testing.assert_allclose(by_input(weight(model, "b")), middle, rtol=0.02)


def test_dead_channel_stays() -> None:
    model = model_of(PAIR, PAIR_WEIGHTS)
    value = model.graph.initializers["a"]
    dead = weight(model, "a").copy()
    dead[2] = 0.0
    value.const_value = ir.tensor(dead, name="a")
    equalize_layers(model)
    assert np.isfinite(weight(model, "b")).all()
    assert not weight(model, "a")[2].any()


@pytest.mark.parametrize(
    "body",
    [
        "h = Conv(x, a, ab) \n r = Sigmoid(h) \n y = Conv(r, b)",
        "h = Conv(x, a, ab) \n k = Conv(h, b) \n m = ReduceSum(h) \n y = Add(k, m)",
        "h = Conv(x, a, ab) \n c = Constant<value_float=1.0>() \n r = Clip(h, , c)"
        "\n y = Conv(r, b)",
    ],
)
def test_pairs_that_do_not_scale_are_left(body: str) -> None:
    model = model_of(body, PAIR_WEIGHTS)
    assert equalize_layers(model) == 0


def test_shared_weight_is_left() -> None:
    body = "h = Conv(x, a, ab) \n r = Relu(h) \n y = Conv(r, a)"
    assert equalize_layers(model_of(body, {"a": (4, 4, 1, 1), "ab": (4,)})) == 0


def test_whole_network_keeps_its_function() -> None:
    model = models.small_cnn()
    x = {"input": np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)}
    before = next(iter(run_session(open_session(model), x).values()))
    assert equalize_layers(model) > 0
    after = next(iter(run_session(open_session(model), x).values()))
    assert agreement("y", before, after).sqnr_db > SAME_DB
