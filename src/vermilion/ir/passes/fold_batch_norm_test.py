import numpy as np
import onnx_ir as ir
import pytest

from vermilion.ir.passes.contract_test import operators, parse, reasons, run, weight
from vermilion.ir.passes.fold_batch_norm import fold_batch_norm
from vermilion.ir.passes.rewrite import run_pass

STATISTICS = "float[4] g, float[4] b, float[4] m, float[4] v"
LAYERS = {
    "conv": ("float[1,3,8,8] x", "Conv(x, w)", (4, 3, 3, 3), None),
    "conv with bias": ("float[1,3,8,8] x", "Conv(x, w, c)", (4, 3, 3, 3), (4,)),
    "grouped": ("float[1,4,8,8] x", "Conv<group = 4>(x, w)", (4, 1, 3, 3), None),
    "one axis": ("float[1,3,8] x", "Conv(x, w, c)", (4, 3, 3), (4,)),
    "transposed": ("float[1,3,8,8] x", "ConvTranspose(x, w, c)", (3, 4, 3, 3), (4,)),
    "transposed, grouped": (
        "float[1,6,8,8] x",
        "ConvTranspose<group = 2>(x, w)",
        (6, 2, 3, 3),
        None,
    ),
    "gemm": ("float[2,3] x", "Gemm(x, w, c)", (3, 4), (4,)),
    "gemm, row bias": ("float[2,3] x", "Gemm<beta = 0.5, alpha = 2.0>(x, w, c)", (3, 4), (1, 4)),
    "gemm, scalar bias": ("float[2,3] x", "Gemm(x, w, c)", (3, 4), ()),
    "gemm, other way": ("float[2,3] x", "Gemm<transB = 1, beta = 3.0>(x, w)", (4, 3), None),
}


def norm(seed: int = 7) -> dict[str, np.ndarray]:
    return {
        "g": weight(4, seed=seed),
        "b": weight(4, seed=seed + 1),
        "m": weight(4, seed=seed + 2),
        "v": np.abs(weight(4, seed=seed + 3)) + 0.1,
    }


def layer(name: str, after: str, extra: str = STATISTICS, **constants) -> ir.Model:
    source, node, shape, bias = LAYERS[name]
    weights = {"w": weight(*shape), **constants}
    declared = f"float{list(shape)} w"
    if bias is not None:
        weights["c"] = weight(*bias, seed=3).reshape(bias)
        declared += f", float{list(bias) if bias else ''} c"
    rank = source.count(",") + 1
    output = f"float[{','.join('?' * rank)}] y"
    extra = f", {extra}" if extra else ""
    return parse(f"({source}, {declared}{extra}) => ({output}) {{ a = {node} {after} }}", **weights)


@pytest.mark.parametrize("name", LAYERS)
def test_fires_on_batch_norm(name) -> None:
    model = layer(
        name, "d = BatchNormalization<epsilon = 0.01>(a, g, b, m, v) y = Relu(d)", **norm()
    )
    work, step = run(fold_batch_norm, model)
    assert step.fired == 1
    assert len(operators(work)) == 2
    assert "BatchNormalization" not in operators(work)


def test_an_output_keeps_its_name_and_old_weights_go() -> None:
    model = layer("conv with bias", "y = BatchNormalization(a, g, b, m, v)", **norm())
    work, _ = run(fold_batch_norm, model)
    assert operators(work) == ["Conv"]
    assert work.graph.outputs[0].name == "y"
    assert not {"w", "c"} & set(work.graph.initializers)


