"""Networks in our kernels against ONNX Runtime, given numbers that bfloat16 can hold."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import models
from vermilion.errors import Refusal
from vermilion.ir.execute import Array, open_session, run_session
from vermilion.quantize.calibrate import tensor_facts, with_outputs
from vermilion.quantize.native_run import run as run_module
from vermilion.quantize.native_run.run import NativeRun, Network, network_of

RNG = np.random.default_rng(4)

# Sums of a few hundred products in float32, in another order: of the largest result.
SUM_ERROR = 2e-5
# Results that bfloat16 rounded once, to eight bits, before they were multiplied again.
ROUNDED_ERROR = 2e-2


def rounded(shape: Sequence[int]) -> Array:
    """Numbers that are the same in bfloat16, whose products are exact."""
    values = RNG.standard_normal(shape).astype(np.float32)
    return values.astype(ml_dtypes.bfloat16).astype(np.float32)


def build(
    body: str, inputs: Mapping[str, Sequence[int]], weights: Mapping[str, Array], output: str = "y"
) -> tuple[ir.Model, dict[str, Array]]:
    given = ", ".join(f"float[{','.join(map(str, s))}] {name}" for name, s in inputs.items())
    text = (
        f"""<ir_version: 8, opset_import: ["" : 17]> g ({given}) => (float {output}) {{ {body} }}"""
    )
    proto = onnx.parser.parse_model(text)
    for name, array in weights.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    model = ir.from_proto(proto)
    model.graph.outputs[0].shape = None
    return model, {name: rounded(shape) for name, shape in inputs.items()}


def network(model: ir.Model, sample: Mapping[str, Array], wanted: Sequence[str]) -> Network:
    shapes = {n: fact.shape for n, fact in tensor_facts(model, sample).items() if fact.shape}
    found = network_of(model, frozenset(wanted), shapes)
    assert isinstance(found, Network), found
    return found


def shown(run: NativeRun, sample: Mapping[str, Array]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    run.run(sample, lambda name, array: found.__setitem__(name, array.copy()))
    return found


def compare(
    model: ir.Model, sample: Mapping[str, Array], wanted: Sequence[str], error: float
) -> dict[str, Array]:
    exact = run_session(open_session(with_outputs(model, wanted)), sample)
    found = shown(network(model, sample, wanted).laid_out(), sample)
    assert set(found) == set(wanted)
    for name, array in exact.items():
        assert found[name].shape == array.shape
        assert np.abs(found[name] - array).max() <= error * np.abs(array).max(), name
    return found


CONVOLUTIONS = {
    "pointwise": ("group=1", (1, 64, 7, 7), (64, 64, 1, 1)),
    "all kernels": ("pads=[1,1,1,1]", (1, 19, 9, 8), (117, 19, 3, 3)),
    "one channel": ("pads=[1,1,1,1]", (1, 1, 6, 5), (1, 1, 3, 3)),
    "few channels": ("strides=[2,2], pads=[3,3,3,3]", (1, 3, 33, 31), (24, 3, 7, 7)),
    "images": ("pads=[1,0,2,1], strides=[2,1]", (3, 5, 9, 8), (40, 5, 3, 2)),
    "dilated down": ("dilations=[3,1], pads=[3,1,3,1]", (1, 8, 12, 9), (16, 8, 3, 3)),
    "dilated along": ("dilations=[1,2], pads=[0,2,1,2]", (2, 7, 8, 12), (33, 7, 2, 3)),
    "same upper": ('auto_pad="SAME_UPPER", strides=[2,2]', (1, 6, 8, 7), (10, 6, 3, 4)),
    "pads larger than the kernel": ("pads=[2,2,2,2]", (1, 4, 3, 3), (8, 4, 1, 1)),
    "one pixel": ("group=1", (1, 300, 5, 5), (50, 300, 5, 5)),
    "channelwise": ("group=40, pads=[1,1,1,1]", (2, 40, 9, 7), (40, 1, 3, 3)),
    "channelwise, strides": (
        "group=17, pads=[2,2,2,2], strides=[2,2]",
        (1, 17, 9, 7),
        (17, 1, 5, 5),
    ),
    "channelwise, dilated": ("group=32, dilations=[2,2]", (1, 32, 9, 8), (32, 1, 3, 3)),
}


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_is_what_onnx_runtime_makes_of_it(case: str, has_bias: bool) -> None:
    attributes, read, weight = CONVOLUTIONS[case]
    names = "x, w, b" if has_bias else "x, w"
    weights = {"w": rounded(weight), "b": rounded(weight[:1])}
    weights = weights if has_bias else {"w": weights["w"]}
    model, sample = build(f"y = Conv<{attributes}>({names})", {"x": read}, weights)
    compare(model, sample, ["y"], SUM_ERROR)


def test_many_convolutions_drawn_at_random() -> None:
    for _ in range(60):
        kernel, strides, dilations = (RNG.integers(1, high, 2) for high in (5, 4, 4))
        pads = RNG.integers(0, 4, 4)
        channels, outputs = RNG.integers(1, 70, 2)
        least = (kernel - 1) * dilations + 1
        sides = np.maximum(least - pads[:2] - pads[2:], 1) + RNG.integers(0, 9, 2)
        words = ", ".join(
            f"{name}=[{','.join(map(str, values))}]"
            for name, values in (("strides", strides), ("dilations", dilations), ("pads", pads))
        )
        weights = {"w": rounded((outputs, channels, *kernel))}
        read = (int(RNG.integers(1, 3)), channels, *sides)
        model, sample = build(f"y = Conv<{words}>(x, w)", {"x": read}, weights)
        compare(model, sample, ["y"], SUM_ERROR)


PRODUCTS = {
    "MatMul(x, w)": ((2, 3, 41), (41, 70), None),
    "Gemm(x, w)": ((5, 30), (30, 17), None),
    "Gemm<transB=1>(x, w, b)": ((5, 30), (17, 30), (17,)),
    "Gemm<alpha=0.5, beta=2.0>(x, w, b)": ((1, 512), (512, 64), (1, 64)),
    "Gemm<transB=1, beta=0.25>(x, w, b) ": ((4, 9), (9, 9), (1,)),
}


@pytest.mark.parametrize("body", PRODUCTS)
def test_a_matrix_product_is_what_onnx_runtime_makes_of_it(body: str) -> None:
    read, weight, bias = PRODUCTS[body]
    weights = {"w": rounded(weight)} | ({} if bias is None else {"b": rounded(bias)})
    model, sample = build(f"y = {body}", {"x": read}, weights)
    compare(model, sample, ["y"], SUM_ERROR)


# The nodes, what is wanted, and how many tasks are left of the nodes.
ENDINGS = {
    "relu": ("c = Conv(x, w)  y = Relu(c)", ["c", "y"], 1),
    "relu of what is not seen": ("c = Conv(x, w)  y = Relu(c)", ["y"], 1),
    "relu that nobody needs": ("c = Conv(x, w)  y = Relu(c)", ["c"], 1),
    "clip": ("c = Conv(x, w)  y = Clip(c, low, high)", ["c", "y"], 1),
    "sum, then relu": ("p = Relu(x) c = Conv(x, w) s = Add(c, p) y = Relu(s)", ["c", "y"], 2),
    "all of it is seen": ("p = Relu(x) c = Conv(x, w) s = Add(p, c) y = Relu(s)", ["s", "y"], 3),
    "sum with an input": ("c = Conv(x, w)  y = Add(x, c)", ["c", "y"], 2),
    "twice the same": ("c = Conv(x, w)  y = Add(c, c)", ["c", "y"], 2),
    "two readers": ("c = Conv(x, w)  r = Relu(c)  y = Add(r, c)", ["y"], 3),
    "two products": ("c = Conv(x, w) d = Conv(x, v) s = Add(c, d) y = Relu(s)", ["c", "d", "y"], 2),
    "sum that is spread": ("c = Conv(x, w)  y = Add(c, one)", ["c", "y"], 2),
}


@pytest.mark.parametrize("case", ENDINGS)
def test_what_follows_a_product_is_done_with_it(case: str) -> None:
    body, wanted, tasks = ENDINGS[case]
    weights = {
        "w": rounded((24, 24, 1, 1)),
        "v": rounded((24, 24, 1, 1)),
        "one": rounded((1, 24, 1, 1)),
        "low": np.array(-1.5, np.float32),
        "high": np.array(2.5, np.float32),
    }
    model, sample = build(body, {"x": (1, 24, 6, 7)}, weights)
    assert len(network(model, sample, wanted).tasks) == tasks
    compare(model, sample, wanted, SUM_ERROR)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize(
    "last", ["Relu(c)", "Clip(c, low, high)", "MaxPool<kernel_shape=[2,2]>(c)"]
)
def test_what_is_not_finite_stays_so(bad: float, last: str) -> None:
    weights = {
        "w": np.ones((20, 3, 3, 3), np.float32),
        "low": np.array(-np.inf, np.float32),
        "high": np.array(np.inf, np.float32),
    }
    model, sample = build(f"c = Conv(x, w)  y = {last}", {"x": (1, 3, 8, 8)}, weights)
    sample["x"][0, 1, 4, 4] = bad
    found = shown(network(model, sample, ["c", "y"]).laid_out(), sample)
    assert not np.isfinite(found["c"][0, :, 2:5, 2:5]).any()
    assert np.isfinite(found["c"]).sum() == found["c"].size - 20 * 9
    assert not np.isfinite(found["y"]).all()


NETWORKS = {
    "small_cnn": models.small_cnn,
    "branching_cnn": models.branching_cnn,
    "mobilenet": models.mobilenet,
    "mobilenet with normalization": lambda: models.mobilenet(bn=True),
}


def opened(name: str) -> tuple[ir.Model, list[str], list[dict[str, Array]]]:
    model = NETWORKS[name]()
    given = model.graph.inputs[0]
    assert given.shape is not None
    shape = given.shape.numpy()
    samples = [{str(given.name): RNG.standard_normal(shape).astype(np.float32)} for _ in range(3)]
    return model, [str(v.name) for node in model.graph for v in node.outputs], samples


@pytest.mark.parametrize("name", NETWORKS)
def test_every_tensor_of_a_network_is_shown(name: str) -> None:
    model, wanted, (sample, *_) = opened(name)
    found = compare(model, sample, wanted, ROUNDED_ERROR)
    made = list(found)
    assert made[0] == wanted[0]
    assert made[-1] == wanted[-1]


@pytest.mark.parametrize("name", NETWORKS)
def test_neither_samples_nor_threads_leave_traces(name: str) -> None:
    model, wanted, samples = opened(name)
    wanted = wanted[len(wanted) // 2 :]
    layout = network(model, samples[0], wanted)
    one, other = layout.laid_out(1), layout.laid_out(3)
    shown(other, samples[2])
    for sample in samples:
        first, second = shown(one, sample), shown(other, sample)
        for wished in wanted:
            np.testing.assert_array_equal(first[wished], second[wished])


def test_shares_of_threads_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "_OF_A_SHARE", 1)
    for case in CONVOLUTIONS.values():
        attributes, read, weight = case
        model, sample = build(f"y = Conv<{attributes}>(x, w)", {"x": read}, {"w": rounded(weight)})
        layout = network(model, sample, ["y"])
        expected = shown(layout.laid_out(1), sample)["y"]
        for threads in (2, 3, 7):
            np.testing.assert_array_equal(shown(layout.laid_out(threads), sample)["y"], expected)


def test_a_deep_network_needs_the_memory_of_a_flat_one() -> None:
    def most_bytes(depth: int) -> int:
        body = "".join(
            f"c{n} = Conv<pads=[1,1,1,1]>(x{n}, w) x{n + 1} = Relu(c{n}) " for n in range(depth)
        )
        model, sample = build(
            body, {"x0": (1, 32, 40, 40)}, {"w": rounded((32, 32, 3, 3))}, f"x{depth}"
        )
        layout = network(model, sample, [f"x{n + 1}" for n in range(depth)])
        gc.collect()
        tracemalloc.start()
        run = layout.laid_out(1)
        most = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        run.run(sample, lambda name, array: None)
        return most

    picture_bytes = 40 * 40 * 32 * 4
    assert most_bytes(12) < most_bytes(3) + 9 * 100_000 < most_bytes(3) + 9 * picture_bytes


@pytest.mark.parametrize(
    ("body", "operator"),
    [
        ("y = Conv<group=2>(x, w)", "Conv"),
        ("y = Erf(x)", "Erf"),
        ('y = Resize<mode="linear">(x, , two)', "Resize"),
        ("r = Relu(x)  y = Conv(r, r)", "Conv"),
    ],
)
def test_an_operator_without_a_kernel_is_named(body: str, operator: str) -> None:
    weights = {"w": rounded((4, 2, 1, 1)), "two": np.array([1, 1, 2, 2], np.float32)}
    model, sample = build(body, {"x": (4, 4, 1, 1)}, weights)
    shapes = {n: fact.shape for n, fact in tensor_facts(model, sample).items() if fact.shape}
    found = network_of(model, frozenset({"y"}), shapes)
    assert isinstance(found, Refusal)
    assert f"no kernel for {operator} " in found.reason