@pytest.mark.parametrize(
    ("after", "shape"),
    [
        ("y = Mul(a, k)", [1, 4, 1, 1]),
        ("y = Mul(k, a)", [4, 1, 1]),
        ("y = Add(a, k)", [4, 1, 1]),
        ("y = Sub(a, k)", [1, 4, 1, 1]),
        ("y = Sub(k, a)", [1, 4, 1, 1]),
        ("y = Div(a, k)", [4, 1, 1]),
        ("y = Mul(a, k)", []),
        ("y = Add(a, k)", [1]),
        ("d = Mul(a, k) e = Add(d, k) y = Relu(e)", [4, 1, 1]),
    ],
)
@pytest.mark.parametrize("name", ["conv", "conv with bias", "transposed"])
def test_fires_on_arithmetic(name, after, shape) -> None:
    constant = weight(*shape, seed=5).reshape(shape) + np.float32(3)
    model = layer(name, after, f"float{shape or ''} k", k=np.asarray(constant, np.float32))
    work, step = run(fold_batch_norm, model)
    assert step.fired == after.count("k")
    assert not {"Mul", "Add", "Sub", "Div"} & set(operators(work))


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ("d = BatchNormalization(a, g, b, m, v) y = Add(a, d)", "is used elsewhere, too"),
        ("d = Abs(a) y = BatchNormalization(d, g, b, m, v)", "it follows Abs, not one of Conv"),
        ("e = Exp(g) y = BatchNormalization(a, e, b, m, v)", "statistics are not constants"),
    ],
)
def test_refuses_with_a_reason(after, reason) -> None:
    work, step = run(fold_batch_norm, layer("conv", after, **norm()))
    assert step.fired == 0
    assert reason in reasons(step)[0]
    assert "BatchNormalization" in operators(work)


def test_refuses_a_norm_of_the_input() -> None:
    model = parse(
        f"(float[1,4,2] x, {STATISTICS}) => (float[1,4,2] y) "
        "{ y = BatchNormalization(x, g, b, m, v) }",
        **norm(),
    )
    _, step = run(fold_batch_norm, model)
    assert reasons(step) == ["nothing before it can take it in"]


def test_refuses_training_mode() -> None:
    after = "y, rm, rv = BatchNormalization<training_mode = 1>(a, g, b, m, v)"
    step = run_pass(fold_batch_norm, layer("conv", after, **norm()))
    assert reasons(step) == ["it is in training mode"]


def test_refuses_weights_that_are_computed() -> None:
    model = parse(
        f"(float[1,3,8,8] x, float[4,3,3,3] u, {STATISTICS}) => (float[1,4,6,6] y) "
        "{ w = Neg(u) a = Conv(x, w) y = BatchNormalization(a, g, b, m, v) }",
        u=weight(4, 3, 3, 3),
        **norm(),
    )
    _, step = run(fold_batch_norm, model)
    assert reasons(step) == ["the weights of Conv are not constants"]


@pytest.mark.parametrize("after", ["y = Mul(a, k)", "y = Add(k, a)"])
def test_refuses_a_constant_that_is_not_per_channel(after) -> None:
    model = layer("conv", after, "float[6] k", k=weight(6))
    _, step = run(fold_batch_norm, model)
    assert reasons(step) == ["its constant is not one value a channel"]


def test_refuses_a_division_by_the_convolution() -> None:
    _, step = run(fold_batch_norm, layer("conv", "y = Div(k, a)", "float k", k=np.float32(2)))
    assert reasons(step) == ["it divides by the result of the convolution"]


def test_refuses_statistics_that_overflow() -> None:
    bad = {**norm(), "v": np.full(4, -1, np.float32)}
    model = layer("conv", "y = BatchNormalization(a, g, b, m, v)", **bad)
    step = run_pass(fold_batch_norm, model)
    assert reasons(step) == ["folded, the weights would leave the range of FLOAT"]


def test_weights_shared_with_another_layer_stay_for_it() -> None:
    after = "d = BatchNormalization(a, g, b, m, v) e = Conv(x, w) y = Add(d, e)"
    work, step = run(fold_batch_norm, layer("conv", after, **norm()))
    assert step.fired == 1
    assert operators(work) == ["Conv", "Conv", "Add"]
    assert "w" in work.graph.initializers


def test_float16_stays_float16() -> None:
    half = {name: array.astype(np.float16) for name, array in norm().items()}
    model = parse(
        "(float16[1,3,8,8] x, float16[4,3,3,3] w, float16[4] g, float16[4] b, float16[4] m, "
        "float16[4] v) => (float16[1,4,6,6] y) "
        "{ a = Conv(x, w) y = BatchNormalization(a, g, b, m, v) }",
        w=weight(4, 3, 3, 3, dtype=np.float16),
        **half,
    )
    work, step = run(fold_batch_norm, model)
    assert step.fired == 1
    assert {value.dtype for value in work.graph.initializers.values()} == {ir.DataType.FLOAT16}
